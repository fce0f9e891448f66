"""Finding a Python that has PyTorch, or making one, and the commands of what runs in it (`torch_side`)."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
from typing import NamedTuple, Optional

from taubench.build import ROOT
from taubench.errors import Missing
from taubench.processes import call, last_line, say

VENV = ROOT / "target" / "pytorch"
SCRIPTS = ROOT / "scripts"
PACKAGES = ["torch", "numpy", "safetensors"]
# A first import may have to read gigabytes from a disk.
PROBE_LIMIT = 300.0
INSTALL_LIMIT = 3600.0
PROBE = """
import importlib, json, sys
import torch, torch.distributed
for name in sys.argv[1:]:
    importlib.import_module(name)
gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
gloo = torch.distributed.is_available() and torch.distributed.is_gloo_available()
print(json.dumps({"version": torch.__version__, "gloo": gloo, "gpu": gpu}))
"""


class PyTorch(NamedTuple):
    """A Python with PyTorch, and what that can do."""

    python: str
    version: str
    gloo: bool
    gpu: Optional[str]

    def command(self, module, *words):
        """The words that run a module of `torch_side`."""
        return [self.python, "-m", f"taubench.torch_side.{module}", *map(str, words)]

    @staticmethod
    def environment():
        """What a command of `torch_side` needs to be found, whatever its working folder."""
        return {"PYTHONPATH": os.pathsep.join(filter(None, [str(SCRIPTS), os.environ.get("PYTHONPATH")]))}


def probe(python, modules):
    """What a Python has of PyTorch; None, with the reason, if it has not all these modules."""
    path = shutil.which(str(python))
    if not path:
        return None, f"{python} is no program"
    # The path stays as it was given: a link into a virtual environment must not be followed out of it.
    path = os.path.abspath(path)  # noqa: PTH100
    done = call([path, "-c", PROBE, *modules], PROBE_LIMIT, capture_output=True)
    if done.returncode:
        return None, f"{python} has no working PyTorch ({last_line(done.stderr)})"
    return PyTorch(path, **json.loads(done.stdout.splitlines()[-1])), None


def find(given, modules=()):
    """The PyTorch of the given Python, of target/pytorch or of the usual python3; None if there is none."""
    for python in [given] if given else [VENV / "bin" / "python", "python3"]:
        torch, why = probe(python, modules)
        if torch:
            return torch
        if given:
            raise Missing(f"{why}: name another with --python")
    return None


def find_gloo(given):
    """As `find`, for what has gloo, over which processes on CPUs speak to each other."""
    torch = find(given)
    if torch and given and not torch.gloo:
        raise Missing(f"the PyTorch of {given} has no gloo: name another with --python")
    return torch if torch and torch.gloo else None


def find_or_install(given, modules=()):
    """As `find`; where there is none it is installed under target/, which takes minutes and gigabytes."""
    torch = find(given, modules)
    if torch:
        return torch
    say(f"installing {', '.join(PACKAGES)} into {VENV.relative_to(ROOT)} (gigabytes: this takes minutes) …")
    steps = [[sys.executable, "-m", "venv", VENV], [VENV / "bin" / "pip", "install", "--quiet", *PACKAGES]]
    for step in steps:
        words = [str(word) for word in step]
        done = call(words, INSTALL_LIMIT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode:
            why = last_line(done.stdout)
            raise Missing(f"PyTorch could not be installed ({why}): name a Python that has it with --python")
    torch, why = probe(pathlib.Path(VENV, "bin", "python"), modules)
    if not torch:
        raise Missing(f"PyTorch was installed, but {why}: remove {VENV} and try again")
    return torch
