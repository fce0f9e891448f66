"""Trains a network on pictures in an NPZ file, by Tau's recipe; prints the held-out accuracy of every seed.

usage: python -m taubench.torch_side.pictures FILE LAYERS --seeds 1,2 …
"""

import argparse
import math

import numpy
import torch
from torch import nn

from taubench.torch_side.sequential import first_weights, sequential


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file")
    parser.add_argument("layers")
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--weight-decay", type=float, default=0.0)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--minibatch", type=int, default=128)
    parser.add_argument("--crop", type=int, default=4)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    arrays = numpy.load(options.file)
    x, y, test_x, test_y = (
        torch.from_numpy(arrays[name]).to(device) for name in ["x_train", "y_train", "x_test", "y_test"]
    )
    for seed in options.seeds.split(","):
        torch.manual_seed(int(seed))
        net = train(x.float() / 255, y.long(), options)
        print(accuracy(net, test_x.float() / 255, test_y.long()), flush=True)


def train(x, y, options):
    net = sequential(options.layers, x.shape[1:], outputs=int(y.max()) + 1).to(x.device)
    first_weights(net)
    optimiser = torch.optim.SGD(net.parameters(), lr=options.lr, momentum=options.momentum)
    loss = nn.CrossEntropyLoss()
    steps, done = options.epochs * math.ceil(len(x) / options.minibatch), 0
    for _ in range(options.epochs):
        for indices in torch.randperm(len(x), device=x.device).split(options.minibatch):
            rate = options.lr * (1 - done / steps)
            optimiser.param_groups[0]["lr"] = rate
            optimiser.zero_grad()
            loss(net(varied(x[indices], options.crop)), y[indices]).backward()
            # Weights shrink apart from their gradients, as in Tau.
            with torch.no_grad():
                for parameter in net.parameters():
                    parameter.mul_(1 - rate * options.weight_decay)
            optimiser.step()
            done += 1
    return net


def varied(x, crop):
    """Half of the pictures mirrored, and each shifted by some pixels; what comes in is black."""
    count, _, height, width = x.shape
    x = torch.where(torch.rand(count, 1, 1, 1, device=x.device) < 0.5, x.flip(3), x)
    x = nn.functional.pad(x, [crop] * 4)
    rows, columns = (torch.randint(0, 2 * crop + 1, (count, 1), device=x.device) for _ in range(2))
    rows = rows + torch.arange(height, device=x.device)
    columns = columns + torch.arange(width, device=x.device)
    picked = torch.arange(count, device=x.device)[:, None, None]
    return x.permute(0, 2, 3, 1)[picked, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def accuracy(net, x, y):
    net.eval()
    with torch.no_grad():
        found = torch.cat([net(part).argmax(1) for part in x.split(500)])
    return (found == y).float().mean().item()


if __name__ == "__main__":
    main()
