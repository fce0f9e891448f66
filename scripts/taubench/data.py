"""Data: MNIST's files in this tree, and CSVs that are made up."""

import gzip
import math
import pathlib
import random
import struct

MNIST = pathlib.Path(__file__).resolve().parents[2] / "worker" / "data"


def read_idx(name):
    """One of MNIST's files: its dimensions, and its bytes."""
    return parse_idx(gzip.decompress((MNIST / f"{name}.gz").read_bytes()))


def parse_idx(data):
    """The dimensions and the values of an idx file of bytes."""
    if data[:3] != b"\0\0\x08":
        raise ValueError("this is no idx file of bytes")
    start = 4 + 4 * data[3]
    dimensions = struct.unpack(f">{data[3]}I", data[4:start])
    if len(data) - start != math.prod(dimensions):
        raise ValueError(f"an idx file of {dimensions} has {len(data) - start} values")
    return dimensions, bytearray(data[start:])


def write_many_classes(path, inputs, classes):
    """Every one of many classes has two rows."""
    with path.open("w") as file:
        for row in range(2 * classes):
            values = ",".join(str(row * (column + 3) * 7919 % 10) for column in range(inputs))
            file.write(f"{values},c{row % classes:05}\n")


def write_colours(folder):
    """Small pictures of noise in CIFAR-10's binary files."""
    rng = random.Random(3)
    for name in [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]:
        with (folder / f"{name}.bin").open("wb") as file:
            for row in range(400):
                file.write(bytes([row % 10]) + rng.randbytes(3 * 32 * 32))


def write_clouds(path, rows):
    """26 classes of 40 inputs, four clouds of points in each, with noise as large as the distance between clouds."""
    classes, inputs, clouds, noise = 26, 40, 4, 1.6
    rng = random.Random(7)
    centres = [[[rng.gauss(0, 1) for _ in range(inputs)] for _ in range(clouds)] for _ in range(classes)]
    with path.open("w") as file:
        for row in range(rows):
            label = row % classes
            centre = rng.choice(centres[label])
            values = ",".join(f"{c + rng.gauss(0, noise):.4f}" for c in centre)
            file.write(f"{values},class{label}\n")
