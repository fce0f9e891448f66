"""Measurements one after the other, of Tau and of PyTorch in the same places: what bench-ddp and bench-cores share."""

import json
import socket
import time

from taubench import nets
from taubench.cluster import Cluster
from taubench.errors import Failed, Missing
from taubench.processes import Processes, say

NET = nets.PERCEPTRON
MINIBATCH = 128
MODULE_MINIBATCH = 64
TARGET = 0.97
# PyTorch's ranks train with SGD, too.
OPTIMISER = ["--optimiser", "sgd:0.08,momentum=0.9"]
SPEED = "samples_per_second"
# What a run may take on top of its own seconds: starting, evaluating, saving.
AROUND_A_RUN = 120.0


class Bench:
    """Takes measurements. Each stands alone: one that fails is reported, and the rest goes on.

    A place is what a command is put behind to run there: a host of a netlab, a core, or nothing.
    """

    def __init__(self, tau, torch, seconds, *, module=None, job_flags=(), as_json=False, out=None, limit=None):
        self.tau, self.torch, self.seconds, self.as_json = tau, torch, seconds, as_json
        self.out = out
        if out:
            out.write_text("")
        self.end = time.monotonic() + (limit or float("inf"))
        # What PyTorch's ranks train, in their words.
        self.model, self.minibatch, self.code = NET.layers, MINIBATCH, []
        job = ["--data", "builtin:mnist", "--model", NET.layers, *OPTIMISER]
        if module:
            self.model, self.minibatch = f"py:{module}", MODULE_MINIBATCH
            self.code = ["--python", torch.python]
            job = ["--model", self.model]
        self.job = [*job, "--minibatch", str(self.minibatch), *job_flags]
        # Flags of a node that runs the module's code.
        self.consent = [*self.code, "--data-root", str(module.parent)] if module else []
        self.processes = Processes()
        if not torch:
            say("No PyTorch here, so DDP is left out: name a Python that has it, with gloo, with --python.")

    def __enter__(self):
        self.processes.__enter__()
        return self

    def __exit__(self, *_):
        self.processes.__exit__()

    def deadline(self, seconds):
        return min(time.monotonic() + seconds, self.end)

    def measure(self, name, function, ratios=None, **labels):
        """Calls the function and reports what it returns, with ratios to earlier records: name -> (field, record)."""
        record = {"measure": name, **labels}
        try:
            if time.monotonic() >= self.end:
                raise Failed("left out: no time left")
            record.update(function())
            for ratio, (field, earlier) in (ratios or {}).items():
                if earlier:
                    record[ratio] = record[field] / earlier[field]
        except (Failed, Missing) as error:
            record["error"] = str(error)
        except Exception as error:  # Whatever it was, the rest goes on.
            record["error"] = repr(error)
        self.processes.stop()
        line = json.dumps(record)
        if self.as_json:
            print(line, flush=True)
        if self.out:
            with self.out.open("a") as file:
                file.write(line + "\n")
        where = "".join(f", {label} {value}" for label, value in labels.items())
        say(f"  {name}{where}: {summary(record)}")
        return record if "error" not in record else None

    def timed_job(self):
        """More epochs than any machine gets through, so that the clock ends the run."""
        return [*self.job, "--epochs", "1000", "--max-seconds", f"{self.seconds:g}"]

    def target_job(self):
        return [*self.job, "--epochs", "5", "--target-accuracy", str(TARGET)]

    def train(self, place, nodes, job):
        out = f"out{self.processes.started}"
        flags = ["--nodes", nodes, "--threads", 1, "--out", out, "--json"]
        return self.processes.start([self.tau, "train", *job, *flags, *self.code], place=place)

    def tau_alone(self, places):
        """Nodes that know nothing of each other, at the same time."""
        running = [self.train(place, 1, self.timed_job()) for place in places]
        return together([finished(process, self.deadline(self.seconds + AROUND_A_RUN)) for process in running])

    def tau_local(self, place, nodes, job):
        """A cluster that `tau train` starts and stops itself."""
        return finished(self.train(place, nodes, job), self.deadline(self.seconds + AROUND_A_RUN), nodes)

    def tau_cluster(self, places, addresses, job):
        """A cluster of nodes in their places; the first is the seed."""
        with Cluster(self.tau, secure=True) as cluster:
            for place, address in zip(places, addresses):
                cluster.start(cluster.add(place=place, listen=address, flags=["--threads", "1", *self.consent]))
            first = cluster.nodes[0]
            cluster.wait_until_ready([first])
            client = cluster.follow(first, "start", *job, "--out", "out")
            return finished(client, self.deadline(self.seconds + AROUND_A_RUN), len(places))

    def ranks(self, places, environments):
        command = self.torch.command("rank", self.model, self.minibatch, self.seconds)
        own = {**self.torch.environment(), "OMP_NUM_THREADS": "1"}
        running = [
            self.processes.start(command, place=place, environment={**own, **given}, talk=True, name="PyTorch's rank")
            for place, given in zip(places, environments)
        ]
        ready = self.deadline(180)
        for process in running:
            while process.next_line(ready) != "ready\n":
                pass
        for process in running:
            process.write("go\n")
        # Slow links make for few and long steps, so the ranks may overrun by one or two of them.
        return together([process.last(self.deadline(3 * self.seconds + 60)) for process in running])

    def torch_alone(self, places):
        return self.ranks(places, [{} for _ in places])

    def torch_ddp(self, places, address, interface):
        """PyTorch's DistributedDataParallel. It takes its world from the environment only."""
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
        raise Failed(result.get("error") or f"no result from '{process.name}': {process.complaint()}")
    if result["nodes"] != nodes or result.get("missing"):
        raise Failed(f"{result['nodes']} of {nodes} nodes trained; missing: {result.get('missing')}")
    fields = [SPEED, "seconds", "samples", "accuracy", "replicas_agree", "compression", "density"]
    return {field: result.get(field) for field in [*fields, "exchange_share", "bytes_sent"]}


def reached(record):
    """Evaluations during the run and after it differ a little; far below the target, time to it means nothing."""
    if record["accuracy"] < TARGET - 0.003:
        raise Failed(f"ended with accuracy {record['accuracy']:.4f}, below {TARGET}")
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
