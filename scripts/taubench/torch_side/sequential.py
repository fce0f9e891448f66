"""Tau's list of layers as a torch.nn.Sequential."""

import torch
from torch import nn

PLAIN = {"relu": nn.ReLU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid, "gelu": nn.GELU, "flatten": nn.Flatten}


def sequential(layers, shape):
    """Follows a sample of the given shape through the layers, to know how many inputs each has."""
    modules = []
    probe = torch.zeros(1, *shape)
    for words in (text.split() for text in layers.split(",")):
        kind = words[0]
        if kind == "conv":
            options = dict(zip(words[3::2], map(int, words[4::2])))
            kernel = int(words[2].split("x")[0])
            stride, pad = options.get("stride", 1), options.get("pad", 0)
            module = nn.Conv2d(probe.shape[1], int(words[1]), kernel, stride=stride, padding=pad)
        elif kind == "dense":
            # A leading dense layer takes an image as a vector.
            probe = probe.flatten(1)
            module = nn.Linear(probe.shape[1], int(words[1]))
        elif kind == "maxpool":
            module = nn.MaxPool2d(int(words[1]))
        elif kind == "avgpool":
            module = nn.AvgPool2d(int(words[1]))
        elif kind == "dropout":
            module = nn.Dropout(float(words[1]))
        else:
            module = PLAIN[kind]()
        probe = module(probe)
        modules.append(module)
    return nn.Sequential(*modules)


def takes_vectors(net):
    """Whether a network begins with a dense layer, so that samples are given to it as vectors."""
    return isinstance(net[0], nn.Linear)
