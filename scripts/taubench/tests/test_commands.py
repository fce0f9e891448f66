"""Every command explains itself, and says in one sentence what it lacks."""

import contextlib
import io
import runpy
import signal
import unittest
from pathlib import Path
from unittest import mock

from taubench.processes import SIGNALS

SCRIPTS = Path(__file__).resolve().parents[2]
COMMANDS = sorted(path for path in SCRIPTS.iterdir() if "-" in path.name)


def carry_out(path, *words):
    """Runs a command within this process, which is quick: its exit code, and what it wrote."""
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    told, errors = io.StringIO(), io.StringIO()
    try:
        argv = mock.patch("sys.argv", [str(path), *words])
        with argv, contextlib.redirect_stdout(told), contextlib.redirect_stderr(errors):
            runpy.run_path(str(path), run_name="__main__")
    except SystemExit as ended:
        return ended.code, told.getvalue(), errors.getvalue()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    raise AssertionError(f"{path.name} came back")


class Commands(unittest.TestCase):
    def test_help_says_how_long_it_takes_and_what_it_needs(self):
        self.assertIn("bench-cores", [path.name for path in COMMANDS])
        for path in COMMANDS:
            with self.subTest(path.name):
                code, told, errors = carry_out(path, "--help")
                self.assertEqual((code, errors), (0, ""))
                self.assertIn("\nTakes: ", told)
                self.assertIn("\nNeeds: ", told)

    def test_a_missing_binary_is_one_sentence(self):
        for words in (["--tau", "/nowhere/tau"], ["/nowhere/tau"]):
            code, told, errors = carry_out(SCRIPTS / "bench-join", *words)
            self.assertEqual((code, told), (77, ""))
            self.assertEqual(errors, "error: /nowhere/tau is no program: give the path of a tau binary with --tau\n")
