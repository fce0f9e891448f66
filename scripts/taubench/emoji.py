"""A set of small colour pictures that anybody can get: emoji as four makers draw them, by what they show."""

import hashlib
import json
import re
import shutil
import tarfile

from taubench.errors import Missing
from taubench.processes import must, say

MAKERS = ["apple", "facebook", "google", "twitter"]
LIMIT = 600.0
# One picture of so many is held out, with all makers' drawings of it: whoever knows another's has seen it.
HELD_OUT = 5
# These are no pictures of anything, but colours of skin and hair.
LEFT_OUT = "Component"


def fetch(folder, scratch):
    """Writes `emoji/train` and `emoji/test`, with a folder for each category. What is there already stays."""
    if (folder / "emoji").exists():
        return
    if not shutil.which("npm"):
        raise Missing("this machine has no npm, which the pictures of emoji come with")
    made = scratch / "emoji"
    for maker in MAKERS:
        package = f"emoji-datasource-{maker}"
        say(f"fetching {package} …")
        name = must(["npm", "pack", "--silent", package], LIMIT, cwd=scratch).split()[-1]
        with tarfile.open(scratch / name) as archive:
            unpack(archive, maker, made)
        (scratch / name).unlink()
    folder.mkdir(parents=True, exist_ok=True)
    shutil.move(made, folder / "emoji")
    say(f"{folder}/emoji")


def unpack(archive, maker, made):
    """Writes one maker's pictures, without the variants that differ by a colour only."""
    base = "package"
    entries = json.load(archive.extractfile(f"{base}/emoji.json"))
    there = set(archive.getnames())
    for entry in entries:
        name = f"{base}/img/{maker}/64/{entry['image']}"
        if entry["category"] == LEFT_OUT or name not in there:
            continue
        target = made / part(entry["unified"]) / slug(entry["category"])
        target.mkdir(parents=True, exist_ok=True)
        (target / f"{maker}-{entry['image']}").write_bytes(archive.extractfile(name).read())


def part(unified):
    """Whether a picture is for training or held out: by its name alone, so that it is the same everywhere."""
    drawn = hashlib.sha256(unified.encode()).digest()[0]
    return "test" if drawn % HELD_OUT == 0 else "train"


def slug(category):
    """A category as a folder's name."""
    return "-".join(re.findall("[a-z]+", category.lower()))
