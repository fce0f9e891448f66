"""Hosts with cables between them, on one machine: tests/netlab for these scripts."""

import os
import subprocess

from taubench.build import ROOT
from taubench.command import CANNOT
from taubench.errors import Failed, Missing
from taubench.processes import call, last_line, undisturbed

NETLAB = str(ROOT / "tests" / "netlab")


class Lab:
    """Hosts that exist for the duration of the block; leaving it ends the processes on them."""

    def __init__(self, hosts):
        self.hosts = hosts
        # The variable is the only way in which netlab takes its name. A name of our own keeps us apart from other labs.
        os.environ["NETLAB"] = f"bench{os.getpid()}"

    def __enter__(self):
        self.do("up", self.hosts)
        return self

    def __exit__(self, *_):
        with undisturbed():
            # The session is another, so that Ctrl-C in a terminal does not reach it.
            call([NETLAB, "down"], 60, start_new_session=True, stderr=subprocess.DEVNULL)

    def do(self, *words):
        """Carries out one of netlab's actions, such as ("cut", 2)."""
        done = call([NETLAB, *map(str, words)], 60, capture_output=True)
        if done.returncode:
            raise (Missing if done.returncode == CANNOT else Failed)(last_line(done.stderr))

    @staticmethod
    def place(host):
        """What a command is put behind to run on a host."""
        return [NETLAB, "exec", str(host)]

    @staticmethod
    def address(host):
        return f"10.77.0.{host}"
