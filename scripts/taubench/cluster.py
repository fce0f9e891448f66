"""Nodes as processes of this machine: starting them, asking them, disturbing them, and leaving nothing behind."""

import json
import pathlib
import signal
import time

from taubench.errors import Failed
from taubench.processes import Processes, call, must, objects, send, undisturbed, until

START_LIMIT = 30.0
READY_LIMIT = 60.0
ANSWER_LIMIT = 100.0


def workers(node):
    """The process ids of a node's workers, which are found by their socket."""
    found = []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"worker" in words and any(f"/{node}.sock".encode() in word for word in words):
            found.append(int(process.name))
    return found


class Node:
    """One node of a cluster, through all its lives. Its name is another in each of them."""

    def __init__(self, cluster, number, *, place=(), listen="127.0.0.1:0", flags=(), seats=1):
        self.cluster, self.number, self.place = cluster, number, list(place)
        self.listen, self.flags, self.seats = listen, list(flags), seats
        self.directory = f"node{number}"
        self.log = cluster.folder / f"node{number}.log"
        self.process = self.name = self.address = None

    def start(self, seeds=()):
        """Starts the node and waits until it listens. Without seeds it is the first of its cluster."""
        tau = self.cluster.tau
        command = [tau, "join", ",".join(seeds)] if seeds else [tau, "seed"]
        own = ["--listen", self.listen, "--dir", self.directory, "--json"]
        self.process = self.cluster.processes.start(
            [*command, *own, *self.cluster.trust, *self.flags],
            log=self.log,
            place=self.place,
            environment=self.cluster.environment,
            name=f"node {self.number}",
        )
        said = json.loads(self.process.next_line(time.monotonic() + START_LIMIT))
        self.name, self.address = said["node"], said["address"]

    def lives(self):
        return self.process is not None and self.process.lives()

    def workers(self):
        return workers(self.name) if self.name else []

    def signal(self, number, node=True):
        """Sends a signal to the node's workers, and to the node itself."""
        for pid in self.workers() + ([self.process.pid] if node and self.process else []):
            send(pid, number)

    def kill(self):
        """Ends the node and its workers at once, as a power cut would."""
        self.signal(signal.SIGKILL)
        if self.process:
            self.process.wait(START_LIMIT)


class Cluster:
    """A cluster in a temporary folder, which is the working folder of its nodes and clients."""

    def __init__(self, tau, *, secure=False, environment=None):
        self.tau, self.secure, self.environment = tau, secure, environment
        self.trust = ["--credentials", "cluster.pem"] if secure else ["--insecure"]
        self.nodes, self.clients, self.processes = [], [], Processes()

    def __enter__(self):
        self.processes.__enter__()
        try:
            if self.secure:
                must([self.tau, "credentials", "new", "cluster.pem"], 30, cwd=self.folder)
        except BaseException:
            self.processes.__exit__()
            raise
        return self

    def __exit__(self, *_):
        with undisturbed():
            self.end()
            self.processes.__exit__()

    def end(self):
        """Ends all nodes and clients."""
        # A client that is asked to end would first want an answer of its node, which is ending too.
        for client in self.clients:
            client.child.kill()
        # Workers that were stopped go on, or nobody would ever end them.
        for node in self.nodes:
            node.signal(signal.SIGCONT)
        self.processes.stop()
        for node in self.nodes:
            node.signal(signal.SIGKILL, node=False)

    @property
    def folder(self):
        return self.processes.folder

    def add(self, **options):
        """A further node, which is not started yet; the options are those of `Node`."""
        node = Node(self, len(self.nodes) + 1, **options)
        self.nodes.append(node)
        return node

    def start(self, node):
        """Starts a node, joined to all others that live."""
        node.start([other.address for other in self.nodes if other is not node and other.lives()])
        return node

    def client(self, node, command, *words):
        """The words of a client that asks this node, at its own place."""
        return [*node.place, self.tau, command, "--cluster", node.address, *self.trust, *words]

    def follow(self, node, command, *words):
        """A client that goes on while other things are done; its objects are read from its lines."""
        asking = self.client(node, command, *words, "--json")
        client = self.processes.start(asking, name=f"tau {command}")
        self.clients = [one for one in self.clients if one.lives()] + [client]
        return client

    def ask(self, node, command, *words, limit=ANSWER_LIMIT):
        """A client's objects; where there are none, one that holds what it said to standard error."""
        asking = self.client(node, command, *words, "--json")
        try:
            done = call(asking, limit, cwd=self.folder, capture_output=True)
        except Failed:
            raise Failed(f"'tau {command}' at node {node.number} took more than {limit:.0f} s") from None
        return objects(done.stdout) or [{"error": done.stderr.strip()}]

    def begin(self, *job):
        """Starts a run through the first node and leaves it to itself; the run's number."""
        begun = self.ask(self.nodes[0], "start", "--detach", *job)[-1]
        if begun.get("event") not in ("started", "detached"):
            raise Failed(f"the run did not begin: {begun.get('error', begun)}")
        return begun.get("run")

    def members(self, node, limit=ANSWER_LIMIT):
        """All nodes as this one sees them, by name."""
        return {one["node"]: one for one in self.ask(node, "nodes", limit=limit) if one.get("event") == "node"}

    def wait_until_ready(self, asked=None):
        """Waits until those asked, or all, are in no run, and see all nodes with all their workers."""
        lacking = []

        def ready():
            lacking[:] = [what for node in asked or self.nodes for what in self.lacks(node)]
            return not lacking

        try:
            until("", ready, READY_LIMIT, pause=0.1)
        except Failed:
            raise Failed(f"{READY_LIMIT:.0f} s later the next run could not begin: {', '.join(lacking)}") from None

    def lacks(self, asked):
        """What keeps a run from beginning, as one node sees it."""
        try:
            seen = self.members(asked, limit=10.0)
        except Failed as silent:
            return [str(silent)]
        found = []
        for node in self.nodes:
            told = seen.get(node.name, {})
            state = told.get("state", "unknown")
            if state != "idle":
                found.append(f"node {node.number} is {state} to node {asked.number}")
            elif told["workers"] < node.seats:
                found.append(f"node {node.number} has {told['workers']} of {node.seats} workers")
        return found
