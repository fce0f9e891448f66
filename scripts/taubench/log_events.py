"""The log lines of the source: which event each tells, at which level, in which words."""

import re

CALL = re.compile(r"tracing::(trace|debug|info|warn|error)!\(")
STRING = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
EVENT = re.compile(r'\bevent = "(\w*)"')
NAME = re.compile(r"[a-z]+(_[a-z0-9]+)+")
ROW = re.compile(r"^\| `(\w+)` \|", re.MULTILINE)

HEAD = """# Log events

Every log line of a node or a worker has an `event`, which stays the same when its sentence changes: search for it, and
let programs and tests look for it. With `TAU_LOG_FORMAT=json` it is a field of the line. Names in braces are filled in
when the line is written; other fields follow the message. `scripts/log-events` writes this page from the source, and CI
checks it.

| event | level | message |
|---|---|---|
"""


def arguments(source, start):
    """The text between a call's parentheses."""
    depth, position = 1, start
    while depth:
        character = source[position]
        if character == '"':
            position = STRING.match(source, position).end()
            continue
        depth += (character == "(") - (character == ")")
        position += 1
    return source[start : position - 1]


def calls(root):
    """The file, line, level, event and message of every log line; the event is empty where one has none."""
    for crate in ["client", "communicator", "protocol", "whole_file", "worker"]:
        for file in sorted((root / crate / "src").rglob("*.rs")):
            source = file.read_text()
            for call in CALL.finditer(source):
                inside = arguments(source, call.end())
                event = EVENT.search(inside)
                rest = inside.replace(event[0], "") if event else inside
                texts = [match[1] for match in STRING.finditer(rest)]
                message = re.sub(r"\\\n\s*", "", texts[-1]) if texts else ""
                line = source.count("\n", 0, call.start()) + 1
                yield file.relative_to(root), line, call[1], event[1] if event else "", message


def page(root):
    """The page of all events."""
    rows = {(event, level, message) for _, _, level, event, message in calls(root) if event}
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in sorted(rows)]
    table = "".join(f"| `{event}` | {level} | {message} |\n" for event, level, message in escaped)
    links = "[README](../README.md) · [usage](usage.md) · [architecture](architecture.md) · [glossary](glossary.md)"
    return f"{HEAD}{table}\n---\n{links}\n"


def unlike(written, page):
    """Returns what is wrong with the written page, one sentence each."""
    if written == page:
        return
    documented, existing = set(ROW.findall(written)), set(ROW.findall(page))
    yield from (f"docs/log-events.md: there is no event {event}" for event in sorted(documented - existing))
    yield from (f"docs/log-events.md: the event {event} is not documented" for event in sorted(existing - documented))
    yield "docs/log-events.md: this is not what the source says: run scripts/log-events"


def unknown(events, documents):
    """Returns a sentence for each event that a document shows as `event="name"` and that no log line has."""
    for document in documents:
        for number, code in document.code():
            for event in EVENT.findall(code.replace(" = ", "=").replace("event=", "event = ")):
                if event not in events:
                    yield f"{document.name}:{number}: no log line has the event {event}"


def complaints(root, documents):
    """Returns what is wrong with log lines, with their page and with events in other documents, one sentence each."""
    lines = list(calls(root))
    for file, line, _, event, _ in lines:
        if not event:
            yield f'{file}:{line}: this log line has no event: add event = "noun_verb"'
        elif not NAME.fullmatch(event):
            yield f"{file}:{line}: the event {event} is not written like_this"
    yield from unlike((root / "docs/log-events.md").read_text(), page(root))
    yield from unknown({event for _, _, _, event, _ in lines}, documents)
