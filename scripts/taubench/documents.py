"""The Markdown documents and examples of the repository: their links, their code, their sections and tables."""

import re

FOLDERS = "deploy|protocol|whole_file|worker|communicator|client|tests|scripts|docs|examples"
# Documents beside README.md and docs, with links that are checked where the file is there.
MORE = ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "examples/README.md")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
PATH = re.compile(rf"`((?:{FOLDERS})/[\w./-]+)`")
FUNCTION = re.compile(rf"`((?:{FOLDERS})/[\w./-]+\.rs)`,\s+`(\w+)`")
FENCE = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"(?<!`)(`+)(?!`)((?:(?!\n\s*\n).)+?)(?<!`)\1(?!`)", re.DOTALL)
HEADING = re.compile(r"^(#+) (.*)$", re.MULTILINE)
# The line continues the command of the line above it, as in a synopsis.
CONTINUES = re.compile(r"\s+(\[|--)")


def blank(text):
    """The line breaks of a text, so that the lines below it keep their numbers."""
    return "\n" * text.count("\n")


def spans(text):
    """Returns the inline code of a Markdown text that has no code blocks, each piece with its line in the text."""
    for match in SPAN.finditer(text):
        code = " ".join(match[2].split()).replace("\\|", "|")
        yield text.count("\n", 0, match.start()) + 1, code


class Document:
    """A file with its name in the repository. Unless it is Markdown, all of it is code."""

    def __init__(self, name, text):
        self.name = name
        self.text = text
        self.prose = FENCE.sub(lambda block: blank(block[0]), text) if name.endswith(".md") else ""

    def blocks(self):
        """Returns the lines of code blocks with their numbers. A line with its continuations is one line."""
        is_code = not self.name.endswith(".md")
        start, joined = 0, ""
        for number, line in enumerate(self.text.splitlines(), 1):
            if self.name.endswith(".md") and line.lstrip().startswith("```"):
                is_code = not is_code
                line = ""
            elif not is_code:
                line = ""
            if joined.endswith("\\"):
                joined = f"{joined[:-1].rstrip()} {line.strip()}"
            elif joined and CONTINUES.match(line):
                joined = f"{joined} {line.strip()}"
            else:
                if joined:
                    yield start, joined
                start, joined = number, line
        if joined:
            yield start, joined

    def code(self):
        """Returns all code, inline and in blocks, each piece with its line."""
        yield from spans(self.prose)
        yield from self.blocks()

    def section(self, name):
        """Returns the section with this heading as a document: all other lines are empty. Empty if there is none."""
        start, end, level = 0, 0, None
        for heading in HEADING.finditer(self.prose):
            if level and len(heading[1]) <= level:
                end = heading.start()
                break
            if not level and heading[2] == name:
                start, end, level = heading.start(), len(self.text), len(heading[1])
        lines = self.text.splitlines(keepends=True)
        first, last = self.prose.count("\n", 0, start), self.prose.count("\n", 0, end)
        last = len(lines) if level and end == len(self.text) else last
        return Document(self.name, blank("".join(lines[:first])) + "".join(lines[first:last] if level else []))

    def tables(self):
        """Returns the tables, each as a list of lines with their cells; the first one is the head."""
        table = []
        for number, line in enumerate([*self.prose.splitlines(), ""], 1):
            if line.startswith("|"):
                if not re.fullmatch(r"[|\s:-]+", line):
                    cells = re.split(r"(?<!\\)\|", line.strip().strip("|"))
                    table.append((number, [cell.strip() for cell in cells]))
            elif table:
                yield table
                table = []

    def first_cells(self):
        """Returns the inline code in the first column of all tables, each piece with its line."""
        for table in self.tables():
            for number, cells in table[1:]:
                for _, code in spans(cells[0]):
                    yield number, code


def read(root, path):
    return Document(str(path.relative_to(root)), path.read_text())


def linked(root):
    """Returns the paths of the documents whose links are checked."""
    more = [root / name for name in MORE]
    return [root / "README.md", *sorted((root / "docs").rglob("*.md")), *(path for path in more if path.exists())]


def using(root):
    """Returns the documents and examples that show users the program."""
    examples = (path for path in sorted((root / "examples").glob("*")) if path.suffix in (".md", ".sh", ".toml"))
    documents = [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").rglob("*.md")), *examples]
    return [read(root, path) for path in documents if path.exists()]


def anchors(text):
    """The names of a document's headings, as GitHub makes them."""
    headings = [heading[2] for heading in HEADING.finditer(FENCE.sub("", text))]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def complaints(root, path):
    """Returns what is wrong with a document's links, paths and functions, one sentence each, by their lines."""
    document = read(root, path)
    found = []

    def places(pattern):
        for match in pattern.finditer(document.prose):
            yield document.prose.count("\n", 0, match.start()) + 1, match

    for line, match in places(LINK):
        target, _, heading = match[1].partition("#")
        if "://" in target:
            continue
        other = (path.parent / target).resolve() if target else path
        if not other.exists():
            found.append((line, f"there is no {match[1]}"))
        elif heading and heading not in anchors(other.read_text()):
            found.append((line, f"{match[1]} has no such heading"))
    for line, match in places(PATH):
        if not (root / match[1].rstrip("/")).exists():
            found.append((line, f"there is no {match[1]}"))
    for line, match in places(FUNCTION):
        file = root / match[1]
        if file.exists() and not re.search(rf"\bfn {match[2]}\b", file.read_text()):
            found.append((line, f"{match[1]} has no function {match[2]}"))
    return [f"{document.name}:{line}: {fault}" for line, fault in sorted(found)]
