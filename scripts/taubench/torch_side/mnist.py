"""MNIST as tensors."""

import torch

from taubench.data import read_idx


def images(part):
    """The images of "train" or "t10k", as floats from 0 to 1."""
    return tensor(f"{part}-images-idx3-ubyte").float().div_(255)


def labels(part):
    return tensor(f"{part}-labels-idx1-ubyte").long()


def tensor(name):
    dimensions, values = read_idx(name)
    return torch.frombuffer(values, dtype=torch.uint8).reshape(dimensions)
