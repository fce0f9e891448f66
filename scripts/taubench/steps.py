"""Two processes that take training steps in turns: Tau's step timer and PyTorch."""

import time

from taubench.errors import Failed

# The first steps load the data and fill caches.
STEPS_LIMIT = 300.0


class Stepper:
    """A process that takes the number of steps in each line that it reads, and answers with their milliseconds."""

    def __init__(self, process):
        self.process = process

    def take(self, count):
        self.process.write(f"{count}\n")
        answer = self.process.next_line(time.monotonic() + STEPS_LIMIT)
        try:
            return [float(word) for word in answer.split()]
        except ValueError:
            raise Failed(f"'{self.process.name}' answered {answer!r} instead of milliseconds") from None


def alternate(ours, theirs, steps, rounds):
    """The milliseconds of each round, of both; a first round that warms up is not counted."""
    ours.take(steps)
    theirs.take(steps)
    pairs = [(ours.take(steps), theirs.take(steps)) for _ in range(rounds)]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def tau_stepper(processes, program, net, minibatch, *, optimiser, clip="none", more=(), environment=None):
    """Tau's step timer (worker/examples/step_timer.rs) with one thread."""
    command = [program, net.layers, minibatch, optimiser, clip, 1, *more]
    return Stepper(processes.start(command, talk=True, environment=environment, name="step_timer"))


def torch_stepper(processes, torch, net, minibatch, *flags):
    """PyTorch's steps (torch_side/steps.py) with one thread, or on a GPU."""
    shape = "x".join(map(str, net.shape))
    command = torch.command("steps", net.layers, shape, net.classes, minibatch, *flags)
    return Stepper(processes.start(command, talk=True, environment=torch.environment(), name="PyTorch's steps"))
