"""Trains the module of a Python file in plain PyTorch with AdamW: the baseline of Tau's runs of the same file.

usage: python -m taubench.torch_side.gpt_reference --file FILE.py --epochs 2 …

The file has the functions model(), data() and loss(), and evaluate() if it wants, as for `tau train --model py:FILE`.
Progress goes to standard error; standard output is one line of JSON. `validation_loss` is of all test samples, and each
point of `curve` ([samples trained, loss]) of some, evenly spread. `seconds` are those of training alone.

With --ranks N these are N processes of DistributedDataParallel over gloo on this machine, and --minibatch is that of
each rank. `bytes_per_step_reckoned` are those that a rank sends in a step if a ring all-reduce averages the gradients:
4 bytes · parameters · 2 · (N − 1) ÷ N. They are computed, not measured.
"""

import argparse
import datetime
import fnmatch
import json
import math
import os
import pathlib
import sys
import tempfile
import time
import types
from typing import Any, Callable, NamedTuple, Optional

import torch
import torch.distributed
import torch.multiprocessing
from torch import nn
from torch.utils.data import default_collate

from taubench.processes import end_on_signals

BETAS, WEIGHT_DECAY, CLIP, WARM_UP = (0.9, 0.95), 0.1, 1.0, 0.05
TEST_MINIBATCH, CURVE_SAMPLES = 256, 512
FLOAT_BYTES = 4
# Longer than rank 0 takes for an evaluation, in which the others wait for it.
PATIENCE = datetime.timedelta(minutes=10)


class ModelFile(NamedTuple):
    """Functions and settings that the user's file defines."""

    model: Callable[[], nn.Module]
    data: Callable[[], tuple]
    loss: Callable[[nn.Module, Any], torch.Tensor]
    evaluate: Optional[Callable[[nn.Module, Any], dict]]
    adam: list

    def scores(self, net, dataset, count=None, minibatch=TEST_MINIBATCH):
        """The means of the file's metrics over `count` samples, evenly spread, or over all."""
        total = len(dataset)
        picked = range(total) if count is None else [at * total // count for at in range(min(count, total))]
        sums = {}
        net.eval()
        with torch.no_grad():
            for indices in torch.tensor(picked).split(minibatch):
                batch = default_collate([dataset[at] for at in indices.tolist()])
                found = self.evaluate(net, batch) if self.evaluate else {"loss": self.loss(net, batch)}
                for name, number in found.items():
                    sums[name] = sums.get(name, 0.0) + float(number) * len(indices)
        net.train()
        return {name: number / len(picked) for name, number in sums.items()}

    def left_to_adam(self, net):
        """The trained parameters that Tau's `muon` leaves to Adam: vectors, embeddings, the last linear layer (the
        head), and those that the file names in `adam`."""
        linear = [module for module in net.modules() if isinstance(module, nn.Linear)]
        tables = [module.weight for module in net.modules() if isinstance(module, nn.Embedding)]
        left = {id(weight) for weight in [*tables, *(module.weight for module in linear[-1:])]}
        return [
            parameter
            for key, parameter in net.named_parameters()
            if parameter.requires_grad
            and (
                parameter.ndim < 2
                or id(parameter) in left
                or any(fnmatch.fnmatchcase(key, pattern) for pattern in self.adam)
            )
        ]


def load(path):
    """Runs the user's file as Tau's worker does."""
    file = str(pathlib.Path(path).resolve())
    module = types.ModuleType("__tau__")
    module.__file__ = file
    sys.modules["__tau__"] = module
    exec(compile(pathlib.Path(file).read_bytes(), file, "exec", dont_inherit=True), module.__dict__)
    names = vars(module)
    return ModelFile(names["model"], names["data"], names["loss"], names.get("evaluate"), names.get("adam", []))


def parameters_of(net):
    return [parameter for parameter in net.parameters() if parameter.requires_grad]


def adamw(net, lr):
    """AdamW, whose weight decay is for matrices only."""
    matrices = [parameter for parameter in parameters_of(net) if parameter.ndim > 1]
    vectors = [parameter for parameter in parameters_of(net) if parameter.ndim < 2]
    groups = [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=lr, betas=BETAS)


def factor(schedule, step, steps):
    """The factor of the learning rate at a step: linear warm-up, then decay to zero."""
    warm = math.ceil(WARM_UP * steps)
    if step < warm:
        return (step + 1) / warm
    passed = (step - warm) / max(1, steps - warm)
    return (1 + math.cos(math.pi * passed)) / 2 if schedule == "cosine" else 1 - passed


def order(samples, epochs, seed):
    """The samples of all epochs, each of which has an order of its own."""
    drawn = torch.Generator().manual_seed(seed)
    passes = [torch.randperm(samples, generator=drawn) for _ in range(math.ceil(epochs))]
    return torch.cat(passes)[: round(epochs * samples)]


def train(rank, world, options):
    """Trains as one of `world` ranks, and returns what was measured."""
    torch.set_num_threads(options.threads)
    file = load(options.file)
    torch.manual_seed(options.seed)
    net = file.model()
    samples, tests = file.data()
    whole = options.minibatch * world
    picked = order(len(samples), options.epochs, options.seed)
    steps = min(len(picked) // whole, options.max_steps or sys.maxsize)
    if not steps:
        raise SystemExit(f"error: {len(picked)} samples are less than one step of {whole}")
    wrapped = nn.parallel.DistributedDataParallel(net) if world > 1 else net
    # From here on, ranks draw different random numbers, for dropout.
    torch.manual_seed(options.seed * world + rank)
    optimiser = adamw(net, options.lr)
    points = {round(steps * at / options.evaluations) for at in range(1, options.evaluations)}
    curve, seconds, began = [], 0.0, time.perf_counter()
    net.train()
    for step in range(steps):
        first = step * whole + rank * options.minibatch
        indices = picked[first : first + options.minibatch].tolist()
        for group in optimiser.param_groups:
            group["lr"] = options.lr * factor(options.schedule, step, steps)
        optimiser.zero_grad()
        file.loss(wrapped, default_collate([samples[at] for at in indices])).backward()
        nn.utils.clip_grad_norm_(parameters_of(net), CLIP)
        optimiser.step()
        if step + 1 in points and rank == 0:
            seconds += time.perf_counter() - began
            loss = file.scores(net, tests, CURVE_SAMPLES)["loss"]
            curve.append([(step + 1) * whole, loss])
            print(f"step {step + 1} of {steps}: loss {loss:.4f}, {seconds:.1f} s", file=sys.stderr, flush=True)
            began = time.perf_counter()
    seconds += time.perf_counter() - began
    if rank:
        return None
    scores = file.scores(net, tests)
    weights = sum(parameter.numel() for parameter in parameters_of(net))
    return {
        "validation_loss": scores["loss"],
        "scores": scores,
        "curve": [*curve, [steps * whole, scores["loss"]]],
        "seconds": seconds,
        "samples": steps * whole,
        "steps": steps,
        "samples_per_second": steps * whole / seconds,
        "minibatch": options.minibatch,
        "ranks": world,
        "threads": options.threads,
        "lr": options.lr,
        "schedule": options.schedule,
        "seed": options.seed,
        "parameters": weights,
        "bytes_per_step_reckoned": round(FLOAT_BYTES * weights * 2 * (world - 1) / world),
        "torch": torch.__version__,
    }


def in_ranks(rank, options, folder):
    """Runs one rank. Ranks find each other by a file, because a port that is free now may be taken a moment later."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    where = f"file://{folder}/ranks"
    torch.distributed.init_process_group("gloo", where, PATIENCE, options.ranks, rank)
    measured = train(rank, options.ranks, options)
    # No rank leaves before rank 0 has measured.
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    if measured:
        print(json.dumps(measured), flush=True)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", required=True)
    parser.add_argument("--epochs", type=float, default=2)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--schedule", choices=["cosine", "linear"], default="cosine", help="to zero, after a warm-up")
    parser.add_argument("--minibatch", type=int, default=64, help="of each rank [default: %(default)s]")
    parser.add_argument("--max-steps", type=int, help="end earlier; the schedule ends there, too")
    parser.add_argument("--evaluations", type=int, default=10, help="points of the curve [default: %(default)s]")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="of each rank [default: %(default)s]")
    parser.add_argument("--ranks", type=int, default=1)
    return parser.parse_args()


def main():
    options = arguments()
    if options.ranks == 1:
        print(json.dumps(train(0, 1, options)), flush=True)
        return
    end_on_signals()
    with tempfile.TemporaryDirectory(prefix="tau-ranks-") as folder:
        torch.multiprocessing.spawn(in_ranks, (options, folder), options.ranks, daemon=True)


if __name__ == "__main__":
    main()
