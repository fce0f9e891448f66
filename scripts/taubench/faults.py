"""Which faults hit which node, and when: drawn before a run begins, so that a seed makes the same ones again."""

from typing import NamedTuple

EVERY, AWAY, STILL = 5.0, 3.0, 6.0
# How often a fault is a kill; otherwise the node stands still.
KILLS = 7 / 16


class Fault(NamedTuple):
    """A node is struck at one moment and mended at a later one, both in seconds from the beginning."""

    at: float
    mended: float
    node: int
    kill: bool


def timetable(rng, nodes, seconds):
    """A fault every five seconds. The first node is never hit, nor one that has not been mended yet."""
    faults, at = [], EVERY
    while at < seconds:
        away = {fault.node for fault in faults if fault.mended > at}
        free = [node for node in range(1, nodes) if node not in away]
        if free:
            node, kill = rng.choice(free), rng.random() < KILLS
            faults.append(Fault(at, at + (AWAY if kill else STILL), node, kill))
        at += EVERY
    return faults
