"""Data sets that others have packed: they are fetched, unpacked and written as files that Tau reads."""

import shutil
import sys

from taubench.errors import Missing
from taubench.processes import must, say

PACKAGES = ["dataset-fashion-mnist", "r-cran-mlbench"]
IMAGES = "usr/share/datasets/fashion-mnist"
TABLES = "usr/lib/R/site-library/mlbench/data"
# File, object in it, its label, and what it is called here.
OBJECTS = [("LetterRecognition", "lettr", "letters"), ("Satellite", "classes", "satellite")]
LIMIT = 600.0
# Reads R's files, and writes each table with its label last.
CONVERT = """
import sys, warnings
import rdata
warnings.simplefilter("ignore")
source, name, label, target = sys.argv[1:]
table = rdata.read_rda(source)[name]
columns = [column for column in table.columns if column != label] + [label]
table[columns].to_csv(target, index=False)
"""


def fetch(folder, scratch):
    """Writes all data sets into a folder. What is there already stays."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "fashion").exists() or any(not (folder / f"{name}.csv").exists() for *_, name in OBJECTS):
        unpack(scratch)
    if not (folder / "fashion").exists():
        shutil.copytree(scratch / IMAGES, folder / "fashion")
        say(f"{folder}/fashion")
    missing = [entry for entry in OBJECTS if not (folder / f"{entry[2]}.csv").exists()]
    if missing:
        say("fetching what reads R's files …")
        run([sys.executable, "-m", "pip", "install", "--quiet", "--target", scratch / "python", "rdata"])
    for source, label, name in missing:
        part = scratch / f"{name}.csv"
        file = scratch / TABLES / f"{source}.rda"
        path = {"PYTHONPATH": str(scratch / "python")}
        run([sys.executable, "-c", CONVERT, file, source, label, part], environment=path)
        shutil.move(part, folder / f"{name}.csv")
        say(f"{folder}/{name}.csv")


def unpack(scratch):
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        raise Missing("this machine has no apt-get and dpkg-deb, which the data sets come with")
    say(f"fetching {', '.join(PACKAGES)} …")
    run(["apt-get", "download", "-q", *PACKAGES], cwd=scratch)
    for package in sorted(scratch.glob("*.deb")):
        run(["dpkg-deb", "-x", package, scratch])


def run(words, **options):
    must([str(word) for word in words], LIMIT, **options)
