"""Loads Tau's model files into torch.nn.Sequential and compares accuracies and digests on MNIST's test images."""

import gzip
import json
import struct
import subprocess
import sys

import numpy
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from torch_sequential import sequential

FOLDER = "worker/data"
MASK = (1 << 64) - 1


def idx(name):
    data = gzip.open(f"{FOLDER}/{name}.gz").read()
    dims = struct.unpack(f">{data[3]}I", data[4 : 4 + 4 * data[3]])
    return numpy.frombuffer(data, numpy.uint8, offset=4 + 4 * data[3]).reshape(dims)


def digest(tensors):
    """The design's digest, recomputed from the file alone: tensors by key, row-major."""
    flat = numpy.concatenate([tensors[key].numpy().ravel() for key in sorted(tensors)])
    counts = (flat.astype(numpy.float64) * 2**20).astype(numpy.int64).astype(numpy.uint64)
    with numpy.errstate(over="ignore"):
        z = numpy.arange(len(flat), dtype=numpy.uint64) + numpy.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
        factor = (z ^ (z >> numpy.uint64(31))) | numpy.uint64(1)
        return f"{int((factor * counts).sum()) & MASK:016x}"


def main():
    tau, models = sys.argv[1], sys.argv[2:]
    images = torch.from_numpy(idx("t10k-images-idx3-ubyte").astype(numpy.float32) / 255)
    labels = torch.from_numpy(idx("t10k-labels-idx1-ubyte").astype(numpy.int64))
    differs = False
    for path in models:
        with safe_open(path, "pt") as file:
            metadata = json.loads(file.metadata()["tau"])
        layers = metadata["job"]["model"]
        net = sequential(layers, (1, 28, 28))
        tensors = load_file(path)
        net.load_state_dict(tensors)
        net.eval()
        x = images.flatten(1) if isinstance(net[0], torch.nn.Linear) else images.unsqueeze(1)
        with torch.no_grad():
            found = torch.cat([net(part).argmax(1) for part in x.split(500)])
        theirs = (found == labels).float().mean().item()
        command = [tau, "evaluate", path, "--data", "builtin:mnist", "--json"]
        ours = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        same = f"{theirs:.4f}" == f"{ours['accuracy']:.4f}"
        recomputed = digest(tensors)
        differs |= not same or recomputed != ours["digest"]
        print(f"{path}\n  {layers}")
        print(f"  accuracy: torch {theirs:.4f}, tau {ours['accuracy']:.4f}; digest: file {recomputed}, tau {ours['digest']}")
    sys.exit(1 if differs else 0)


main()
