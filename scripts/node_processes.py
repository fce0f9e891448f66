"""What the scripts that disturb nodes share: finding a node's workers, sending signals, and a small dataset."""

import os
import pathlib


class Failed(Exception):
    """One sentence about what was demanded and did not happen."""


def workers(node):
    """The processes of a node's workers, by their socket."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = pathlib.Path("/proc", entry, "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"worker" in words and any(f"/{node}.sock".encode() in word for word in words):
            found.append(int(entry))
    return found


def send(pid, number):
    """Whether there was such a process."""
    try:
        os.kill(pid, number)
        return True
    except ProcessLookupError:
        return False


def write_points(folder, rows):
    """Points on two sides of a line, as points.csv."""
    with open(os.path.join(folder, "points.csv"), "w") as file:
        file.write("x,y,side\n")
        for row in range(rows):
            side = row % 2
            file.write(f"{row * 37 % 101 / 50 - 1 + 3 * side},{row * 53 % 101 / 50 - 1 - 2 * side},side{side}\n")
