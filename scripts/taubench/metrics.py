"""The figures of records and results, and the names of Prometheus, compared with the documents."""

import re
from collections import namedtuple

from taubench.errors import Failed

TABLE = "protocol/src/stats/figures.rs"
COLLECTOR = "client/src/node/metrics.rs"
PAGE = "docs/metrics.md"
# The metrics that are no figures of records may be on this page, too.
EXTRA_PAGES = (PAGE, "docs/usage/")

BODY = re.compile(r"^figures! \{\n    record \{\n(.*?)^    \}\n    result \{\n(.*?)^    \}\n", re.MULTILINE | re.DOTALL)
FIGURE = re.compile(r"^        (\w+): [^;]*?=> (gauge|counter)\(\"(\w*)\"(.*?);$", re.MULTILINE | re.DOTALL)
NAME = re.compile(r"\btau_[a-z0-9_]+\b")

Known = namedtuple("Known", "figures run_figures extra")
Known.__doc__ = """What the source declares.

`figures` has the Prometheus name of each figure of a record; `run_figures` are those of results; `extra` are the
names that Prometheus gets beside the figures.
"""


def known(table, collector):
    """Reads the table of figures and the collector of Prometheus."""
    body = BODY.search(table)
    if not body:
        raise Failed(
            f"{TABLE} has no 'figures! {{ record {{ … }} result {{ … }} }}': teach scripts/check-docs its new form"
        )
    figures, run_figures = {}, set()
    for name, kind, prometheus, rest in FIGURE.findall(body[1]):
        figures[name] = prometheus + ("_total" if kind == "counter" else "")
        if ", result " in rest:
            run_figures.add(name)
    run_figures.update(name for name, *_ in FIGURE.findall(body[2]))
    extra = set(re.findall(r"\"(tau_\w+)\"", collector))
    return Known(figures, frozenset(run_figures), frozenset(extra))


def read(root):
    return known((root / TABLE).read_text(), (root / COLLECTOR).read_text())


def word(cell):
    return cell.strip("`")


def complaints(metrics, documents):
    """Returns a sentence for each metric that is documented and does not exist, or the other way round."""
    missing, missing_run, missing_extra = set(metrics.figures), set(metrics.run_figures), set(metrics.extra)
    prometheus = metrics.extra | set(metrics.figures.values())
    for document in documents:
        for number, code in document.code():
            names = set(NAME.findall(code))
            if document.name.startswith(EXTRA_PAGES):
                missing_extra -= names
            if re.fullmatch(NAME, code) and code not in prometheus:
                yield f"{document.name}:{number}: there is no metric {code}"
        for head, *rows in document.tables() if document.name == PAGE else ():
            is_of_run = head[1][-1] != "Prometheus"
            for number, cells in rows:
                field, shown = word(cells[0]), word(cells[-1])
                (missing_run if is_of_run else missing).discard(field)
                if field not in (metrics.run_figures if is_of_run else metrics.figures):
                    yield f"{PAGE}:{number}: {'results have' if is_of_run else 'records have'} no figure {field}"
                elif not is_of_run and shown in prometheus and shown != metrics.figures[field]:
                    yield f"{PAGE}:{number}: Prometheus has {field} as {metrics.figures[field]}, not as {shown}"
    yield from (f"{PAGE}: the figure {name} of records is not documented" for name in sorted(missing))
    yield from (f"{PAGE}: the figure {name} of results is not documented" for name in sorted(missing_run))
    yield from (f"docs/usage: the metric {name} is not documented" for name in sorted(missing_extra))
