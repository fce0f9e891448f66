"""Computes outputs of a saved module: `python -m tau.outputs MODEL SOURCE SHAPE THREADS`.

Standard input holds minibatches: the number of samples, then the samples' numbers. For each minibatch standard output
gets the number of bytes of the outputs, then these. Counts have 64 bits, other numbers are 32-bit floats.
"""

import argparse
import math
import os
import sys

from tau.data import DataMistake, rows_of
from tau.files import NotAModel, opened

COUNT_BYTES, FLOAT_BYTES = 8, 4


def serve(net, shape, source, out):
    """Computes outputs of one minibatch after the other until there are no more."""
    import torch

    with torch.no_grad():
        while count := source.read(COUNT_BYTES):
            samples = int.from_bytes(count, sys.byteorder)
            numbers = bytearray(source.read(samples * math.prod(shape) * FLOAT_BYTES))
            inputs = torch.frombuffer(numbers, dtype=torch.float32).view(samples, *shape)
            outputs = rows_of(net(inputs), samples)
            out.write(len(outputs).to_bytes(COUNT_BYTES, sys.byteorder))
            out.write(outputs)
            out.flush()


def main():
    parser = argparse.ArgumentParser(prog="python -m tau.outputs", description=__doc__.partition("\n")[0])
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("source", metavar="SOURCE", help="the Python file whose model() was trained; it is run")
    parser.add_argument("shape", metavar="SHAPE", help="of a sample, with commas between its sides")
    parser.add_argument("threads", metavar="THREADS", type=int)
    options = parser.parse_args()
    # What the user's code prints is no output of the module.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        import torch

        torch.set_num_threads(options.threads)
        net, _ = opened(options.model, options.source)
        serve(net, [int(side) for side in options.shape.split(",")], sys.stdin.buffer, out)
    except (DataMistake, NotAModel, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
