"""Times training steps in plain PyTorch of the module of a Python file, with a PyTorch version of Tau's `muon`.

usage: python -m taubench.torch_side.module_steps --file FILE.py --steps 50

A step gathers a minibatch of the file's samples, and runs the forward and the backward pass; then `muon` moves the
matrices, and Adam the rest. Prints one line of JSON with the milliseconds of a step.
"""

import argparse
import json
import statistics
import time

import torch
from torch import nn
from torch.utils.data import default_collate

from taubench.torch_side.gpt_reference import load, parameters_of
from taubench.torch_side.muon import Muon


class MuonBesideAdam(Muon):
    """Tau's `muon`, which leaves to Adam not only vectors but also embeddings and the head, for example."""

    def __init__(self, parameters, left_to_adam, lr, every=2):
        super().__init__(parameters, lr, every=every)
        (group,), (adam,) = self.param_groups, self.adam.param_groups
        left = {id(parameter) for parameter in left_to_adam}
        adam["params"].extend(matrix for matrix in group["params"] if id(matrix) in left)
        group["params"] = [matrix for matrix in group["params"] if id(matrix) not in left]
        blocks = sum(-(-matrix.shape[0] // group["block"]) for matrix in group["params"])
        self.every = max(1, min(every, blocks // 3))


class Training:
    def __init__(self, options):
        self.file = load(options.file)
        torch.manual_seed(options.seed)
        self.net = self.file.model()
        self.samples, _ = self.file.data()
        self.order = torch.randperm(len(self.samples), generator=torch.Generator().manual_seed(options.seed))
        self.minibatch, self.at, self.clip = options.minibatch, 0, options.clip
        self.optimiser = MuonBesideAdam(parameters_of(self.net), self.file.left_to_adam(self.net), options.lr)
        self.net.train()

    def step(self):
        if self.at + self.minibatch > len(self.order):
            self.at = 0
        indices = self.order[self.at : self.at + self.minibatch].tolist()
        self.at += self.minibatch
        self.optimiser.zero_grad()
        loss = self.file.loss(self.net, default_collate([self.samples[at] for at in indices]))
        loss.backward()
        if self.clip is not None:
            nn.utils.clip_grad_norm_(parameters_of(self.net), self.clip)
        self.optimiser.step()
        return loss.item()


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", required=True)
    parser.add_argument("--minibatch", type=int, default=64)
    parser.add_argument("--warm-up", type=int, default=5, help="steps before those that are timed")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--clip", type=float)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


def main():
    options = arguments()
    torch.set_num_threads(options.threads)
    training = Training(options)
    first = training.step()
    for _ in range(options.warm_up - 1):
        training.step()
    times = []
    for _ in range(options.steps):
        start = time.perf_counter()
        last = training.step()
        times.append((time.perf_counter() - start) * 1e3)
    measured = {
        "milliseconds_median": statistics.median(times),
        "milliseconds_mean": statistics.fmean(times),
        "steps": options.steps,
        "minibatch": options.minibatch,
        "threads": options.threads,
        "parameters": sum(parameter.numel() for parameter in parameters_of(training.net)),
        "first_loss": first,
        "last_loss": last,
        "torch": torch.__version__,
    }
    print(json.dumps(measured), flush=True)


if __name__ == "__main__":
    main()
