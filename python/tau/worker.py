"""The worker process that runs models of the user's: a node starts `python -I -m tau.worker … SOCKET`.

The extension `_tau` is the worker: it talks to the node, chooses samples, computes the loss, moves the weights and
exchanges changes. This module makes networks of the user's code for it, and lets them compute on the worker's memory.
An array of the worker's is a *place*: its address and its number of floats.
"""

import argparse
import array
import contextlib
import ctypes
import fnmatch
import functools
import importlib.metadata
import math
import os
import platform
import random
import signal
import sys
import threading
import traceback
import weakref

from tau import _tau
from tau.data import Data, DataMistake, mean_loss, measured, numbers_of, rows_of
from tau.sources import SourceRefused, Sources

FLOAT_BYTES = 4
# Steps after which parameters and gradients are looked for where they should be.
CHECK_EVERY = 100
# The random number generators are global to the process: a thread that seeds them holds this lock until it has drawn
# all its numbers.
GENERATOR = threading.RLock()


class Failure(Exception):
    """The user's code has failed; the text is a sentence that names the place and no values."""


def reports_failure(method):
    """Turns what the user's code raises in a method into a Failure, and prints the whole traceback for its user."""

    @functools.wraps(method)
    def call(self, *arguments):
        try:
            return method(self, *arguments)
        except Failure:
            raise
        except DataMistake as mistake:
            raise Failure(f"{self.file}: {mistake}") from None
        except BaseException as error:  # The user's code may raise anything.
            traceback.print_exc()
            raise Failure(described(error, self.sources)) from None

    return call


def described(error, sources):
    """One sentence: which exception came from which line of the user's files. It has no values: other nodes hear it."""
    if isinstance(error, SourceRefused):
        return str(error)
    files = sources.files()
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename in files]
    place = sources.name(files[0])
    if isinstance(error, SyntaxError) and error.filename in files:
        place = f"{sources.name(error.filename)}:{error.lineno}"
    elif own:
        place = f"{sources.name(own[-1].filename)}:{own[-1].lineno} in {own[-1].name}"
    # A name that the sources do not hold may be a value, of which none is told.
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in sources.imports:
        return f"{place}: there is no module {error.name}: install it for {sys.executable} with pip"
    return f"{place}: {type(error).__name__}; the worker's log has the details"


def seed_all(key):
    """Seeds the generators of random numbers that the user's code may draw from."""
    import torch

    # `torch.manual_seed` would format a stack trace for the generators of GPUs, at each call.
    torch.default_generator.manual_seed(key % 2**63)
    random.seed(key)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(key % 2**32)


def view(place):
    """A tensor over the floats at a place of the worker's memory."""
    import torch

    address, count = place
    if count == 0:
        return torch.empty(0)
    return torch.frombuffer((ctypes.c_float * count).from_address(address), dtype=torch.float32)


class Loader:
    """Loads modules from the user's files. `read` returns the bytes of a further file that such a file imports."""

    def __init__(self, read):
        self.read = read

    def whereabouts(self):
        """The file, line and function of the user's code that a thread is in; None if no thread is in any."""
        sources = Sources.newest
        files = sources.files() if sources else []
        for frame in sys._current_frames().values():
            while frame is not None:
                if frame.f_code.co_filename in files:
                    return f"{sources.name(frame.f_code.co_filename)}:{frame.f_lineno} in {frame.f_code.co_name}"
                frame = frame.f_back
        return None

    def load(self, file, code, shape, seed):
        """Loads the module of a file. `shape` is that of a sample that Tau reads; None if it has its own `data`."""
        return Module(Sources(str(file), code, self.read), str(file), shape, seed)


class Module:
    """A file of the user's, whose function `model` makes a network."""

    def __init__(self, sources, file, shape, seed):
        self.sources = sources
        self.file = file
        self.shape = shape and tuple(shape)
        self.seed = seed
        self.samples = None
        # The network that trains, or the buffers of the last one: batch norms are evaluated with those.
        self.training = None
        self.buffers = {}
        # All networks that were made and are in use.
        self.nets = weakref.WeakSet()
        self.code = self.run()
        self.first = self.made()
        if shape is None:
            self.samples = self.own_samples()
        by_adam = self.by_adam(self.first)
        self.slots = [(key, list(parameter.shape), key in by_adam) for key, parameter in trained(self.first)]

    @reports_failure
    def run(self):
        """Runs the file, and returns the Python module that it becomes."""
        try:
            import torch
        except ImportError:
            raise Failure(f"{sys.executable} has no PyTorch: install it there with pip") from None
        # The sums of some operations, such as the gradient of an index, would depend on the threads' order.
        torch.use_deterministic_algorithms(True, warn_only=True)
        # Newer releases of PyTorch would also fill each new tensor, which only programs with faults can notice.
        if deterministic := getattr(torch.utils, "deterministic", None):
            deterministic.fill_uninitialized_memory = False
        with GENERATOR:
            seed_all(self.seed)
            # That is what a user asks for with --python.
            module = self.sources.run()
        if not callable(getattr(module, "model", None)):
            raise Failure(f"{self.file} has no function model(): add one that returns a torch.nn.Module")
        has_data, has_loss = callable(getattr(module, "data", None)), callable(getattr(module, "loss", None))
        if self.shape is None and not has_data:
            raise Failure(f"{self.file} has no function data(): add one, or name data with --data")
        if self.shape is None and not has_loss:
            raise Failure(
                f"{self.file} has data() and no loss(net, batch): add one that returns a minibatch's mean loss"
            )
        if self.shape is not None and has_loss:
            raise Failure(f"{self.file} has a loss() for samples of its own data(): leave --data out, or loss()")
        return module

    @reports_failure
    def own_samples(self):
        """The samples of the file's function `data`."""
        with GENERATOR:
            seed_all(self.seed)
            return Data.of(self.code)

    @reports_failure
    def data(self):
        """The classes of the training samples, the number of test samples, and a hash by which nodes compare data."""
        with GENERATOR:
            return self.samples.classes(), len(self.samples.test), self.samples.hash(seed_all)

    @reports_failure
    def by_adam(self, net):
        """The keys of the matrices that Adam moves under `muon`: embeddings, the head of a model with data of its own,
        and those that the file names in `adam`; but none that it names in `muon`."""
        import torch

        keys = {id(parameter): key for key, parameter in trained(net) if parameter.dim() > 1}
        found = set()
        for layer in net.modules():
            if isinstance(layer, (torch.nn.Embedding, torch.nn.EmbeddingBag)):
                found.add(keys.get(id(layer.weight)))
        if self.samples:
            found.add(self.head(net, keys))
        found |= self.named("adam", keys.values())
        return found - self.named("muon", keys.values())

    def named(self, which, keys):
        """The keys that match the patterns of a list in the file."""
        patterns = getattr(self.code, which, [])
        if not isinstance(patterns, (list, tuple)) or not all(isinstance(pattern, str) for pattern in patterns):
            raise Failure(f'{self.file}: {which} is no list of names: write them like {which} = ["head.*"]')
        for pattern in patterns:
            if not fnmatch.filter(keys, pattern):
                raise Failure(f"{self.file}: {which} names {pattern!r}, but no matrix of the model is called so")
        return {key for pattern in patterns for key in fnmatch.filter(keys, pattern)}

    def head(self, net, keys):
        """The key of the model's head: the matrix of the layer that a forward pass enters last."""
        last = []

        def note(layer, _inputs):
            last[:] = [keys[id(weight)] for weight in layer.parameters(recurse=False) if id(weight) in keys] or last

        hooks = [layer.register_forward_pre_hook(note) for layer in net.modules()]
        with GENERATOR:
            seed_all(self.seed)
            net.train()
            self.loss_of(net, [0, len(self.samples.train) - 1])
        for hook in hooks:
            hook.remove()
        return last[-1] if last else None

    def loss_of(self, net, positions):
        """The mean loss of the samples at these positions."""
        return mean_loss(self.code, net, self.samples.batch(positions))

    @reports_failure
    def made(self):
        """A network, always with the same first weights."""
        import torch

        with GENERATOR:
            seed_all(self.seed)
            net = self.code.model()
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

    def seal(self):
        """Digest of all code that has run; from now on no other file of code is read."""
        self.sources.seal()
        return self.sources.digest()

    def tensors(self):
        """The key and shape of each trained tensor, and whether Adam moves it where others get orthogonal updates."""
        return self.slots

    @reports_failure
    def first_weights(self, address, count):
        """Writes the first weights to the worker's memory."""
        import torch

        with torch.no_grad():
            flat = torch.cat([parameter.reshape(-1) for _, parameter in trained(self.first)])
            view((address, count)).copy_(flat)
        # No other network is needed for that.
        self.first = None

    @reports_failure
    def network(self, threads):
        net = self.made()
        made = [(key, list(parameter.shape)) for key, parameter in trained(net)]
        if made != [(key, shape) for key, shape, _ in self.slots]:
            raise Failure(f"model() in {self.file} returns other parameters when it is called again: let it not change")
        return Network(self, net, threads)

    def newest_buffers(self):
        """The buffers of the network that trains, or of the last one that did."""
        training = self.training
        return dict(training.net.named_buffers()) if training else self.buffers


def trained(net):
    """The parameters that are trained, in the order in which the worker's array holds them."""
    return sorted((key, parameter) for key, parameter in net.named_parameters() if parameter.requires_grad)


def has_statistics(layer):
    """True if the layer keeps a running mean and variance, as batch norms do."""
    return getattr(layer, "running_mean", None) is not None and hasattr(layer, "momentum")


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
        self.sources = module.sources
        self.file = module.file
        self.net = net
        self.parameters = [parameter for _, parameter in trained(net)]
        self.count = sum(parameter.numel() for parameter in self.parameters)
        self.weights = None
        self.gradients = {}
        self.outputs = None
        self.steps = 0
        # Layers whose running statistics are measured, and the number of minibatches since `settle`.
        self.running, self.observed = [], 0

    def parts(self, place):
        """Views of an array of all weights, one for each parameter."""
        if place[1] != self.count:
            raise Failure(f"{self.file} has {self.count} weights, and the worker {place[1]}: this is a fault in Tau")
        sizes = [parameter.numel() for parameter in self.parameters]
        return [part.view(p.shape) for part, p in zip(view(place).split(sizes), self.parameters)]

    def inputs(self, rows, count):
        """The samples of a minibatch. They are copied: the user's code may keep them."""
        if rows[1] != count * math.prod(self.module.shape):
            raise Failure(f"{count} samples have {rows[1]} numbers: this is a fault in Tau")
        return view(rows).view(count, *self.module.shape).clone()

    @reports_failure
    def forward(self, weights, rows, samples, key):
        """Computes outputs in training, and returns their bytes."""
        if weights != self.weights:
            self.bind(weights)
        self.module.training = self
        inputs = self.inputs(rows, samples)
        self.net.train()
        with GENERATOR:
            seed_all(key)
            self.outputs = self.net(inputs)
        return rows_of(self.outputs, samples)

    @reports_failure
    def backward(self, output_gradient, gradient):
        """Replaces the array at `gradient` with the gradient of all weights."""
        outputs, self.outputs = self.outputs, None
        # The user's code may keep what it is given.
        with GENERATOR:
            self.descend(gradient, outputs, view(output_gradient).view_as(outputs).clone())

    def descend(self, gradient, end, end_gradient=None):
        """Runs the backward pass from `end`, and replaces the array at `gradient` with the gradient of all weights."""
        views = self.gradients.get(gradient)
        if views is None:
            # The worker has two arrays at most, one of which adds up the parts of a step.
            if len(self.gradients) == 2:
                self.gradients.clear()
            views = self.gradients[gradient] = self.parts(gradient)
        for parameter, part in zip(self.parameters, views):
            parameter.grad = part.zero_()
        end.backward(end_gradient)
        self.steps += 1
        if self.steps % CHECK_EVERY == 1:
            self.check(views)

    @reports_failure
    def step(self, weights, positions, key, gradient):
        """Returns the mean loss of the module's own samples at these positions; its gradient goes to `gradient`."""
        if weights != self.weights:
            self.bind(weights)
        self.module.training = self
        self.net.train()
        with GENERATOR:
            seed_all(key)
            loss = self.module.loss_of(self.net, array.array("I", positions).tolist())
            if not loss.requires_grad:
                raise Failure(f"loss() in {self.file} does not depend on the weights: compute it from net's outputs")
            self.descend(gradient, loss)
        return loss.item()

    @reports_failure
    def infer(self, weights, rows, samples, _key):
        """Computes outputs outside of training, and returns their bytes."""
        with self.evaluating(weights):
            return rows_of(self.net(self.inputs(rows, samples)), samples)

    @reports_failure
    def measure(self, weights, positions):
        """Measures the model on the module's own samples at these positions: names and means."""
        positions = array.array("I", positions).tolist()
        with self.evaluating(weights):
            return measured(self.module.code, self.net, self.module.samples.batch(positions))

    @reports_failure
    def settle(self):
        """Takes over the newest buffers. True if the network has running statistics, which `observe` measures."""
        import torch

        with torch.no_grad(), GENERATOR:
            buffers = self.module.newest_buffers()
            for key, buffer in self.net.named_buffers():
                if key in buffers:
                    buffer.copy_(buffers[key])
            # A layer that the user's code keeps out of training also keeps its statistics.
            self.net.train()
            self.running = [layer for layer in self.net.modules() if layer.training and has_statistics(layer)]
        self.observed = 0
        return bool(self.running)

    @reports_failure
    def observe(self, weights, positions):
        """Measures running statistics on the module's own samples at these positions."""
        positions = array.array("I", positions).tolist()
        with self.observing(weights):
            measured(self.module.code, self.net, self.module.samples.batch(positions))

    @reports_failure
    def observe_rows(self, weights, rows, samples):
        """Measures running statistics on these samples."""
        with self.observing(weights):
            self.net(self.inputs(rows, samples))

    @contextlib.contextmanager
    def observing(self, weights):
        """Lets layers with running statistics compute as in training, and take the mean of those of all minibatches."""
        self.observed += 1
        with self.evaluating(weights):
            momenta = [layer.momentum for layer in self.running]
            try:
                for layer in self.running:
                    # The first minibatch replaces what training has left.
                    layer.momentum = 1 / self.observed
                    layer.train()
                yield
            finally:
                for layer, momentum in zip(self.running, momenta):
                    layer.momentum = momentum

    @reports_failure
    def untrained(self, weights):
        """The tensors of the module's state that are not trained, at these weights: key, type, shape, bytes."""
        import torch

        slots = {key for key, _, _ in self.module.slots}
        others = []
        with self.evaluating(weights):
            for key, tensor in self.net.state_dict().items():
                if key in slots:
                    continue
                if not isinstance(tensor, torch.Tensor):
                    raise Failure(f"{self.file}: {key} in the module's state is no tensor, and cannot be saved")
                others.append((key, str(tensor.dtype), list(tensor.shape), numbers_of(tensor)))
        return others

    @contextlib.contextmanager
    def evaluating(self, weights):
        """Lets the network compute outside of training, with these weights."""
        import torch

        with torch.no_grad(), GENERATOR:
            seed_all(0)
            own = [parameter.data for parameter in self.parameters]
            try:
                for parameter, part in zip(self.parameters, self.parts(weights)):
                    parameter.data = part
                self.net.eval()
                yield
            finally:
                for parameter, data in zip(self.parameters, own):
                    parameter.data = data

    def bind(self, weights):
        """Lets the parameters be the worker's array."""
        self.own = self.parts(weights)
        for parameter, part in zip(self.parameters, self.own):
            parameter.data = part
        self.weights = weights

    def check(self, views):
        """Fails if the user's code has replaced a parameter or a gradient."""
        if {id(parameter) for _, parameter in trained(self.net)} != {id(parameter) for parameter in self.parameters}:
            raise Failure(f"{self.file}: the module trains other parameters than after model(): make all of them there")
        keys = [key for key, _, _ in self.module.slots]
        for key, parameter, own, part in zip(keys, self.parameters, self.own, views):
            if parameter.data_ptr() != own.data_ptr():
                raise Failure(f"{self.file}: {key} was given other memory after model(): change it in place")
            if parameter.grad is None or parameter.grad.data_ptr() != part.data_ptr():
                raise Failure(f"{self.file}: the gradient of {key} was replaced: leave p.grad to Tau")

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


def runtime():
    """The versions of Python and PyTorch, as `tau nodes` and `tau doctor` show them."""
    try:
        torch = f"PyTorch {importlib.metadata.version('torch')}"
    except importlib.metadata.PackageNotFoundError:
        torch = "no PyTorch"
    return f"Python {platform.python_version()}, {torch}"


def arguments():
    parser = argparse.ArgumentParser(prog="python -m tau.worker", description="A worker of a node that runs Python.")
    parser.add_argument("--version", action="version", version=_tau.VERSION)
    parser.add_argument("--tied", action="store_true", help="end when the node ends, not at a signal")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu", choices=["cpu"])
    parser.add_argument("--data-root", required=True)
    parser.add_argument("--own-folder", help="folder of the node, from which no code is run")
    parser.add_argument("socket")
    return parser.parse_args()


def main():
    options = arguments()
    # Standard output joins standard error: what the user's code prints belongs in the node's log.
    os.dup2(2, 1)
    if options.tied:
        # A signal to all processes of a service is for the node, which ends its workers in good order.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
    try:
        folders = options.data_root, options.own_folder
        loader = Loader(functools.partial(_tau.read, *folders))
        _tau.attach(options.socket, options.threads, *folders, runtime(), loader)
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
