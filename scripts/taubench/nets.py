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


def resnet(blocks):
    """The residual network of 6n + 2 layers for small colour images, with projections where shapes differ."""

    def block(channels, stride):
        first = f"conv {channels} 3x3{' stride 2' if stride == 2 else ''} pad 1 nobias"
        second = f"conv {channels} 3x3 pad 1 nobias"
        return f"residual [ {first}, batchnorm, relu, {second}, batchnorm ], relu"

    layers = ["conv 16 3x3 pad 1 nobias, batchnorm, relu"]
    for stage, channels in enumerate((16, 32, 64)):
        layers += [block(channels, 2 if stage and not number else 1) for number in range(blocks)]
    return ", ".join([*layers, "globalavgpool, dense"])


RESNET = Net("ResNet-20", resnet(3), (3, 32, 32), 10)
