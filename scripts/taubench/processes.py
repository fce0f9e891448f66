"""Child processes: every wait for one has a limit, and nothing is left of them, however their block is left."""

import contextlib
import json
import os
import pathlib
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

from taubench.errors import Failed, Missing

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# How long processes are given to end by themselves before they are killed.
PATIENCE = 10.0


def say(text):
    """Progress, which goes to standard error: standard output is for what was measured."""
    print(text, file=sys.stderr, flush=True)


def end_on_signals():
    """Makes this program end in order at a signal, so that everything it started is ended too."""
    for number in SIGNALS:
        signal.signal(number, lambda number, _: sys.exit(128 + number))


@contextlib.contextmanager
def undisturbed():
    """Ignores signals while things are put in order: a second Ctrl-C must not stop that half-way."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def send(pid, number):
    """Sends a signal; whether there was such a process."""
    try:
        os.kill(pid, number)
        return True
    except ProcessLookupError:
        return False


def until(what, holds, limit, pause=0.05):
    """Waits for a condition."""
    deadline = time.monotonic() + limit
    while not holds():
        if time.monotonic() > deadline:
            raise Failed(f"{limit:.0f} s later still not: {what}")
        time.sleep(pause)


def call(command, limit, *, environment=None, **options):
    """Runs a command to its end, with nothing to read from; how it ended is for the caller to judge."""
    env = {**os.environ, **(environment or {})}
    try:
        return subprocess.run(command, stdin=subprocess.DEVNULL, text=True, timeout=limit, env=env, **options)
    except FileNotFoundError as lacking:
        raise Missing(f"'{command[0]}' is not installed here") from lacking
    except subprocess.TimeoutExpired as late:
        raise Failed(f"'{short(command)}' took more than {limit:.0f} s") from late


def must(command, limit, **options):
    """As `call`, but the command must succeed; what it wrote to standard output."""
    done = call(command, limit, capture_output=True, **options)
    if done.returncode:
        raise Failed(f"'{short(command)}' failed: {last_line(done.stderr or done.stdout)}")
    return done.stdout


def short(command):
    """A command's first two words, for messages."""
    return " ".join(pathlib.Path(word).name for word in command[:2])


def last_line(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it did not say why"


def objects(text):
    """The JSON objects of a text, one on each line."""
    return [json.loads(line) for line in text.splitlines()]


class Process:
    """A command whose lines are read as they come. What it writes to standard error goes to a file."""

    def __init__(self, command, folder, log, *, place=(), environment=None, talk=False, name=None):
        self.name = name or short(command)
        self.log = log
        words = [str(word) for word in (*place, *command)]
        with log.open("ab") as errors:
            try:
                # Each has a group of its own, so that Ctrl-C in a terminal reaches only us, who end the others.
                self.child = subprocess.Popen(
                    words,
                    stdin=subprocess.PIPE if talk else subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                    cwd=folder,
                    env={**os.environ, **(environment or {})},
                    start_new_session=True,
                )
            except FileNotFoundError as lacking:
                raise Missing(f"'{words[0]}' is not installed here") from lacking
        self.pid = self.child.pid
        self.lines = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        with self.child.stdout as lines:
            for line in lines:
                self.lines.put((time.monotonic(), line))
        self.lines.put(None)

    def lives(self):
        return self.child.poll() is None

    def line(self, deadline):
        """The next line, or None at the end."""
        while True:
            # An orphaned worker may hold the pipe open: the end is when the command itself has ended.
            ended = not self.lives()
            with contextlib.suppress(queue.Empty):
                came = self.lines.get(timeout=0.3)
                return came and came[1]
            if ended:
                return None
            if time.monotonic() >= deadline:
                raise Failed(f"no word in time from '{self.name}'")

    def next_line(self, deadline):
        """The next line; the end is a failure."""
        line = self.line(deadline)
        if line is None:
            raise Failed(f"'{self.name}' ended early: {self.complaint()}")
        return line

    def last(self, deadline):
        """The last line, as JSON, once the command has ended."""
        last = None
        while (line := self.line(deadline)) is not None:
            last = line
        try:
            return json.loads(last or "")
        except ValueError:
            raise Failed(f"no result from '{self.name}': {self.complaint()}") from None

    def come(self):
        """The objects that have come since the last call, each with the moment at which it came; waits for none."""
        found = []
        with contextlib.suppress(queue.Empty):
            while (came := self.lines.get_nowait()) is not None:
                found.append((came[0], json.loads(came[1])))
        return found

    def wait(self, limit):
        """The exit code."""
        try:
            return self.child.wait(limit)
        except subprocess.TimeoutExpired:
            raise Failed(f"'{self.name}' did not end within {limit:.0f} s") from None

    def complaint(self):
        return last_line(self.log.read_text(errors="replace"))

    def write(self, text):
        # A process that has ended is noticed by the caller that waits for its answer.
        with contextlib.suppress(OSError):
            self.child.stdin.write(text)
            self.child.stdin.flush()

    def ask_to_end(self):
        # A stopped process heeds SIGTERM only when it goes on.
        for number in (signal.SIGCONT, signal.SIGTERM):
            send(self.pid, number)

    def finish(self, deadline):
        """Waits for the end after SIGTERM, then kills what is left of its group."""
        if self.child.stdin:
            with contextlib.suppress(OSError):
                self.child.stdin.close()
        try:
            self.child.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            say(f"  SIGTERM did not end '{self.name}'")
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        # One that hangs in the kernel, on a frozen disk say, is not waited for any longer.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.child.wait(PATIENCE)


class Processes:
    """A temporary folder, and the processes that run in it. Leaving the block ends them and removes the folder."""

    def __init__(self):
        self.folder, self.running, self.started = None, [], 0

    def __enter__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="tau-bench-"))
        return self

    def __exit__(self, *_):
        with undisturbed():
            self.stop()
            shutil.rmtree(self.folder, ignore_errors=True)

    def start(self, command, *, log=None, **options):
        """Starts a command; the options are those of `Process`."""
        self.started += 1
        log = log or self.folder / f"process{self.started}.log"
        process = Process(command, self.folder, log, **options)
        self.running = [one for one in self.running if one.lives()] + [process]
        return process

    def stop(self):
        """Ends all that run, within some seconds for all of them together."""
        deadline = time.monotonic() + PATIENCE
        for process in self.running:
            process.ask_to_end()
        while self.running:
            self.running.pop().finish(deadline)
