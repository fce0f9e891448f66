"""Tau's list of layers as a torch.nn.Sequential, with the keys that Tau's model files have."""

import json
import math

import torch
from torch import nn

PLAIN = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "flatten": nn.Flatten,
}


class Dense(nn.Linear):
    """A dense layer that takes an image as a vector."""

    def forward(self, x):
        return super().forward(x.flatten(1))


class Residual(nn.Module):
    """What comes in is added to what a block's layers make of it."""

    def __init__(self, body, skip):
        super().__init__()
        self.body = body
        self.skip = skip

    def forward(self, x):
        return self.body(x) + self.skip(x)


def load(path):
    """A model file as a network that is ready to predict, and the metadata that Tau keeps in the file."""
    # Only this function reads files: benchmarks need no safetensors.
    from safetensors import safe_open
    from safetensors.torch import load_file

    with safe_open(path, "pt") as file:
        about = json.loads(file.metadata()["tau"])
    (kind, size), *_ = about["input"].items()
    shape = (size,) if kind == "Flat" else (size["channels"], size["height"], size["width"])
    outputs = len(about["numbers"] if "numbers" in about else about["classes"])
    net = sequential(about["job"]["model"], shape, outputs)
    net.load_state_dict(load_file(path))
    return net.eval(), about


def sequential(layers, shape, outputs=None):
    """Follows a sample of the given shape through the layers, to know how many inputs each has."""
    return chain(layers, torch.zeros(2, *shape), outputs)[0]


def chain(layers, probe, outputs=None):
    """The layers, and what they make of a probe."""
    modules = []
    for text in split(layers):
        module = residual(text, probe) if text.startswith("residual") else layer(text.split(), probe, outputs)
        probe = module(probe)
        modules.append(module)
    return nn.Sequential(*modules), probe


def split(text):
    """The texts between commas that are in no brackets."""
    depth, part = 0, ""
    for letter in text + ",":
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            yield part.strip()
            part = ""
        else:
            part += letter


def residual(text, probe):
    within = text[text.index("[") + 1 : text.rindex("]")]
    body, after = chain(within, probe)
    skip = []
    if after.shape != probe.shape:
        normalised = isinstance(body[-1], (nn.BatchNorm1d, nn.BatchNorm2d))
        if after.ndim == 2:
            skip.append(Dense(probe[0].numel(), after.shape[1]))
        else:
            stride = -(-probe.shape[2] // after.shape[2])
            skip.append(nn.Conv2d(probe.shape[1], after.shape[1], 1, stride=stride, bias=not normalised))
        if normalised:
            skip.append(norm("batchnorm", after))
    return Residual(body, nn.Sequential(*skip))


def norm(kind, probe, groups=1):
    if kind == "layernorm":
        return nn.LayerNorm(probe.shape[1:])
    if kind == "groupnorm":
        return nn.GroupNorm(groups, probe.shape[1])
    return (nn.BatchNorm1d if probe.ndim == 2 else nn.BatchNorm2d)(probe.shape[1])


def layer(words, probe, outputs):
    kind = words[0]
    if kind == "conv":
        bias = "nobias" not in words
        words = [word for word in words if word != "nobias"]
        options = dict(zip(words[3::2], map(int, words[4::2])))
        kernel = int(words[2].split("x")[0])
        stride, pad = options.get("stride", 1), options.get("pad", 0)
        return nn.Conv2d(probe.shape[1], int(words[1]), kernel, stride=stride, padding=pad, bias=bias)
    if kind == "dense":
        return Dense(probe[0].numel(), int(words[1]) if len(words) > 1 else outputs)
    if kind in ("batchnorm", "layernorm", "groupnorm"):
        return norm(kind, probe, *map(int, words[1:]))
    if kind == "maxpool":
        return nn.MaxPool2d(int(words[1]))
    if kind == "avgpool":
        return nn.AvgPool2d(int(words[1]))
    if kind == "globalavgpool":
        return nn.AdaptiveAvgPool2d(1)
    if kind == "dropout":
        return nn.Dropout(float(words[1]))
    if kind == "leakyrelu":
        return nn.LeakyReLU(*map(float, words[1:]))
    return PLAIN[kind]()


def first_weights(net):
    """As Tau draws them: uniform within the root of six over the inputs of an output; biases are zero."""
    for layer in net.modules():
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            bound = math.sqrt(6 / layer.weight[0].numel())
            nn.init.uniform_(layer.weight, -bound, bound)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


def takes_vectors(net):
    """Whether a network begins with a dense layer, so that samples are given to it as vectors."""
    return isinstance(net[0], nn.Linear)
