"""The worker process that runs models of the user's: a node starts `python -I -m tau.worker … SOCKET`.

The extension `_tau` is the worker: it talks to the node, chooses samples, computes the loss, moves the weights and
exchanges changes. This module makes networks of the user's code for it, and lets them compute on the worker's memory.
An array of the worker's is a *place*: its address and its number of floats.
"""

import argparse
import ctypes
import functools
import math
import os
import signal
import sys
import threading
import traceback
import types
import weakref

from tau import _tau

FLOAT_BYTES = 4
# Steps after which parameters and gradients are looked for where they should be.
CHECK_EVERY = 100
# PyTorch's generator is one for the process: who seeds it holds this until all numbers are drawn.
GENERATOR = threading.RLock()


class Failure(Exception):
    """The user's code has failed; the text is a sentence that names the place and no values."""


def told(method):
    """Turns what the user's code raises in a method into a Failure, and prints the whole traceback for its user."""

    @functools.wraps(method)
    def call(self, *arguments):
        try:
            return method(self, *arguments)
        except Failure:
            raise
        except BaseException as error:  # The user's code may raise anything.
            traceback.print_exc()
            raise Failure(described(error, self.file)) from None

    return call


def described(error, file):
    """One sentence: which exception came from which line of the user's file."""
    if isinstance(error, SyntaxError) and error.filename == file:
        return f"{file}:{error.lineno}: {type(error).__name__}; the worker's log has the details"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == file]
    place = f"{file}:{own[-1].lineno} in {own[-1].name}" if own else file
    return f"{place}: {type(error).__name__}; the worker's log has the details"


def view(place):
    """A tensor over the floats at a place of the worker's memory."""
    import torch

    address, count = place
    if count == 0:
        return torch.empty(0)
    return torch.frombuffer((ctypes.c_float * count).from_address(address), dtype=torch.float32)


class Loader:
    """Makes modules of files of code."""

    def load(self, file, code, shape, seed):
        return Module(str(file), code, shape, seed)


class Module:
    """A file of the user's, whose function `model` makes a network."""

    def __init__(self, file, code, shape, seed):
        self.file = file
        self.shape = tuple(shape)
        self.seed = seed
        # The network that trains, or the buffers of the last one: batch norms are evaluated with those.
        self.training = None
        self.buffers = {}
        # All networks that were made and are in use.
        self.nets = weakref.WeakSet()
        self.make = self.run(code)
        self.first = self.made()
        self.slots = [(key, list(parameter.shape)) for key, parameter in trained(self.first)]

    @told
    def run(self, code):
        """Runs the file, and returns its function `model`."""
        try:
            import torch
        except ImportError:
            raise Failure(f"{sys.executable} has no PyTorch: install it there with pip") from None
        # Some of Python's own modules look the names of a class up where it was made.
        module = types.ModuleType("__tau__")
        module.__file__ = self.file
        sys.modules["__tau__"] = module
        with GENERATOR:
            torch.manual_seed(self.seed)
            # That is what a user asks for with --python.
            exec(compile(code, self.file, "exec", dont_inherit=True), module.__dict__)
        make = getattr(module, "model", None)
        if not callable(make):
            raise Failure(f"{self.file} has no function model(): add one that returns a torch.nn.Module")
        return make

    @told
    def made(self):
        """A network, always with the same first weights."""
        import torch

        with GENERATOR:
            torch.manual_seed(self.seed)
            net = self.make()
        if not isinstance(net, torch.nn.Module):
            raise Failure(f"model() in {self.file} returns a {type(net).__name__}: return a torch.nn.Module")
        for key, parameter in net.named_parameters():
            if torch.nn.parameter.is_lazy(parameter):
                raise Failure(f"{key} in {self.file} has no size yet: give each layer its number of inputs")
            if parameter.dtype != torch.float32 or parameter.device.type != "cpu":
                raise Failure(
                    f"{key} in {self.file} is {parameter.dtype} on {parameter.device}: weights must be float32 on "
                    "the CPU"
                )
        if not trained(net):
            raise Failure(f"the module of {self.file} has no parameters to train")
        own = places(net)
        if len(set(own)) < len(own):
            raise Failure(f"two parameters of {self.file} share memory: let them be one parameter")
        if set(own) & {place for other in self.nets for place in places(other)}:
            raise Failure(f"model() in {self.file} returns parameters that it returned before: make new ones each time")
        self.nets.add(net)
        return net

    def tensors(self):
        """The key and shape of each trained tensor."""
        return self.slots

    @told
    def first_weights(self, address, count):
        """Writes the first weights to the worker's memory."""
        import torch

        with torch.no_grad():
            flat = torch.cat([parameter.reshape(-1) for _, parameter in trained(self.first)])
            view((address, count)).copy_(flat)
        # No other network is needed for that.
        self.first = None

    @told
    def network(self, threads):
        net = self.made()
        if [(key, list(parameter.shape)) for key, parameter in trained(net)] != self.slots:
            raise Failure(f"model() in {self.file} returns other parameters when it is called again: let it not change")
        return Network(self, net, threads)

    def newest_buffers(self):
        """The buffers of the network that trains, or of the last one that did."""
        training = self.training
        return dict(training.net.named_buffers()) if training else self.buffers


def trained(net):
    """The parameters that are trained, in the order in which the worker's array holds them."""
    return sorted((key, parameter) for key, parameter in net.named_parameters() if parameter.requires_grad)


def places(net):
    """Where the parameters and buffers of a network lie."""
    tensors = [*net.parameters(), *net.buffers()]
    return [tensor.data_ptr() for tensor in tensors if tensor.numel()]


class Network:
    """A network of a module, whose parameters and gradients are the worker's memory while it trains."""

    def __init__(self, module, net, threads):
        import torch

        torch.set_num_threads(threads)
        self.module = module
        self.file = module.file
        self.net = net
        self.parameters = [parameter for _, parameter in trained(net)]
        self.count = sum(parameter.numel() for parameter in self.parameters)
        self.weights = None
        self.gradients = {}
        self.outputs = None
        self.steps = 0

    def parts(self, place):
        """Views of an array of all weights, one for each parameter."""
        if place[1] != self.count:
            raise Failure(f"{self.file} has {self.count} weights, and the worker {place[1]}: this is a fault in Tau")
        sizes = [parameter.numel() for parameter in self.parameters]
        return [part.view(p.shape) for part, p in zip(view(place).split(sizes), self.parameters)]

    def samples(self, rows, count):
        """The samples of a minibatch. They are copied: the user's code may keep them."""
        if rows[1] != count * math.prod(self.module.shape):
            raise Failure(f"{count} samples have {rows[1]} numbers: this is a fault in Tau")
        return view(rows).view(count, *self.module.shape).clone()

    @told
    def forward(self, weights, rows, samples, key):
        """Computes outputs in training, and returns their bytes."""
        import torch

        if weights != self.weights:
            self.bind(weights)
        self.module.training = self
        inputs = self.samples(rows, samples)
        self.net.train()
        with GENERATOR:
            torch.manual_seed(key % 2**63)
            self.outputs = self.net(inputs)
        return self.plain(self.outputs, samples)

    @told
    def backward(self, output_gradient, gradient):
        """Replaces the array at `gradient` with the gradient of all weights."""
        views = self.gradients.get(gradient)
        if views is None:
            # The worker has two arrays at most, one of which adds up the parts of a step.
            if len(self.gradients) == 2:
                self.gradients.clear()
            views = self.gradients[gradient] = self.parts(gradient)
        for parameter, part in zip(self.parameters, views):
            parameter.grad = part.zero_()
        outputs, self.outputs = self.outputs, None
        # The user's code may keep this, too.
        outputs.backward(view(output_gradient).view_as(outputs).clone())
        self.steps += 1
        if self.steps % CHECK_EVERY == 1:
            self.check(views)

    @told
    def infer(self, weights, rows, samples, _key):
        """Computes outputs outside of training, and returns their bytes."""
        import torch

        with torch.no_grad(), GENERATOR:
            if weights != self.weights:
                for parameter, part in zip(self.parameters, self.parts(weights)):
                    parameter.copy_(part)
            buffers = self.module.newest_buffers()
            for key, buffer in self.net.named_buffers():
                if key in buffers:
                    buffer.copy_(buffers[key])
            self.net.eval()
            return self.plain(self.net(self.samples(rows, samples)), samples)

    def bind(self, weights):
        """Lets the parameters be the worker's array."""
        self.own = self.parts(weights)
        for parameter, part in zip(self.parameters, self.own):
            parameter.data = part
        self.weights = weights

    def check(self, views):
        """Fails if the user's code has replaced a parameter or a gradient."""
        keys = [key for key, _ in self.module.slots]
        for key, parameter, own, part in zip(keys, self.parameters, self.own, views):
            if parameter.data_ptr() != own.data_ptr():
                raise Failure(f"{self.file}: {key} was given other memory after model(): change it in place")
            if parameter.grad is None or parameter.grad.data_ptr() != part.data_ptr():
                raise Failure(f"{self.file}: the gradient of {key} was replaced: leave p.grad to Tau")

    def plain(self, outputs, samples):
        """The bytes of outputs, which must be a tensor of floats with a row for each sample."""
        import torch

        if not isinstance(outputs, torch.Tensor):
            raise Failure(f"{self.file}: the module returns a {type(outputs).__name__}: return a tensor of outputs")
        if outputs.dim() == 0 or outputs.shape[0] != samples:
            raise Failure(
                f"{self.file}: the module returns a tensor of shape {tuple(outputs.shape)} for {samples} samples: "
                "return a row for each sample"
            )
        flat = outputs.detach().to(torch.float32).contiguous()
        return ctypes.string_at(flat.data_ptr(), flat.numel() * FLOAT_BYTES)

    def release(self):
        """Gives the parameters memory of their own: the worker's is about to go."""
        for parameter in self.parameters:
            parameter.grad = None
            if self.weights is not None:
                parameter.data = parameter.data.clone()
        if self.module.training is self:
            self.module.buffers = {key: buffer.clone() for key, buffer in self.net.named_buffers()}
            self.module.training = None
        self.weights, self.own, self.gradients, self.outputs = None, [], {}, None


def arguments():
    parser = argparse.ArgumentParser(prog="python -m tau.worker", description="A worker of a node that runs Python.")
    parser.add_argument("--version", action="version", version=_tau.VERSION)
    parser.add_argument("--tied", action="store_true", help="end when the node ends, not at a signal")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu", choices=["cpu"])
    parser.add_argument("--data-root", required=True)
    parser.add_argument("socket")
    return parser.parse_args()


def main():
    options = arguments()
    if options.tied:
        # A signal to all processes of a service is for the node, which ends its workers in good order.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
    try:
        _tau.attach(options.socket, options.threads, options.data_root, Loader())
    except RuntimeError as error:
        print(f"error: {error}", file=sys.stderr)
        code = 1
    else:
        code = 0
    # Threads may still be in the user's code, which must not meet an interpreter that is being taken down.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
