# tau: model
"""A small residual network with batch norms, which classifies images by the direction of their stripes.

tau train --model py:examples/modules/resnet.py --nodes 3 --epochs 5
"""

import torch
from torch import nn
from torch.utils.data import TensorDataset

SIDE, CLASSES, TRAIN, TEST = 16, 8, 8192, 1024


class Block(nn.Module):
    def __init__(self, channels, out, stride):
        super().__init__()
        first = nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU()
        self.body = nn.Sequential(*first, nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out))
        self.skip = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        return (self.body(x) + self.skip(x)).relu()

# Nodes compare only the number of samples, because releases of PyTorch round differently.
fingerprint = "counts"


def model():
    blocks = Block(3, 16, 1), Block(16, 32, 2), Block(32, 64, 2)
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, CLASSES))


def data():
    """Stripes of any width and colour under noise. For real images, use torchvision.datasets.CIFAR10, for example."""
    drawn = torch.Generator().manual_seed(1)  # All nodes must have the same data.
    labels = torch.randint(CLASSES, (TRAIN + TEST,), generator=drawn)
    speed, phase = torch.rand(2, TRAIN + TEST, 1, 1, generator=drawn)
    angle, at = 3.1416 / CLASSES * labels.view(-1, 1, 1), torch.arange(SIDE)
    stripes = torch.sin((0.5 + speed) * (at * angle.cos() + at.view(-1, 1) * angle.sin()) + 6.28 * phase)
    colour, noise = (torch.rand(TRAIN + TEST, 3, side, side, generator=drawn) - 0.5 for side in (1, SIDE))
    pictures = stripes.unsqueeze(1) * colour + 2 * noise
    return TensorDataset(pictures[:TRAIN], labels[:TRAIN]), TensorDataset(pictures[TRAIN:], labels[TRAIN:])


def loss(net, batch):
    pictures, labels = batch
    return nn.functional.cross_entropy(net(pictures), labels)


def evaluate(net, batch):
    pictures, labels = batch
    outputs = net(pictures)
    right = (outputs.argmax(1) == labels).float().mean()
    return {"loss": nn.functional.cross_entropy(outputs, labels), "accuracy": right}
