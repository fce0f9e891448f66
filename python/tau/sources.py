"""Runs the main file (the user's file that defines a model) and the modules that it imports from its folder, from the
very bytes that are hashed.

Each file is read once, by a function of the caller's; its bytes are recorded, compiled and executed. Python itself
reads neither the folder nor a `.pyc` in it. Code that is run in other ways, as by `exec(open("x.py").read())`,
`runpy` or another loader, cannot be seen and is not hashed; nor is code outside of the folder, which counts as
installed.
"""

import ast
import hashlib
import importlib.abc
import importlib.machinery
import importlib.util
import linecache
import os
import sys
import threading
from pathlib import Path

# Name of the Python module that the main file becomes.
MODEL = "__tau__"


class SourceRefused(ImportError):
    """A file of the folder is not run; the text is a sentence without values."""


class Sources(importlib.abc.MetaPathFinder):
    """The main file and its neighbours: the modules in its folder. Only the newest instance finds modules."""

    newest = None
    # Folders below the model's that hold installed packages.
    installed = frozenset()

    def __init__(self, file, code, read):
        """`code` holds the bytes of `file`; `read` returns those of another file by its absolute path."""
        if Sources.newest is not None:
            Sources.newest.close()
        self.file = str(absolute(file))
        self.folder = absolute(file).parent
        self.real_folder = Path(os.path.realpath(self.folder))
        self.read = read
        # Guards `codes` and `sealed`: the digest of sealed sources is that of all code that can ever run.
        self.lock = threading.RLock()
        self.codes = {self.file: bytes(code)}
        self.sealed = False
        # Names of the modules that were found in the folder.
        self.names = set()
        # Top-level name of each absolute import in the sources, and the first file that imports it.
        self.imports = {}
        self.path = list(sys.path)
        # The interpreter may lie beside the model, with its packages in `venv/lib/python3.11/site-packages`.
        self.installed = {place for place in map(self.place, sys.path) if place not in (None, self.folder)}
        # Installed modules come first.
        sys.meta_path.append(self)
        sys.path_hooks.insert(0, self.hide)
        self.forget_finders()
        Sources.newest = self

    def run(self):
        """Executes the main file, and returns its Python module."""
        spec = self.spec(MODEL, self.file)
        module = importlib.util.module_from_spec(spec)
        # Dataclasses, type hints and pickles look the module of a class up by its name.
        sys.modules[MODEL] = module
        try:
            exec(spec.loader.get_code(MODEL), module.__dict__)
        finally:
            self.warn()
        return module

    def seal(self):
        """Forbids further reads: from now on, imports of modules of the folder that were not read before fail."""
        with self.lock:
            self.sealed = True

    def digest(self):
        """SHA-256 of the relative paths and bytes of all files that were read. The main file's name does not count."""
        with self.lock:
            named = [("" if file == self.file else self.name(file), code) for file, code in self.codes.items()]
        # All hashes have the same length, so that different names and contents cannot give the same sequence of bytes.
        pairs = sorted((sha256(os.fsencode(name)), sha256(code)) for name, code in named)
        return sha256(b"".join(name + code for name, code in pairs))

    def files(self):
        """Absolute paths of all files that were read, as they stand in tracebacks; the main file comes first."""
        with self.lock:
            return list(self.codes)

    def name(self, file):
        """The path of a file relative to the folder, as messages and the digest have it."""
        return Path(os.path.relpath(file, self.folder)).as_posix()

    def close(self):
        """Forgets the modules, and finds no others. The code must not be in use any more."""
        if Sources.newest is not self:
            return
        Sources.newest = None
        self.seal()
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
        sys.path_hooks[:] = [hook for hook in sys.path_hooks if hook != self.hide]
        self.forget_finders()
        sys.path[:] = self.path
        for name in [MODEL, *self.names]:
            sys.modules.pop(name, None)
        for file in self.codes:
            linecache.cache.pop(file, None)

    def code(self, file):
        """The bytes of a file, which is read if it was not before."""
        with self.lock:
            if file not in self.codes:
                if self.sealed:
                    raise SourceRefused(
                        f"{self.importer()} imports {self.name(file)} after the model was prepared: import it at the "
                        "top of the file",
                        path=file,
                    )
                try:
                    self.codes[file] = bytes(self.read(file))
                except (OSError, RuntimeError) as error:
                    raise SourceRefused(f"{self.importer()} imports {self.name(file)}: {error}", path=file) from error
            return self.codes[file]

    def importer(self):
        """The innermost line of the sources on this thread's stack."""
        frame = sys._getframe()
        while frame is not None:
            if frame.f_code.co_filename in self.codes:
                return f"{self.name(frame.f_code.co_filename)}:{frame.f_lineno}"
            frame = frame.f_back
        return "an installed module"

    def find_spec(self, fullname, path=None, target=None):
        """Finds a module in the folder, if no other finder has found it: a part of importlib's protocol."""
        tail = fullname.rpartition(".")[2]
        portions = []
        for entry in [str(self.folder), *sys.path] if path is None else path:
            place = self.place(entry)
            if place is None:
                continue
            for file in (place / tail / "__init__.py", place / f"{tail}.py"):
                # A broken symbolic link is found, too: reading it says what is wrong.
                if os.path.lexists(file):
                    return self.spec(fullname, str(file))
            if (place / tail).is_dir():
                portions.append(str(place / tail))
        if not portions:
            return None
        # Folders without `__init__.py` are a namespace package, which has no code to run.
        self.names.add(fullname)
        spec = importlib.machinery.ModuleSpec(fullname, None, is_package=True)
        spec.submodule_search_locations = list(dict.fromkeys(portions))
        return spec

    def spec(self, fullname, file):
        self.names.add(fullname)
        loader = RecordedLoader(self, file)
        parts = [str(Path(file).parent)] if loader.is_package(fullname) else None
        return importlib.util.spec_from_file_location(fullname, file, loader=loader, submodule_search_locations=parts)

    def place(self, entry):
        """The folder that an entry of `sys.path` or of a package's path means, if it is part of the model's folder."""
        if not isinstance(entry, str):
            return None
        for path, folder in ((absolute(entry), self.folder), (Path(os.path.realpath(entry)), self.real_folder)):
            if path.is_relative_to(folder):
                place = self.folder / path.relative_to(folder)
                return place if self.installed.isdisjoint((place, *place.parents)) else None
        return None

    def hide(self, entry):
        """Keeps Python's own finder, which would read files again, from the folder: a hook of `sys.path_hooks`."""
        if self.place(entry) is None:
            raise ImportError("not a folder of the model")
        return HiddenFolder(entry)

    def forget_finders(self):
        for entry in list(sys.path_importer_cache):
            if self.place(entry) is not None:
                sys.path_importer_cache.pop(entry, None)

    def warn(self):
        """Tells the user which neighbours were not imported, because installed modules have their names."""
        for name, importer in list(self.imports.items()):
            for file in (self.folder / name / "__init__.py", self.folder / f"{name}.py"):
                if name in sys.modules and name not in self.names and os.path.lexists(file):
                    print(
                        f"warning: {self.name(importer)} imports {name}, which is an installed module and not "
                        f"{self.name(file)}: rename the file if you mean that",
                        file=sys.stderr,
                    )


class RecordedLoader(importlib.abc.InspectLoader):
    """The loader of one file: executes the bytes that its sources have recorded."""

    def __init__(self, sources, file):
        self.sources = sources
        self.file = file

    def is_package(self, fullname):
        return Path(self.file).name == "__init__.py"

    def get_source(self, fullname):
        return importlib.util.decode_source(self.sources.code(self.file))

    def get_code(self, fullname):
        code = self.sources.code(self.file)
        tree = ast.parse(code, self.file)
        for name in imported(tree):
            self.sources.imports.setdefault(name.partition(".")[0], self.file)
        # Tracebacks show these lines: without a modification time, Python does not look for newer ones on the disk.
        lines = [line + "\n" for line in self.get_source(fullname).split("\n")]
        linecache.cache[self.file] = (len(code), None, lines, self.file)
        return compile(tree, self.file, "exec", dont_inherit=True)


class HiddenFolder(importlib.machinery.FileFinder):
    """Lists the modules of a folder for `pkgutil`, and finds none: that is left to `Sources`."""

    def find_spec(self, fullname, target=None):
        return None


def imported(tree):
    """Names of the modules that code imports by absolute imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module


def absolute(path):
    return Path(os.path.normpath(Path(path).absolute()))


def sha256(data):
    return hashlib.sha256(data).digest()
