"""Processes are read with limits, and nothing is left of them."""

import os
import signal
import sys
import time
import unittest

from taubench.errors import Failed, Missing
from taubench.processes import Processes, call, must, until


def python(text):
    return [sys.executable, "-S", "-c", text]


def soon():
    return time.monotonic() + 20


class Reading(unittest.TestCase):
    def test_lines_are_read_until_the_end(self):
        with Processes() as processes:
            told = processes.start(python("print('ready'); print('{\"a\": 1}'); print('{\"a\": 2}')"))
            self.assertEqual(told.next_line(soon()), "ready\n")
            self.assertEqual(told.next_line(soon()), '{"a": 1}\n')
            self.assertEqual(told.last(soon()), {"a": 2})
            self.assertEqual(told.wait(20), 0)

    def test_an_early_end_says_why(self):
        with Processes() as processes:
            told = processes.start(python("import sys; sys.exit('error: no disk')"), name="node 1")
            with self.assertRaisesRegex(Failed, r"'node 1' ended early: error: no disk"):
                told.next_line(soon())

    def test_silence_has_a_limit(self):
        with Processes() as processes:
            silent = processes.start(["sleep", "600"])
            with self.assertRaisesRegex(Failed, "no word in time from 'sleep 600'"):
                silent.line(time.monotonic())
            with self.assertRaisesRegex(Failed, "took more than 0 s"):
                call(["sleep", "600"], 0.01)
            with self.assertRaisesRegex(Failed, "0 s later still not: the moon is blue"):
                until("the moon is blue", lambda: False, 0.01, pause=0.001)

    def test_a_process_can_be_spoken_to(self):
        with Processes() as processes:
            echo = processes.start(["cat"], talk=True)
            echo.write("3\n")
            self.assertEqual(echo.next_line(soon()), "3\n")


class Leaving(unittest.TestCase):
    def test_nothing_is_left_even_after_an_error(self):
        with self.assertRaises(ZeroDivisionError), Processes() as processes:
            stopped = processes.start(["sleep", "600"])
            os.kill(stopped.pid, signal.SIGSTOP)
            folder = processes.folder
            raise ZeroDivisionError
        self.assertFalse(stopped.lives())
        self.assertFalse(folder.exists())

    def test_what_is_missing_or_fails_is_one_sentence(self):
        with Processes() as processes, self.assertRaisesRegex(Missing, "'/nowhere/tau' is not installed here"):
            processes.start(["/nowhere/tau"])
        with self.assertRaisesRegex(Missing, "'/nowhere/tau' is not installed here"):
            call(["/nowhere/tau"], 1)
        with self.assertRaisesRegex(Failed, "failed: error: no"):
            must(python("import sys; sys.exit('error: no')"), 20)
