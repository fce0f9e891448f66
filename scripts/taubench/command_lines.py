"""The commands and flags of the binary, compared with those that documents name."""

import itertools
import re
from collections import namedtuple

COMMAND_LINE = re.compile(r"^  ([a-z][a-z-]*)(?:  |$)", re.MULTILINE)
FLAG_LINE = re.compile(r"^ {2,10}(?:-\w, )?--([a-z][a-z0-9-]*)", re.MULTILINE)
FLAG = re.compile(r"(?<![\w-])--([a-z][a-z0-9-]*)")
WORD = re.compile(r"[a-z][a-z-]*")
VARIABLES = re.compile(r"^(?:[A-Z_]+=\S+ +)+(?=tau )")
# A shell command that is not Tau, perhaps with variables before it.
OTHER = re.compile(
    r"(?:[A-Z_]+=[^|;&]*? )?"
    r"(?:cargo|docker|git|kubectl|python3?|sbatch|ssh|systemctl|useradd|(?:scripts|deploy|tests|\.ci)/\S+)(?= )"
)
# These run tau with the words that follow.
RUNS_TAU = re.compile(r"^(?:cargo run\b.*? )?-- (?=[a-z])")
# The word tau at the start of a command, not in a sentence, which it follows after one space.
TAU = re.compile(r"(?:(?<=^)|(?<=[\"'(|;&`$])|(?<=[|;&$] )|(?<=-- )|(?<=\s\s))(?:[\w.~/-]*/)?tau(?= )")
END = re.compile(r" [|] | && |;|\s2?>|\s# |\s{3,}")
# Flags of cargo and of tests that are named alone.
OF_OTHERS = {"features", "nocapture"}
# The documents of which some one must have each command and flag.
REFERENCE = ("docs/usage/", "docs/job-keys.md")
# A command and a flag that every program has, which need no documents.
UNLISTED = {"help"}

Mention = namedtuple("Mention", "place command flag")
Mention.__doc__ = """A command or flag in a document.

`command` is a list of words that may go on with words that are no part of it, None where no command is shown.
`flag` is None where the command itself is named.
"""


def flags_of(text):
    return frozenset(FLAG_LINE.findall(text))


def known(tau_help):
    """Returns the flags of each command, by its words with spaces between them; the binary itself is ""."""
    commands = {}

    def ask(words):
        text = tau_help(*words)
        commands[" ".join(words)] = flags_of(text)
        listed = re.search(r"^Commands:\n(.*?)(?:\n\n|\Z)", text, re.MULTILINE | re.DOTALL)
        for name in COMMAND_LINE.findall(listed[1]) if listed else []:
            if name != "help":
                ask([*words, name])

    ask([])
    return commands


def segments(code):
    """Splits code into what follows each `tau`, and the remaining text, which is last."""
    rest, end = "", 0
    starts = list(TAU.finditer(code))
    for index, tau in enumerate(starts):
        if tau.start() < end:
            continue
        until = starts[index + 1].start() if index + 1 < len(starts) else len(code)
        rest += code[end : tau.start()] + " "
        line = code[tau.end() : until]
        quote = code[tau.start() - 1 : tau.start()]
        if quote and quote in "'\"`":
            line = line.partition(quote)[0]
        else:
            unquoted = re.sub(r"'[^']*'|\"[^\"]*\"", lambda text: "_" * len(text[0]), line)
            cut = END.search(unquoted)
            line = unquoted[: cut.start()] if cut else unquoted
        end = tau.end() + len(line)
        yield True, line
    yield False, rest + code[end:]


def mentions(document):
    """Returns the commands and flags that a document names in code."""
    for number, code in document.code():
        place = f"{document.name}:{number}"
        code = VARIABLES.sub("", RUNS_TAU.sub("tau ", code.strip()))
        is_other = OTHER.match(code)
        for is_tau, text in segments(code):
            if not is_tau:
                yield from (Mention(place, None, flag) for flag in FLAG.findall("" if is_other else text))
                continue
            # In a synopsis: flags that the command lacks, and those of the nodes that it starts.
            own, _, of_nodes = re.sub(r"\bbut --\S+", "", text).partition("-- ")
            words = own.split()
            command = list(itertools.takewhile(WORD.fullmatch, words))
            if words and not command and not words[0].startswith("-"):
                command = None  # A placeholder, as in `tau COMMAND --help`.
            else:
                yield Mention(place, command, None)
            yield from (Mention(place, command, flag) for flag in FLAG.findall(own))
            yield from (Mention(place, ["seed"], flag) for flag in FLAG.findall(of_nodes))


def resolve(commands, words):
    """Returns the longest command that the words begin with, and the word that should be a command and is none."""
    name = ""
    for word in words:
        longer = f"{name} {word}".strip()
        if longer not in commands:
            has_commands = any(other.startswith(f"{name} ".lstrip()) and other != name for other in commands)
            return name, word if has_commands else None
        name = longer
    return name, None


def complaints(commands, documents):
    """Returns a sentence for each command or flag that is documented and does not exist, or the other way round."""
    everywhere = frozenset().union(*commands.values())
    missing_commands, missing_flags = set(commands) - {""} - UNLISTED, everywhere - UNLISTED
    for document in documents:
        is_reference = document.name.startswith(REFERENCE)
        for place, words, flag in mentions(document):
            name, unknown = (None, None) if words is None else resolve(commands, words)
            if flag is None:
                if unknown and unknown not in UNLISTED:
                    yield f"{place}: there is no command 'tau {f'{name} {unknown}'.strip()}'"
                elif is_reference:
                    missing_commands -= {name, name.rpartition(" ")[0]}
                continue
            if is_reference:
                missing_flags -= {flag}
            if flag not in everywhere:
                if words is not None or flag not in OF_OTHERS:
                    yield f"{place}: there is no flag --{flag}"
            elif name is not None and not unknown and flag not in commands[name]:
                yield f"{place}: '{f'tau {name}'.strip()}' has no flag --{flag}"
    for name in sorted(missing_commands):
        yield f"docs/usage: the command 'tau {name}' is not documented"
    for flag in sorted(missing_flags):
        having = ", ".join(sorted(name or "tau" for name, flags in commands.items() if flag in flags))
        yield f"docs/usage: the flag --{flag} is not documented (of {having})"
