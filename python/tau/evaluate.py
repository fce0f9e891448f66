"""Measures a saved module on the held-out samples of the file that made it: `python -m tau.evaluate MODEL SOURCE`.

Prints one line of JSON: means under their names, and the numbers of samples.
"""

import argparse
import contextlib
import json
import math
import sys

from tau.data import Data, DataMistake, measured
from tau.files import NotAModel, opened

MINIBATCH = 128


def evaluate(path, source):
    """Returns the means of all held-out samples by their names (None if not finite), their number, and that of all."""
    import torch

    net, code = opened(path, source)
    if not callable(getattr(code, "data", None)):
        raise DataMistake(f"{source} has no function data(), so that there is nothing to measure the model on")
    samples = Data.of(code)
    first, count = len(samples.train), len(samples.test)
    # Sums by name, and the number of samples that each is over: a minibatch need not have all names.
    sums = {}
    with torch.no_grad():
        for start in range(0, count, MINIBATCH):
            positions = list(range(first + start, first + min(start + MINIBATCH, count)))
            for name, mean in measured(code, net, samples.batch(positions)):
                total, of = sums.get(name, (0.0, 0))
                sums[name] = total + mean * len(positions), of + len(positions)
    means = {name: total / of if math.isfinite(total) else None for name, (total, of) in sums.items()}
    return means, count, first + count


def main():
    parser = argparse.ArgumentParser(prog="python -m tau.evaluate", description=__doc__.partition("\n")[0])
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("source", metavar="SOURCE", help="the Python file whose model() was trained; it is run")
    options = parser.parse_args()
    try:
        # What the user's code prints is not the result.
        with contextlib.redirect_stdout(sys.stderr):
            means, samples, samples_in_data = evaluate(options.model, options.source)
    except (DataMistake, NotAModel, OSError) as error:
        sys.exit(f"error: {error}")
    print(json.dumps({"means": means, "samples": samples, "samples_in_data": samples_in_data}))


if __name__ == "__main__":
    main()
