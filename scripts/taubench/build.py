"""The programs that are measured: given by hand, or built by cargo."""

import json
import os
import pathlib
import shutil
import subprocess

from taubench.errors import Failed, Missing
from taubench.processes import call, say

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD_LIMIT = 3600.0


def program(path, hint):
    """The absolute path of a program that must be there."""
    path = pathlib.Path(path).resolve()
    if not (path.is_file() and os.access(path, os.X_OK)):
        raise Missing(f"{path} is no program: {hint}")
    return str(path)


def cargo(verb, *words):
    """Builds something of this tree; the paths of the programs among what was built, by name."""
    if not shutil.which("cargo"):
        raise Missing("cargo is not installed here: name programs that are built already with flags (see --help)")
    say(f"cargo {verb} {' '.join(words)}")
    command = ["cargo", verb, "--quiet", "--locked", "--message-format=json-render-diagnostics", *words]
    done = call(command, BUILD_LIMIT, cwd=ROOT, stdout=subprocess.PIPE)
    if done.returncode:
        raise Failed(f"'cargo {verb}' failed: see above")
    made = (json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))
    return {one["target"]["name"]: one["executable"] for one in made if one.get("executable")}


def tau(given):
    """The tau binary: the given one, or the release build, so that what is measured is this tree."""
    if given:
        return program(given, "give the path of a tau binary with --tau")
    if shutil.which("cargo"):
        return cargo("build", "--release", "--bin", "tau")["tau"]
    return program(
        ROOT / "target/release/tau", "build it with 'cargo build --release', or name a tau binary with --tau"
    )
