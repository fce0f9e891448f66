"""Trains MNIST with Tau's `muon` in PyTorch, as Tau's default job does it alone; prints the held-out accuracy."""

import argparse

import torch

from taubench.torch_side import mnist
from taubench.torch_side.muon import Muon
from taubench.torch_side.sequential import first_weights, sequential


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("layers")
    parser.add_argument("seed", type=int)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--minibatch", type=int, default=64)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    net = sequential(options.layers, (1, 28, 28))
    first_weights(net)
    x, y = mnist.images("train").flatten(1), mnist.labels("train")
    test_x, test_y = mnist.images("t10k").flatten(1), mnist.labels("t10k")
    optimiser = Muon(net.parameters(), lr=options.lr)
    loss = torch.nn.CrossEntropyLoss()
    steps = options.epochs * (len(x) // options.minibatch)
    done = 0
    for _ in range(options.epochs):
        order = torch.randperm(len(x))
        for at in range(0, len(x) - options.minibatch + 1, options.minibatch):
            indices = order[at : at + options.minibatch]
            optimiser.param_groups[0]["lr"] = options.lr * (1 - done / steps)
            optimiser.zero_grad()
            loss(net(x[indices]), y[indices]).backward()
            optimiser.step()
            done += 1
    net.eval()
    with torch.no_grad():
        print((net(test_x).argmax(1) == test_y).float().mean().item())


if __name__ == "__main__":
    main()
