"""What scripts/bench-ddp and scripts/bench-cores share: they start Tau and PyTorch in the same places, and compare."""

import atexit
import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LAYERS = "dense 1024, relu, dense 1024, relu, dense 10"
MINIBATCH = 128
TARGET = 0.97
SPEED = "samples_per_second"
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Failure(Exception):
    """One sentence about a measurement that did not work out."""


def say(text):
    print(text, file=sys.stderr, flush=True)


def end_on_signals():
    """Ends this program in order, so that everything it started is ended too."""
    for number in SIGNALS:
        signal.signal(number, lambda number, _: sys.exit(128 + number))


def cpus():
    """The CPUs we may use, one of every physical core first: two threads of one core are no two cores."""

    def topology(cpu, name):
        try:
            with open(f"/sys/devices/system/cpu/cpu{cpu}/topology/{name}") as file:
                return file.read().strip()
        except OSError:
            return str(cpu)

    seen, ranked = Counter(), []
    for cpu in sorted(os.sched_getaffinity(0)):
        core = topology(cpu, "physical_package_id"), topology(cpu, "core_id")
        ranked.append((seen[core], cpu))
        seen[core] += 1
    return [cpu for _, cpu in sorted(ranked)]


def find_tau():
    """The binary that TAU names, or the release build, which is made if it is missing."""
    given = os.environ.get("TAU")
    tau = os.path.abspath(given or os.path.join(ROOT, "target/release/tau"))
    if not given and not os.path.exists(tau):
        subprocess.run(["cargo", "build", "--quiet", "--release", "--bin", "tau"], cwd=ROOT, check=True)
    if not os.access(tau, os.X_OK):
        sys.exit(f"error: {tau} is no program: set TAU to the path of the tau binary")
    return tau


def find_torch():
    """A python that has PyTorch with gloo: the one that PYTHON names, that of bench-pytorch, or the usual one."""
    given = os.environ.get("PYTHON")
    for python in [given] if given else [os.path.join(ROOT, "target/pytorch/bin/python"), "python3"]:
        test = "import torch.distributed as d; assert d.is_gloo_available()"
        python = shutil.which(python)
        if python and subprocess.run([python, "-c", test], stderr=subprocess.DEVNULL).returncode == 0:
            return os.path.abspath(python)
    say("No PyTorch here, so DDP is left out: set PYTHON to a python3 with torch, or let bench-pytorch install one.")
    return None


class Process:
    """A command whose lines can be waited for; what it writes to standard error is kept for error messages."""

    def __init__(self, place, command, folder, environment):
        self.errors = tempfile.NamedTemporaryFile(dir=folder)
        # A group of its own, so that Ctrl-C reaches us first and a killed node's workers can be found.
        self.child = subprocess.Popen(
            [*place, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            cwd=folder,
            env={**os.environ, **environment},
            start_new_session=True,
        )
        self.name = " ".join(map(os.path.basename, command[:2]))
        self.lines = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.child.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def line(self, deadline):
        """The next line, or None at the end."""
        while True:
            # An orphaned worker may hold the pipe open: the end is when the command itself has ended.
            ended = self.child.poll() is not None
            try:
                return self.lines.get(timeout=0.3)
            except queue.Empty:
                if ended:
                    return None
            if time.monotonic() >= deadline:
                raise Failure(f"no word in time from '{self.name}'")

    def wait_for(self, wanted, deadline):
        """The first line that the test accepts."""
        while (line := self.line(deadline)) is not None:
            if wanted(line):
                return line
        raise Failure(f"'{self.name}' ended early: {self.complaint()}")

    def last(self, deadline):
        """The last line, as JSON, once the command has ended."""
        last = None
        while (line := self.line(deadline)) is not None:
            last = line
        try:
            return json.loads(last or "")
        except ValueError:
            raise Failure(f"no result from '{self.name}': {self.complaint()}") from None

    def complaint(self):
        with open(self.errors.name, errors="replace") as file:
            lines = [line.strip() for line in file if line.strip()]
        return lines[-1] if lines else "no word of why"

    def write(self, text):
        try:
            self.child.stdin.write(text)
            self.child.stdin.flush()
        except OSError:
            pass  # it has ended, and will be found to have

    def finish(self):
        """Waits for the end after SIGTERM, then kills what is left."""
        try:
            self.child.wait(10)
        except subprocess.TimeoutExpired:
            say(f"  SIGTERM did not end '{self.name}'")
        try:
            os.killpg(self.child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.child.wait()
        self.errors.close()


class Bench:
    """Takes measurements one after the other. Each stands alone: one that fails is reported, and the rest goes on."""

    def __init__(self, seconds, as_json=False, out=None, limit=None):
        self.seconds = seconds
        self.as_json = as_json
        self.out = open(out, "w") if out else None
        self.end = time.monotonic() + (limit or float("inf"))
        self.tau = find_tau()
        self.torch = find_torch()
        self.folder = tempfile.mkdtemp(prefix="tau-bench-")
        self.running = []
        self.job = ["--data", "builtin:mnist", "--model", LAYERS, "--minibatch", str(MINIBATCH)]
        self.job += os.environ.get("JOB_FLAGS", "").split()
        atexit.register(self.close)

    def close(self):
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        self.stop_all()
        shutil.rmtree(self.folder, ignore_errors=True)

    def stop_all(self):
        for process in self.running:
            process.child.terminate()
        while self.running:
            self.running.pop().finish()

    def start(self, place, command, environment={}):
        process = Process(place, command, self.folder, environment)
        self.running.append(process)
        return process

    def deadline(self, seconds):
        return min(time.monotonic() + seconds, self.end)

    def measure(self, name, function, ratios=None, **labels):
        """Calls the function and reports what it returns, with ratios to earlier records: name -> (field, record)."""
        record = {"measure": name, **labels}
        try:
            if time.monotonic() >= self.end:
                raise Failure("left out: no time left")
            record.update(function())
            for ratio, (field, earlier) in (ratios or {}).items():
                if earlier:
                    record[ratio] = record[field] / earlier[field]
        except Failure as error:
            record["error"] = str(error)
        except Exception as error:  # whatever it was, the rest goes on
            record["error"] = repr(error)
        self.stop_all()
        line = json.dumps(record)
        if self.as_json:
            print(line, flush=True)
        if self.out:
            self.out.write(line + "\n")
            self.out.flush()
        where = "".join(f", {label} {value}" for label, value in labels.items())
        say(f"  {name}{where}: {summary(record)}")
        return record if "error" not in record else None

    # Tau. A place is what a command is put behind to run there: a host of a netlab, a core, or nothing.

    def timed_job(self):
        # More epochs than any machine gets through, so that the clock ends the run.
        return [*self.job, "--epochs", "1000", "--max-seconds", f"{self.seconds:g}"]

    def target_job(self):
        return [*self.job, "--epochs", "5", "--target-accuracy", str(TARGET)]

    def train(self, place, nodes, job):
        out = tempfile.mkdtemp(dir=self.folder)
        flags = ["--nodes", str(nodes), "--threads", "1", "--out", out, "--json"]
        return self.start(place, [self.tau, "train", *job, *flags])

    def tau_alone(self, places):
        """Nodes that know nothing of each other, at the same time."""
        processes = [self.train(place, 1, self.timed_job()) for place in places]
        return together([finished(process, self.deadline(self.seconds + 60)) for process in processes])

    def tau_local(self, place, nodes, job):
        """A cluster that `tau train` starts and stops itself."""
        return finished(self.train(place, nodes, job), self.deadline(self.seconds + 120), nodes)

    def tau_cluster(self, places, addresses, job):
        """A cluster of nodes in their places; the first is the seed."""
        folder = tempfile.mkdtemp(dir=self.folder)
        credentials = os.path.join(folder, "credentials")
        subprocess.run([self.tau, "credentials", "new", credentials], stdout=subprocess.DEVNULL, check=True)
        ours = ["--credentials", credentials]
        for index, (place, address) in enumerate(zip(places, addresses)):
            verb = ["join", addresses[0]] if index else ["seed"]
            own = ["--listen", address, "--threads", "1", "--dir", os.path.join(folder, f"node{index}"), "--json"]
            node = self.start(place, [self.tau, *verb, *ours, *own])
            node.wait_for(lambda line: '"listening"' in line, self.deadline(30))
        cluster = ["--cluster", addresses[0], *ours]
        self.wait_for_members([*places[0], self.tau, "nodes", *cluster, "--json"], len(places))
        out = os.path.join(folder, "out")
        client = self.start(places[0], [self.tau, "start", *cluster, *job, "--out", out, "--json"])
        return finished(client, self.deadline(self.seconds + 120), len(places))

    def wait_for_members(self, command, wanted):
        """A node that listens may not have been let in yet. Goes on after a while: the result says how many trained."""
        end = self.deadline(15)
        while time.monotonic() < end:
            listing = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30)
            if listing.returncode == 0 and len(listing.stdout.splitlines()) >= wanted:
                return
            time.sleep(0.2)

    # PyTorch.

    def ranks(self, places, environments):
        script = os.path.join(ROOT, "scripts/ddp_rank.py")
        processes = [
            self.start(
                place,
                [self.torch, script, LAYERS, str(MINIBATCH), str(self.seconds)],
                {"OMP_NUM_THREADS": "1", **environment},
            )
            for place, environment in zip(places, environments)
        ]
        ready = self.deadline(180)
        for process in processes:
            process.wait_for(lambda line: line == "ready\n", ready)
        for process in processes:
            process.write("go\n")
        # Slow links make for few and long steps, so the ranks may overrun by one or two of them.
        return together([process.last(self.deadline(3 * self.seconds + 60)) for process in processes])

    def torch_alone(self, places):
        return self.ranks(places, [{} for _ in places])

    def torch_ddp(self, places, address, interface):
        common = {
            "MASTER_ADDR": address,
            "MASTER_PORT": str(free_port()),
            "WORLD_SIZE": str(len(places)),
            "GLOO_SOCKET_IFNAME": interface,
        }
        return self.ranks(places, [{**common, "RANK": str(rank)} for rank in range(len(places))])


def finished(process, deadline, nodes=1):
    """The fields of Tau's last object that matter here."""
    result = process.last(deadline)
    if result.get("event") != "finished":
        raise Failure(result.get("error") or f"no result from '{process.name}': {process.complaint()}")
    if result["nodes"] != nodes or result.get("missing"):
        raise Failure(f"{result['nodes']} of {nodes} nodes trained; missing: {result.get('missing')}")
    fields = [SPEED, "seconds", "samples", "accuracy", "replicas_agree", "compression", "density"]
    return {field: result.get(field) for field in [*fields, "exchange_share", "bytes_sent"]}


def reached(record):
    """Evaluations during the run and after it differ a little; far below the target, time to it means nothing."""
    if record["accuracy"] < TARGET - 0.003:
        raise Failure(f"ended with accuracy {record['accuracy']:.4f}, below {TARGET}")
    return record


def together(results):
    each = [result[SPEED] for result in results]
    return {SPEED: sum(each), "each": each}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def summary(record):
    """A record in one line for people."""
    if "error" in record:
        return f"failed: {record['error']}"
    parts = [f"{record[SPEED]:,.0f} samples/s"]
    if record.get("accuracy") is not None:
        parts += [f"{record['seconds']:.1f} s", f"accuracy {record['accuracy']:.4f}"]
    if record.get("replicas_agree") is False:
        parts.append("REPLICAS DISAGREE")
    if "ratio" in record:
        parts.append(f"ratio {record['ratio']:.3f}")
    return ", ".join(parts)


def cell(record, field, form):
    value = record.get(field) if record else None
    return "-" if value is None else format(value, form)


def table(headers, rows):
    rows = [headers, *rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(headers))]
    return "\n".join("  ".join(text.rjust(width) for text, width in zip(row, widths)) for row in rows)
