"""Alternates between Tau's step timer and PyTorch on one GPU, and prints the ratio of their step times.

bench_cuda.py STEP_TIMER [ROUNDS]. PyTorch is given what helps it: its data lies on the GPU, and it is waited for only at
the end of each round. Tau waits for its words in every step.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time

import torch

import many_classes
from torch_sequential import sequential

DEEP = ", ".join(["dense 2048, relu"] * 5 + ["dense 8192"])
CNN = "conv 32 3x3, relu, conv 64 3x3, relu, maxpool 2, dropout 0.25, flatten, dense 128, relu, dropout 0.25, dense 10"
# name, layers, shape of a sample, classes, minibatch, steps per round, density, the most that the ratio may be by precision
BENCHES = [
    ("440-2048x5-8192", DEEP, (440,), 8192, 1024, 100, "0.001", {"f32": 1.0, "tf32": 1.1}),
    ("784-1024-1024-10", "dense 1024, relu, dense 1024, relu, dense 10", (1, 28, 28), 10, 128, 300, "0.002", {"f32": 0.6, "tf32": 0.6}),
    ("Downpour CNN", CNN, (1, 28, 28), 10, 64, 200, "0.002", {"f32": 1.0, "tf32": 1.0}),
]


class Tau:
    def __init__(self, program, layers, minibatch, precision, data, density):
        command = [program, layers, str(minibatch), "sgd:0.01", "none", "1", precision, data, density]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def step(self, count):
        """The mean milliseconds of so many steps."""
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        times = [float(word) for word in self.process.stdout.readline().split()]
        return sum(times) / count

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class Torch:
    def __init__(self, layers, shape, classes, minibatch, precision):
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        torch.backends.cudnn.allow_tf32 = precision == "tf32"
        self.net = sequential(layers, shape)
        if isinstance(self.net[0], torch.nn.Linear):
            shape = (torch.Size(shape).numel(),)
        self.net = self.net.cuda()
        self.x = torch.rand(minibatch, *shape, device="cuda")
        self.y = torch.randint(0, classes, (minibatch,), device="cuda")
        self.optimiser = torch.optim.SGD(self.net.parameters(), lr=0.01)
        self.loss = torch.nn.CrossEntropyLoss()

    def step(self, count):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            self.optimiser.zero_grad()
            self.loss(self.net(self.x), self.y).backward()
            self.optimiser.step()
        torch.cuda.synchronize()
        return (time.perf_counter() - start) * 1e3 / count


def main():
    program, rounds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 6
    print(f"PyTorch {torch.__version__}, {torch.cuda.get_device_name()}, {rounds} alternating rounds; milliseconds per step")
    print(f"{'net':<17} {'precision':<9} {'minibatch':>9} {'tau':>8} {'torch':>8} {'ratio':>6}  wanted")
    with tempfile.TemporaryDirectory() as folder:
        for name, layers, shape, classes, minibatch, steps, density, wanted in BENCHES:
            data = "builtin:mnist"
            if classes > 10:
                path = os.path.join(folder, "classes.csv")
                many_classes.write(path, shape[0], classes)
                data = f"csv:{path}?test=0.01"
            for precision in ["f32", "tf32"]:
                tau = Tau(program, layers, minibatch, precision, data, density)
                pytorch = Torch(layers, shape, classes, minibatch, precision)
                tau.step(steps)
                pytorch.step(steps)
                ours, theirs = [], []
                for _ in range(rounds):
                    ours.append(tau.step(steps))
                    theirs.append(pytorch.step(steps))
                tau.close()
                medians = statistics.median(ours), statistics.median(theirs)
                print(
                    f"{name:<17} {precision:<9} {minibatch:>9} {medians[0]:>8.3f} {medians[1]:>8.3f} "
                    f"{medians[0] / medians[1]:>6.2f}  ≤ {wanted[precision]}",
                    flush=True,
                )


main()
