"""Tables, ratios, and the line that says what was measured where."""

import os
import pathlib
import platform
import shutil
from collections import Counter

from taubench.build import ROOT
from taubench.processes import call


def cell(record, field, form):
    """A field of a record in a table; a dash where there is none."""
    value = record.get(field) if record else None
    return "-" if value is None else format(value, form)


def table(headers, rows):
    """Columns that are set flush right."""
    rows = [headers, *rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(headers))]
    return "\n".join("  ".join(text.rjust(width) for text, width in zip(row, widths)) for row in rows)


def mean(values):
    """The mean; 0 of nothing."""
    return sum(values) / max(1, len(values))


def cpus():
    """The CPUs that may be used, one of every physical core first: two threads of one core are no two cores."""

    def topology(cpu, name):
        try:
            return pathlib.Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/{name}").read_text().strip()
        except OSError:
            return str(cpu)

    cores = {cpu: (topology(cpu, "physical_package_id"), topology(cpu, "core_id")) for cpu in os.sched_getaffinity(0)}
    return one_of_each_first(cores)


def one_of_each_first(cores):
    """CPUs in order, where `cores` says for each which core it is of: first those that are the first of their core."""
    seen, ranked = Counter(), []
    for cpu in sorted(cores):
        ranked.append((seen[cores[cpu]], cpu))
        seen[cores[cpu]] += 1
    return [cpu for _, cpu in sorted(ranked)]


def measured_on(tau=None):
    """One line about the machine, the binary and the tree, which belongs to every figure."""
    parts = [f"{processor()}, {len(os.sched_getaffinity(0))} CPUs"]
    if tau:
        parts.append(call([tau, "--version"], 30, capture_output=True).stdout.strip())
    parts.append(f"scripts of {commit()}")
    return "measured on: " + "; ".join(parts)


def processor():
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.machine()


def commit():
    """The tree's commit, with a word where files differ from it."""
    if not shutil.which("git"):
        return "an unknown commit"
    described = call(
        ["git", "describe", "--always", "--dirty=-dirty", "--exclude=*"], 30, cwd=ROOT, capture_output=True
    )
    return described.stdout.strip() or "an unknown commit"
