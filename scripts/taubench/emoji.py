"""A set of small colour pictures that anybody can get: emoji as four makers draw them, by what they show."""

import hashlib
import json
import re
import shutil
import sys
import tarfile

from taubench.errors import Missing
from taubench.processes import must, say

MAKERS = ["apple", "facebook", "google", "twitter"]
LIMIT = 600.0
# Test pictures are left out with all makers' drawings of them, since the drawings of one picture resemble each other.
HELD_OUT = 5
# These are no pictures of anything, but colours of skin and hair.
LEFT_OUT = "Component"


# Writes all pictures of a folder as arrays of bytes, 32 by 32, on black.
CONVERT = """
import pathlib, sys
import numpy
from PIL import Image
source, target = map(pathlib.Path, sys.argv[1:])
arrays = {}
for part in ["train", "test"]:
    classes = sorted(folder.name for folder in (source / part).iterdir())
    files = [(file, label) for label, name in enumerate(classes) for file in sorted((source / part / name).iterdir())]
    x = numpy.zeros((len(files), 3, 32, 32), numpy.uint8)
    for at, (file, _) in enumerate(files):
        picture = Image.open(file).convert("RGBA")
        black = Image.new("RGBA", picture.size, (0, 0, 0, 255))
        small = Image.alpha_composite(black, picture).convert("RGB").resize((32, 32), Image.BILINEAR)
        x[at] = numpy.asarray(small).transpose(2, 0, 1)
    arrays |= {f"x_{part}": x, f"y_{part}": numpy.array([label for _, label in files], numpy.int64)}
numpy.savez_compressed(target, **arrays)
"""


def fetch(folder, scratch):
    """Writes `emoji/train` and `emoji/test`, with a folder for each category, and `emoji.npz`. What is there stays."""
    if not (folder / "emoji").exists():
        fetch_pictures(folder, scratch)
    if not (folder / "emoji.npz").exists():
        say("fetching what reads pictures …")
        pip = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--target",
            str(scratch / "python"),
            "pillow",
            "numpy",
        ]
        must(pip, LIMIT)
        part = scratch / "emoji.npz"
        words = [sys.executable, "-c", CONVERT, str(folder / "emoji"), str(part)]
        must(words, LIMIT, environment={"PYTHONPATH": str(scratch / "python")})
        shutil.move(part, folder / "emoji.npz")
        say(f"{folder}/emoji.npz")


def fetch_pictures(folder, scratch):
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
