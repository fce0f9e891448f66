"""One PyTorch process that trains: alone, or as a rank of DistributedDataParallel over gloo.

usage: python -m taubench.torch_side.rank LAYERS MINIBATCH SECONDS

LAYERS are trained on MNIST with SGD. With py:FILE in their place, the module of that file is trained on the file's own
samples with AdamW.

RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are PyTorch's own variables; a world of one is plain PyTorch. The process
writes "ready" when everything is loaded and warm, waits for a line, trains, and writes what it measured as JSON.
"""

import datetime
import json
import os
import sys
import time

import torch
import torch.distributed
from torch.utils.data import default_collate

from taubench.torch_side import mnist
from taubench.torch_side.gpt_reference import adamw, load
from taubench.torch_side.sequential import sequential


class OnMnist:
    """A network of layers, and the images that it is trained on."""

    def __init__(self, layers):
        self.net = sequential(layers, (1, 28, 28))
        self.optimiser = torch.optim.SGD(self.net.parameters(), lr=0.05, momentum=0.9)
        # Floats once and for all: PyTorch need not convert bytes in every step.
        self.images = mnist.images("train").flatten(1)
        self.labels = mnist.labels("train")
        self.loss_of_outputs = torch.nn.CrossEntropyLoss()

    def __len__(self):
        return len(self.labels)

    def loss(self, net, picked):
        return self.loss_of_outputs(net(self.images[picked]), self.labels[picked])


class OnOwnData:
    """The module of a Python file, and the samples that the file makes."""

    def __init__(self, path):
        self.file = load(path)
        self.net = self.file.model()
        self.optimiser = adamw(self.net, 1e-3)
        self.samples, _ = self.file.data()

    def __len__(self):
        return len(self.samples)

    def loss(self, net, picked):
        return self.file.loss(net, default_collate([self.samples[at] for at in picked.tolist()]))


class Training:
    def __init__(self, model, minibatch, rank, world):
        torch.manual_seed(1)
        self.trained = OnOwnData(model.removeprefix("py:")) if model.startswith("py:") else OnMnist(model)
        self.net = self.trained.net
        self.mine = torch.randperm(len(self.trained))[rank::world]
        self.minibatch, self.at = minibatch, 0
        if world > 1:
            self.net = torch.nn.parallel.DistributedDataParallel(self.net)

    def steps(self, count):
        """Takes this many steps and returns the seconds they took."""
        start = time.perf_counter()
        for _ in range(count):
            if self.at + self.minibatch > len(self.mine):
                self.at = 0
            picked = self.mine[self.at : self.at + self.minibatch]
            self.at += self.minibatch
            self.trained.optimiser.zero_grad()
            self.trained.loss(self.net, picked).backward()
            self.trained.optimiser.step()
        return time.perf_counter() - start


def main():
    model, minibatch, wanted = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    torch.set_num_threads(1)
    if world > 1:
        # Longer than a step on the slowest link; a rank whose peer never came must not wait for half an hour.
        torch.distributed.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))

    def agreed(seconds):
        """All ranks must take equally many steps: rank 0's clock counts."""
        value = torch.tensor([seconds], dtype=torch.float64)
        if world > 1:
            torch.distributed.broadcast(value, 0)
        return value.item()

    training = Training(model, minibatch, rank, world)
    # The first steps build buckets and fill caches. On a slow link one step takes seconds, so few must do.
    training.steps(2)
    count, seconds = 1, agreed(training.steps(1))
    while seconds < 1:
        count *= 2
        seconds = agreed(training.steps(count))
    count = max(2, round(count * wanted / seconds))

    print("ready", flush=True)
    sys.stdin.readline()
    if world > 1:
        torch.distributed.barrier()
    seconds = training.steps(count)
    measured = {"steps": count, "seconds": seconds, "samples_per_second": count * minibatch / seconds}
    print(json.dumps(measured), flush=True)
    if world > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
