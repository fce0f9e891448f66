"""Loads Tau's model files into torch.nn.Sequential; writes accuracy on held-out images and digest, as JSON lines.

The images are MNIST's, or those of an NPZ file.

usage: python -m taubench.torch_side.models [--data FILE.npz] MODEL.safetensors…
"""

import argparse
import json

import numpy
import torch
from safetensors.torch import load_file

from taubench.torch_side import mnist
from taubench.torch_side.sequential import load, takes_vectors

MASK = (1 << 64) - 1


def digest(tensors):
    """The weights' digest, recomputed from the file alone: tensors by key, row-major. What is measured is no weight."""
    weights = [key for key in sorted(tensors) if ".running_" not in key]
    flat = numpy.concatenate([tensors[key].numpy().ravel() for key in weights])
    counts = (flat.astype(numpy.float64) * 2**20).astype(numpy.int64).astype(numpy.uint64)
    with numpy.errstate(over="ignore"):
        z = numpy.arange(len(flat), dtype=numpy.uint64) + numpy.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
        factor = (z ^ (z >> numpy.uint64(31))) | numpy.uint64(1)
        return f"{int((factor * counts).sum()) & MASK:016x}"


def held_out(file):
    """Images with their channels, and labels."""
    if not file:
        return mnist.images("t10k").unsqueeze(1), mnist.labels("t10k")
    arrays = numpy.load(file)
    return torch.from_numpy(arrays["x_test"]).float() / 255, torch.from_numpy(arrays["y_test"]).long()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--data")
    options = parser.parse_args()
    images, labels = held_out(options.data)
    for path in options.models:
        net, about = load(path)
        layers, tensors = about["job"]["model"], load_file(path)
        x = images.flatten(1) if takes_vectors(net) else images
        with torch.no_grad():
            found = torch.cat([net(part).argmax(1) for part in x.split(500)])
        accuracy = (found == labels).float().mean().item()
        print(json.dumps({"layers": layers, "accuracy": accuracy, "digest": digest(tensors)}), flush=True)


if __name__ == "__main__":
    main()
