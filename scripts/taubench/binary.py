"""The tau binary as the source of what exists: its help, and its answers to values that it refuses."""

import os

from taubench.errors import Failed, Missing
from taubench.processes import call, must

LIMIT = 30.0


def find(root, given):
    """Returns the given binary, or the newest one that cargo has built under the root."""
    paths = [given] if given else [root / "target" / profile / "tau" for profile in ("debug", "release")]
    found = [path for path in paths if path.is_file() and os.access(path, os.X_OK)]
    if not found:
        where = f"{given} is no program" if given else f"there is no tau binary under {root}/target"
        raise Missing(f"{where}: build it with 'cargo build', or name one with --tau")
    return max(found, key=lambda path: path.stat().st_mtime).resolve()


class Binary:
    """A tau binary that is asked, and trains nothing."""

    def __init__(self, path):
        self.path = str(path)

    def help(self, *command):
        """Returns the help of a command."""
        return must([self.path, *command, "--help"], LIMIT)

    def refusal(self, key):
        """Returns the error for a value of a job key that is never valid; the error lists all valid ones."""
        done = call([self.path, "train", f"--{key}", "?"], LIMIT, capture_output=True)
        if done.returncode != 2:
            raise Failed(f"'tau train --{key} ?' ended with {done.returncode}, but 2 was expected")
        return done.stderr.strip()
