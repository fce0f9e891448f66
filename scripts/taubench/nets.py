"""The networks that are measured, in Tau's own words."""

from typing import NamedTuple


class Net(NamedTuple):
    """A network, and the shape and the classes of the samples that it is for."""

    name: str
    layers: str
    shape: tuple
    classes: int


PERCEPTRON = Net("784-1024-1024-10", "dense 1024, relu, dense 1024, relu, dense 10", (1, 28, 28), 10)
# The network of the report on Downpour SGD.
CNN = Net(
    "Downpour CNN",
    "conv 32 3x3, relu, conv 64 3x3, relu, maxpool 2, dropout 0.25, flatten, dense 128, relu, dropout 0.25, dense 10",
    (1, 28, 28),
    10,
)
# 34.5 million weights, for GPUs.
DEEP = Net("440-2048x5-8192", ", ".join(["dense 2048, relu"] * 5 + ["dense 8192"]), (440,), 8192)
# 34 million weights: a large snapshot.
LARGE = Net("784-4096-4096-3400-10", "dense 4096, relu, dense 4096, relu, dense 3400, relu, dense 10", (1, 28, 28), 10)
