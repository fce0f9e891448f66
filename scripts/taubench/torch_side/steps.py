"""PyTorch's training steps on request, in the manner of Tau's step timer.

Every line of standard input is a number of steps to make; every line of standard output says the milliseconds of each
of them. On a GPU the line holds one number, the mean: PyTorch is waited for only at the end, which helps it.
"""

import argparse
import sys
import time

import torch

from taubench.torch_side.muon import Muon
from taubench.torch_side.sequential import sequential, takes_vectors


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("layers")
    parser.add_argument("shape", type=lambda text: tuple(map(int, text.split("x"))))
    parser.add_argument("classes", type=int)
    parser.add_argument("minibatch", type=int)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--momentum", type=float, default=0.0)
    parser.add_argument("--muon", action="store_true", help="orthogonal updates, as Tau makes them")
    parser.add_argument("--clip", type=float)
    parser.add_argument("--graph", action="store_true", help="record a step once, and replay it on the GPU")
    parser.add_argument("--gpu", choices=["f32", "tf32"], help="compute on the GPU, in this precision")
    return parser.parse_args()


class Training:
    """One minibatch, over and over. It lies where it is computed with."""

    def __init__(self, options):
        device = "cuda" if options.gpu else "cpu"
        net = sequential(options.layers, options.shape, options.classes)
        shape = (torch.Size(options.shape).numel(),) if takes_vectors(net) else options.shape
        self.net = net.to(device)
        self.x = torch.rand(options.minibatch, *shape, device=device)
        self.y = torch.randint(0, options.classes, (options.minibatch,), device=device)
        if options.muon:
            self.optimiser = Muon(self.net.parameters(), lr=options.lr)
        else:
            self.optimiser = torch.optim.SGD(self.net.parameters(), lr=options.lr, momentum=options.momentum)
        self.loss = torch.nn.CrossEntropyLoss()
        self.clip = options.clip

    def step(self):
        self.optimiser.zero_grad()
        self.loss(self.net(self.x), self.y).backward()
        if self.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.net.parameters(), self.clip)
        self.optimiser.step()

    def record(self):
        """Replaces the step by the replay of one, as PyTorch's documentation has it."""
        beside = torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            for _ in range(3):
                self.step()
        torch.cuda.current_stream().wait_stream(beside)
        graph = torch.cuda.CUDAGraph()
        self.optimiser.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph):
            self.loss(self.net(self.x), self.y).backward()
            self.optimiser.step()
        self.step = graph.replay

    def timed_each(self, count):
        times = []
        for _ in range(count):
            start = time.perf_counter()
            self.step()
            times.append((time.perf_counter() - start) * 1e3)
        return times

    def timed_together(self, count):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            self.step()
        torch.cuda.synchronize()
        return [(time.perf_counter() - start) * 1e3 / count]


def main():
    options = arguments()
    if options.gpu:
        torch.backends.cuda.matmul.allow_tf32 = options.gpu == "tf32"
        torch.backends.cudnn.allow_tf32 = options.gpu == "tf32"
    else:
        torch.set_num_threads(1)
    training = Training(options)
    if options.graph:
        training.record()
    timed = training.timed_together if options.gpu else training.timed_each
    for line in sys.stdin:
        print(*timed(int(line)), flush=True)


if __name__ == "__main__":
    main()
