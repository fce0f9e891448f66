"""One PyTorch process that trains MNIST: alone, or as a rank of DistributedDataParallel over gloo.

usage: python -m taubench.torch_side.rank LAYERS MINIBATCH SECONDS

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

from taubench.torch_side import mnist
from taubench.torch_side.sequential import sequential


class Training:
    def __init__(self, layers, minibatch, rank, world):
        torch.manual_seed(1)
        self.net = sequential(layers, (1, 28, 28))
        # Floats once and for all: PyTorch need not convert bytes in every step.
        self.images = mnist.images("train").flatten(1)
        self.labels = mnist.labels("train")
        self.mine = torch.randperm(len(self.labels))[rank::world]
        self.minibatch, self.at = minibatch, 0
        if world > 1:
            self.net = torch.nn.parallel.DistributedDataParallel(self.net)
        self.optimiser = torch.optim.SGD(self.net.parameters(), lr=0.05, momentum=0.9)
        self.loss = torch.nn.CrossEntropyLoss()

    def steps(self, count):
        """Takes this many steps and returns the seconds they took."""
        start = time.perf_counter()
        for _ in range(count):
            if self.at + self.minibatch > len(self.mine):
                self.at = 0
            picked = self.mine[self.at : self.at + self.minibatch]
            self.at += self.minibatch
            self.optimiser.zero_grad()
            self.loss(self.net(self.images[picked]), self.labels[picked]).backward()
            self.optimiser.step()
        return time.perf_counter() - start


def main():
    layers, minibatch, wanted = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
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

    training = Training(layers, minibatch, rank, world)
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
