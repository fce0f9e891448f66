"""The values of --model, --data and --exchange: layers, data schemes and strategies, compared with the documents."""

import re
from collections import namedtuple

from taubench.documents import spans
from taubench.errors import Failed

JOBS = "docs/usage/jobs.md"
DATA = "docs/usage/data.md"
SOURCES = "protocol/src/job/data"
# The section of docs/usage/data.md that has the options of a scheme.
SECTIONS = {"csv": "Tables", "npz": "Arrays", "images": "Images"}
# The sections of docs/usage/jobs.md that have the strategies.
STRATEGIES = ("Strategies", "A network that is larger than a machine")
# Stands for the strategies that options combine with.
ANY_WAY = "WAY"

WORD = re.compile(r"[a-z]+")
QUOTED = r"'[^']*'|\"[^\"]*\""


def after(words, text):
    """Returns the list that follows these words in an error of the binary."""
    _, found, listed = text.partition(words)
    if not found:
        raise Failed(f"the binary lists nothing after '{words}': teach scripts/check-docs its new error ({text})")
    return listed.strip().split(", ")


def given(documents, key):
    """Returns the values of a job key in command lines and job files, with their places."""
    value = re.compile(rf"(?:--{key}[ =]|^{key} = )({QUOTED}|\[[^\]]*\]|[a-z][^\s'\"\])|;]*)")
    for document in documents:
        for number, code in document.code():
            for match in value.finditer(code):
                values = re.findall(QUOTED, match[1]) if match[1].startswith("[") else [match[1]]
                yield from ((f"{document.name}:{number}", one.strip("'\"")) for one in values)


def by_name(documents, name):
    found = [document for document in documents if document.name == name]
    if not found:
        raise Failed(f"there is no {name}: name its successor in scripts/taubench/job_values.py")
    return found[0]


def layers(refusal):
    """Returns the forms of all layers, such as `dense [OUT]`, from the binary's error for an unknown layer."""
    return after("there are: ", refusal)


def layer_complaints(forms, documents):
    """Returns a sentence for each layer that is documented and does not exist, or the other way round."""
    names, missing = {form.split()[0] for form in forms}, list(forms)
    for number, code in by_name(documents, JOBS).section("Model").first_cells():
        if code in missing:
            missing.remove(code)
        elif code.split()[0] in names:
            form = next(form for form in forms if form.split()[0] == code.split()[0])
            yield f"{JOBS}:{number}: the form of this layer is '{form}', not '{code}'"
            missing = [other for other in missing if other != form]
        else:
            yield f"{JOBS}:{number}: there is no layer '{code}'"
    for place, model in given(documents, "model"):
        # A file of code has its own layers.
        for layer in filter(str.strip, [] if model.startswith("py:") else re.split(r"[,\[\]]", model)):
            if WORD.match(layer.strip()) and layer.split()[0] not in names:
                yield f"{place}: there is no layer '{layer.strip()}'"
    yield from (f"{JOBS}: the layer '{form}' is not documented" for form in missing)


Schemes = namedtuple("Schemes", "names options")
Schemes.__doc__ = """The data schemes.

`names` has `builtin:mnist` in full; `options` has for each scheme a list of options, each with all of its names.
"""


def matched(source, kind):
    """Returns the names that the function `take` of a type matches, those of one option together."""
    body = re.search(rf"^impl {kind} \{{\n(.*?)^\}}", source, re.MULTILINE | re.DOTALL)
    take = body and re.search(r"^    pub\(super\) fn take\(.*?^    \}", body[1], re.MULTILINE | re.DOTALL)
    arms = re.findall(r"^            (\"[^=]*?) (?:if .*?)?=>", take[0], re.MULTILINE) if take else []
    if not arms:
        raise Failed(f"{SOURCES} has no 'impl {kind}' with options in 'take': teach scripts/check-docs its new form")
    return list(dict.fromkeys(tuple(re.findall(r"\"(\w+)\"", arm)) for arm in arms))


def schemes(parser, table, test_split, arrays):
    """Reads the schemes and their options from the sources of the parser."""
    names = re.findall(r"Some\(\(\"(\w+)\", (?:\"(\w+)\"|\w+)\)\)", parser)
    names = [f"{scheme}:{name}" if name else scheme for scheme, name in names if name or scheme != "builtin"]
    if not names:
        raise Failed(f"{SOURCES}/mod.rs has no 'Some((\"SCHEME\", …))': teach scripts/check-docs its new form")
    of_tables = matched(table, "TableOptions") + matched(test_split, "TestSplit")
    options = {
        "csv": of_tables + [(key,) for key in re.findall(r"if key == \"(\w+)\"", parser)],
        "parquet": of_tables,
        "npz": matched(arrays, "ArrayOptions"),
        "images": matched(arrays, "ImageOptions"),
    }
    return Schemes(names, options)


def read_schemes(root):
    files = ("mod.rs", "table.rs", "test_split.rs", "arrays.rs")
    return schemes(*((root / SOURCES / file).read_text() for file in files))


def data_complaints(known, documents):
    """Returns a sentence for each scheme or option that is documented and does not exist, or the other way round."""
    page = by_name(documents, DATA)

    def scheme_of(text):
        scheme, _, path = text.partition(":")
        return f"builtin:{path}" if scheme == "builtin" else scheme

    missing = set(known.names)
    for number, code in page.section("Kinds of data").first_cells():
        missing.discard(scheme_of(code))
        if scheme_of(code) not in known.names:
            yield f"{DATA}:{number}: there is no data source '{code}'"
    for place, data in given(documents, "data"):
        if ":" in data and scheme_of(data.partition("?")[0]) not in known.names:
            yield f"{place}: there is no data source '{data}'"
    yield from (f"{DATA}: the data source {scheme}: is not documented" for scheme in sorted(missing))

    for scheme, section in SECTIONS.items():
        missing = list(known.options[scheme])
        names = {name for option in missing for name in option}
        for number, code in spans(page.section(section).prose):
            name = re.match(r"(\w+)=", code)
            if name and name[1] not in names:
                yield f"{DATA}:{number}: {scheme}: has no option {name[0]}"
            missing = [option for option in missing if not name or name[1] not in option]
        yield from (f"{DATA}: the option {option[0]}= of {scheme}: is not documented" for option in missing)

    specification = re.compile(rf"\b({'|'.join(known.options)}):[^\s?`'\"]+\?([^\s`'\"]+)")
    for document in documents:
        for number, code in document.code():
            for scheme, options in specification.findall(code):
                names = {name for option in known.options[scheme] for name in option}
                for option in re.findall(r"(?:^|&)(\w+)=", options):
                    if option not in names:
                        yield f"{document.name}:{number}: {scheme}: has no option {option}="


def strategies(refusal):
    """Returns the forms of all strategies, such as `mesh`, from the binary's error for an unknown one."""
    return after("use one of: ", refusal)


def head(text):
    """The name of a strategy without its options."""
    return re.match(r"[\w-]*", text)[0]


def options_of(text):
    """Returns the names of the options in a form or value of a strategy."""
    return WORD.findall(re.sub(r"=[^,\[\]|]*", "", text[len(head(text)) :]))


def strategy_complaints(forms, documents):
    """Returns a sentence for each strategy or option that is documented and does not exist, or the other way round."""
    known = {head(form): options_of(form) for form in forms}
    all_options = {option for options in known.values() for option in options}
    page = by_name(documents, JOBS)

    def faults(text):
        name = head(text)
        if name not in known:
            yield f"there is no strategy '{text}'"
            return
        for option in options_of(text):
            if option not in (known[name] or known.get(ANY_WAY, [])):
                yield f"the strategy {name} has no option '{option}'"

    missing, words = set(known), set()
    for section in map(page.section, STRATEGIES):
        for number, code in section.first_cells():
            yield from (f"{JOBS}:{number}: {fault}" for fault in faults(code))
        for number, code in spans(section.prose):
            missing.discard(head(code))
            words.update(WORD.findall(code))
            option = re.match(r"(\w+)=", code)
            if option and option[1] not in all_options:
                yield f"{JOBS}:{number}: no strategy has an option {option[0]}"
            elif head(code) == ANY_WAY:
                yield from (f"{JOBS}:{number}: {fault}" for fault in faults(code))
    for place, value in given(documents, "exchange"):
        yield from (f"{place}: {fault}" for fault in faults(value))
    for place, value in given(documents, "exchanges"):
        for one in value.split() if " " in value else value.split(","):
            yield from (f"{place}: {fault}" for fault in faults(one))
    yield from (f"{JOBS}: the strategy {name} is not documented" for name in sorted(missing))
    for name, options in sorted(known.items()):
        for option in options:
            if option not in words:
                yield f"{JOBS}: the option {option} of the strategy {name} is not documented"
