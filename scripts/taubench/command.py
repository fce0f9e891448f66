"""What every command line has in common: help, the tau binary, signals, and one sentence for what goes wrong."""

import argparse
import sys

from taubench.errors import Failed, Missing
from taubench.processes import end_on_signals

# The same number as that of tests/netlab, so that callers can tell "this machine cannot" from "it went wrong".
CANNOT = 77


def parser(text):
    """A parser whose help is the command's docstring, with its lines as they are."""
    return argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)


def add_tau(options, positional=False):
    """The flag that names the binary. Some commands also take it as their last word."""
    default = "the release build of this tree, brought up to date with cargo where there is one"
    options.add_argument("--tau", metavar="FILE", help=f"the tau binary [default: {default}]")
    if positional:
        options.add_argument("tau", metavar="TAU", nargs="?", default=argparse.SUPPRESS, help="the same as --tau")


def add_python(options, without):
    """The flag that names a Python with PyTorch; `without` says what happens if none is found."""
    found = f"that of target/pytorch, else python3; {without}"
    options.add_argument("--python", metavar="FILE", help=f"a Python 3.9+ with PyTorch [default: {found}]")


def add_job_flags(options):
    options.add_argument(
        "--job-flags",
        metavar="FLAGS",
        type=str.split,
        default=[],
        help="further job flags for Tau, as one word: --job-flags='--density 0.01 --seed 2'",
    )


def numbers(text):
    """A list of whole numbers with commas between them, in rising order."""
    return sorted(int(word) for word in text.split(","))


def positive(text):
    """A number of something that there must be one of."""
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def run(main):
    """Calls a command's main function, and ends this program with what it returns as the exit code."""
    end_on_signals()
    try:
        sys.exit(main())
    except Missing as lacking:
        print(f"error: {lacking}", file=sys.stderr)
        sys.exit(CANNOT)
    except Failed as failure:
        print(f"error: {failure}", file=sys.stderr)
        sys.exit(1)
