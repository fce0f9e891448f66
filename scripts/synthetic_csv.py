#!/usr/bin/env python3
"""Writes a CSV of many classes that a straight line does not tell apart: synthetic_csv.py FILE [ROWS].

26 classes, 40 inputs, four clouds of points per class, with noise as large as the distance between clouds.
"""

import random
import sys

CLASSES, INPUTS, CLOUDS, NOISE = 26, 40, 4, 1.6


def main():
    # A name that looks like a flag is a slip of the hand, and a file that is hard to remove.
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        print("give a file name that does not begin with a dash: synthetic_csv.py FILE [ROWS]", file=sys.stderr)
        sys.exit(2)
    rows = int(sys.argv[2]) if len(sys.argv) > 2 else 25_000
    rng = random.Random(7)
    centres = [[[rng.gauss(0, 1) for _ in range(INPUTS)] for _ in range(CLOUDS)] for _ in range(CLASSES)]
    with open(sys.argv[1], "w") as file:
        for row in range(rows):
            label = row % CLASSES
            centre = rng.choice(centres[label])
            values = ",".join(f"{c + rng.gauss(0, NOISE):.4f}" for c in centre)
            file.write(f"{values},class{label}\n")


main()
