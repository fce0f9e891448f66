"""The two ways in which a command ends early. `command.run` prints either as one line."""


class Failed(Exception):
    """One sentence about what was demanded and did not happen."""


class Missing(Exception):
    """One sentence about what this machine lacks, and how to get it."""
