"""Alternates between Tau's step timer and PyTorch, and prints the ratio of their step times."""

import os
import statistics
import subprocess
import sys
import time

import torch

from torch_sequential import sequential

BENCHES = [
    # name, Tau's layers, minibatch, steps per round, the most that the ratio may be
    ("784-1024-1024-10", "dense 1024, relu, dense 1024, relu, dense 10", 128, 40, 1.0),
    (
        "Downpour CNN",
        "conv 32 3x3, relu, conv 64 3x3, relu, maxpool 2, dropout 0.25, flatten, dense 128, relu, dropout 0.25, dense 10",
        64,
        6,
        1.2,
    ),
]
# (Tau's optimiser and clip, PyTorch's optimiser arguments and clip)
SETTINGS = [
    ("plain SGD", "sgd:0.01", "none", {"lr": 0.01}, None),
    ("momentum and clipping", "sgd:0.01,momentum=0.9", "5", {"lr": 0.01, "momentum": 0.9}, 5.0),
]


class Tau:
    def __init__(self, program, layers, minibatch, optimiser, clip):
        command = [program, layers, str(minibatch), optimiser, clip, "1"]
        # As a node starts its workers: memory in large pages.
        environment = {**os.environ, "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def steps(self, count):
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        return [float(word) for word in self.process.stdout.readline().split()]

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class Torch:
    def __init__(self, layers, minibatch, options, clip):
        self.net = sequential(layers, (1, 28, 28))
        flat = isinstance(self.net[0], torch.nn.Linear)
        self.x = torch.rand(minibatch, 784) if flat else torch.rand(minibatch, 1, 28, 28)
        self.y = torch.randint(0, 10, (minibatch,))
        self.optimiser = torch.optim.SGD(self.net.parameters(), **options)
        self.loss = torch.nn.CrossEntropyLoss()
        self.clip = clip

    def steps(self, count):
        times = []
        for _ in range(count):
            start = time.perf_counter()
            self.optimiser.zero_grad()
            self.loss(self.net(self.x), self.y).backward()
            if self.clip is not None:
                torch.nn.utils.clip_grad_norm_(self.net.parameters(), self.clip)
            self.optimiser.step()
            times.append((time.perf_counter() - start) * 1e3)
        return times


def main():
    program, rounds = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(1)
    print(f"PyTorch {torch.__version__}, one thread, {rounds} alternating rounds; milliseconds per step")
    print(f"{'net':<17} {'optimiser':<22} {'tau median':>10} {'torch median':>12} {'ratio':>6} {'tau best':>9} {'torch best':>10} {'ratio':>6}  wanted")
    for name, layers, minibatch, steps, wanted in BENCHES:
        for setting, optimiser, clip, options, torch_clip in SETTINGS:
            tau = Tau(program, layers, minibatch, optimiser, clip)
            pytorch = Torch(layers, minibatch, options, torch_clip)
            tau.steps(steps)
            pytorch.steps(steps)
            ours, theirs = [], []
            for _ in range(rounds):
                ours += tau.steps(steps)
                theirs += pytorch.steps(steps)
            tau.close()
            medians = statistics.median(ours), statistics.median(theirs)
            bests = min(ours), min(theirs)
            print(
                f"{name:<17} {setting:<22} {medians[0]:>10.2f} {medians[1]:>12.2f} {medians[0] / medians[1]:>6.2f} "
                f"{bests[0]:>9.2f} {bests[1]:>10.2f} {bests[0] / bests[1]:>6.2f}  ≤ {wanted}",
                flush=True,
            )


main()
