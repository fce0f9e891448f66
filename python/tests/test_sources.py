"""Tests of `tau.sources`, without the extension and without PyTorch."""

import contextlib
import hashlib
import importlib
import importlib.util
import inspect
import io
import linecache
import os
import pathlib
import pickle
import pkgutil
import py_compile
import shutil
import sys
import tempfile
import threading
import time
import traceback
import typing
import unittest

TAU = pathlib.Path(__file__).resolve().parent.parent / "tau"
HAS_TORCH = importlib.util.find_spec("torch") is not None
LINE = "after the model was prepared: import it at the top of the file"


def loaded():
    """The module `tau.sources`, without the package and its extension."""
    spec = importlib.util.spec_from_file_location("tau_sources", TAU / "sources.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def raised(call):
    """What a call raises, with its traceback."""
    try:
        call()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


class Case(unittest.TestCase):
    def setUp(self):
        self.sources = loaded()
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.root = pathlib.Path(temporary.name).resolve()
        self.folder = self.root / "project"
        self.folder.mkdir()
        self.read = []
        # A folder of installed packages, if a test makes one.
        self.site = str(self.folder / "venv" / "site-packages")
        self.state = {name: list(getattr(sys, name)) for name in ("path", "meta_path", "path_hooks")}
        modules = set(sys.modules)
        writes = sys.dont_write_bytecode
        # Python may write bytecode: `restore` checks that it has written none for the folder.
        sys.dont_write_bytecode = False

        def restore():
            sys.dont_write_bytecode = writes
            if self.sources.Sources.newest is not None:
                self.sources.Sources.newest.close()
            if self.site in sys.path:
                sys.path.remove(self.site)
                shutil.rmtree(self.site)
                for name in set(sys.modules) - modules:
                    if (getattr(sys.modules[name], "__file__", None) or "").startswith(self.site):
                        del sys.modules[name]
            for name, value in self.state.items():
                if value is not None:
                    self.assertEqual(getattr(sys, name), value, f"sys.{name} is not as it was")
            for name in set(sys.modules) - modules:
                origin = getattr(sys.modules[name], "__file__", None) or ""
                self.assertFalse(origin.startswith(str(self.folder)), f"{name} was not forgotten")
            self.assertEqual([*self.folder.rglob("*.pyc"), *self.folder.rglob("__pycache__")], [])

        self.addCleanup(restore)

    def write(self, files, folder=None):
        for name, text in files.items():
            file = (folder or self.folder) / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(text if isinstance(text, bytes) else text.encode())

    def reader(self, path):
        """Reads as Rust does: only regular files below the root, and no links out of it."""
        self.read.append(os.path.relpath(path, self.folder))
        real = pathlib.Path(path).resolve()
        if not real.is_relative_to(self.root):
            raise RuntimeError(f"{path} is not below the data root")
        if not real.is_file():
            raise RuntimeError(f"{path} is not a file")
        return real.read_bytes()

    def made(self, files, model="net.py", folder=None, read=None):
        """Sources whose main file is given as bytes and not read."""
        self.write(files, folder)
        file = (folder or self.folder) / model
        return self.sources.Sources(str(file), file.read_bytes(), read or self.reader)

    def ran(self, files, **options):
        sources = self.made(files, **options)
        return sources, sources.run()

    def fails(self, files, kind, says, **options):
        """The traceback of a main file that fails."""
        error = raised(self.made(files, **options).run)
        self.assertIsInstance(error, kind)
        self.assertIn(says, str(error))
        return "".join(traceback.format_exception(error))

    def digest(self, files, **options):
        sources, _ = self.ran(files, **options)
        return sources.digest()


class Imports(Case):
    def test_neighbours_packages_and_relative_imports(self):
        sources, module = self.ran(
            {
                "net.py": "import helper\nimport kit.parts.small as small\nfrom kit import parts, ONE\n"
                "from helper import two\ntotal = helper.two() + small.three() + ONE\n",
                "helper.py": "def two():\n    return 2\n",
                "kit/__init__.py": "from .parts import ONE\nfrom . import other\n",
                "kit/other.py": "from .parts.small import three\n",
                "kit/parts/__init__.py": "ONE = 1\n",
                "kit/parts/small.py": "from .. import parts\nfrom ..parts import ONE\ndef three():\n    return 3\n",
                "unused.py": "raise SystemExit\n",
            }
        )
        self.assertEqual(module.total, 6)
        self.assertEqual((module.__name__, module.__file__), ("__tau__", str(self.folder / "net.py")))
        self.assertIs(sys.modules["__tau__"], module)
        read = ["helper.py", "kit/__init__.py", "kit/other.py", "kit/parts/__init__.py", "kit/parts/small.py"]
        self.assertEqual(sorted(self.read), read)
        self.assertEqual(sorted(map(sources.name, sources.files())), [*read, "net.py"])
        self.assertEqual(sources.files()[0], str(self.folder / "net.py"))
        self.assertEqual(module.helper.__file__, str(self.folder / "helper.py"))
        self.assertEqual(module.parts.__path__, [str(self.folder / "kit" / "parts")])

    def test_a_package_without_init_has_hashed_modules(self):
        sources, module = self.ran(
            {"net.py": "import kit.deep.one\nn = kit.deep.one.n\n", "kit/deep/one.py": "n = 1\n"}
        )
        self.assertEqual((module.n, self.read), (1, ["kit/deep/one.py"]))
        self.assertIn(str(self.folder / "kit/deep/one.py"), sources.files())

    def test_a_missing_module_is_missing(self):
        self.fails({"net.py": "import nothing_like_it\n"}, ModuleNotFoundError, "No module named 'nothing_like_it'")
        self.fails({"net.py": "import kit.no\n", "kit/__init__.py": ""}, ModuleNotFoundError, "named 'kit.no'")
        self.fails(
            {"net.py": "from helper import no\n", "helper.py": ""}, ImportError, "import name 'no' from 'helper'"
        )
        self.fails({"net.py": "from . import helper\n"}, ImportError, "no known parent package")

    def test_circular_imports(self):
        _, module = self.ran(
            {
                "net.py": "import one\nn = one.n() + one.two.m\n",
                "one.py": "import two\ndef n():\n    return two.m\n",
                "two.py": "import one\nm = 2\n",
            }
        )
        self.assertEqual(module.n, 4)
        files = {
            "net.py": "import one\n",
            "one.py": "from two import m\nn = 1\n",
            "two.py": "from one import n\nm = 2\n",
        }
        printed = self.fails(files, ImportError, "partially initialized module 'one'")
        self.assertIn('two.py", line 1', printed)

    def test_a_neighbour_may_import_the_model_file(self):
        text = "N = 3\ndef late():\n    import helper\n    return helper.M\n"
        _, module = self.ran({"net.py": text + "import helper\n", "helper.py": "import net\nM = net.N + 1\n"})
        self.assertEqual((module.late(), self.read), (4, ["helper.py"]))

    def test_a_relative_path_and_another_working_directory(self):
        self.write({"sub/net.py": "import helper\n", "sub/helper.py": "n = 1\n", "more.py": "n = 2\n"})
        before = pathlib.Path.cwd()
        self.addCleanup(os.chdir, before)
        os.chdir(self.folder)
        sources = self.sources.Sources(os.path.join("sub", "..", "sub", "net.py"), b"import helper\n", self.reader)  # noqa: PTH118
        os.chdir(self.root)
        module = sources.run()
        self.assertEqual(module.__file__, str(self.folder / "sub" / "net.py"))
        self.assertEqual(module.helper.__file__, str(self.folder / "sub" / "helper.py"))

    def test_classes_are_found_by_the_names_of_their_modules(self):
        text = (
            "from __future__ import annotations\nimport dataclasses, enum, typing\n\n"
            "class Size(enum.Enum):\n    SMALL = 1\n\n"
            "@dataclasses.dataclass\nclass Shape:\n    size: Size = Size.SMALL\n    n: typing.ClassVar[int] = 2\n\n"
            "class Row(typing.NamedTuple):\n    size: Size\n"
        )
        _, module = self.ran({"net.py": text + "import helper\n", "helper.py": text})
        for own in (module, module.helper):
            self.assertIs(typing.get_type_hints(own.Shape)["size"], own.Size)
            self.assertEqual([field.name for field in own.dataclasses.fields(own.Shape)], ["size"])
            shape = pickle.loads(pickle.dumps(own.Shape()))
            self.assertIs(type(shape), own.Shape)
            self.assertIs(shape.size, own.Size.SMALL)
            self.assertEqual(pickle.loads(pickle.dumps(own.Row(1))), own.Row(1))
            self.assertEqual(inspect.getsource(own.Row), "class Row(typing.NamedTuple):\n    size: Size\n")
        self.assertEqual(module.Shape.__module__, "__tau__")

    def test_other_encodings(self):
        latin = "# coding: latin-1\nword = 'é'\n1 / 0\n".encode("latin-1")
        printed = self.fails({"net.py": "import helper\n", "helper.py": latin}, ZeroDivisionError, "division")
        self.assertIn("    1 / 0\n", printed)
        _, module = self.ran({"net.py": b"\xef\xbb\xbfword = '\xc3\xa9'\r\n"})
        self.assertEqual(module.word, "é")
        self.fails({"net.py": "import helper\n", "helper.py": b"word = '\xe9'\n"}, SyntaxError, "utf-8")

    def test_no_futures_are_inherited_and_exec_flags_are_own(self):
        _, module = self.ran({"net.py": "def f(x: 1 + 1): pass\n"})
        self.assertEqual(module.f.__annotations__, {"x": 2})

    def test_modules_are_listed_and_their_data_found(self):
        _, module = self.ran({"net.py": "import kit\n", "kit/__init__.py": "", "kit/a.py": "", "kit/b/__init__.py": ""})
        self.assertEqual([found.name for found in pkgutil.iter_modules(module.kit.__path__)], ["a", "b"])

    def test_threads_import_one_file_once(self):
        gate = threading.Barrier(8)
        text = (
            "def late(gate):\n    gate.wait()\n    import helper\n    import kit.one\n    return helper.one, kit.one\n"
        )
        _, module = self.ran(
            {
                "net.py": text,
                "helper.py": "import time\nimport kit.one as one\ntime.sleep(0.05)\n",
                "kit/__init__.py": "",
                "kit/one.py": "import time\ntime.sleep(0.05)\n",
            }
        )
        results = []
        threads = [threading.Thread(target=lambda: results.append(module.late(gate))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual((len(results), len({id(part) for pair in results for part in pair})), (8, 1))
        self.assertEqual(sorted(self.read), ["helper.py", "kit/__init__.py", "kit/one.py"])

    def test_one_file_of_two_names_is_read_once(self):
        def read(path):
            time.sleep(0.1)
            return self.reader(path)

        text = "import sys, threading\nsys.path.append(__file__.replace('net.py', 'lib'))\n"
        text += "threads = [threading.Thread(target=__import__, args=[name]) for name in ('one', 'lib.one')]\n"
        text += "for thread in threads:\n    thread.start()\nfor thread in threads:\n    thread.join()\n"
        text += "import one, lib.one\n"
        _, module = self.ran({"net.py": text, "lib/one.py": ""}, read=read)
        self.assertEqual(self.read, ["lib/one.py"])
        self.assertIsNot(module.one, module.lib.one)


class Shadows(Case):
    """Neighbours with the names of other modules, and folders on Python's own path."""

    def installed(self, files):
        """Installs packages in the folder's own environment."""
        self.write(files, pathlib.Path(self.site))
        sys.path.append(self.site)

    def ran_aloud(self, files):
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            sources, module = self.ran(files)
        return sources, module, said.getvalue()

    def test_installed_modules_win(self):
        stray = "raise SystemExit('the neighbour was run')\n"
        text = "import json, colorsys\nimport helper\ndef late():\n    import nothing_like_it\n"
        _, module, said = self.ran_aloud(
            {
                "net.py": text,
                "helper.py": "import json\n",
                "json.py": stray,
                "colorsys/__init__.py": stray,
                "re.py": stray,
            }
        )
        self.assertEqual(module.json.loads("[1]"), [1])
        self.assertEqual(self.read, ["helper.py"])
        # Each once, and those only that the user imports.
        self.assertEqual(said.count("net.py imports json, which is an installed module and not json.py"), 1)
        self.assertEqual(said.count("net.py imports colorsys, which is an installed module and not colorsys/__"), 1)
        self.assertEqual(said.count("\n"), 2)

    def test_installed_packages_win_lazily_and_inside_themselves(self):
        stray = "raise SystemExit('the neighbour was run')\n"
        self.installed(
            {
                "net_kit/__init__.py": "from net_kit import nn\n",
                "net_kit/nn.py": "",
                "net_kit/lazy.py": "import net_numbers\n",
                "net_numbers.py": "n = 1\n",
            }
        )
        sources, module, said = self.ran_aloud(
            {
                "net.py": "def late():\n    import net_kit.lazy\n    return net_kit.lazy.net_numbers.n\n",
                "net_kit.py": stray,
                "net_numbers.py": stray,
                "nn.py": stray,
            }
        )
        sources.seal()
        self.assertEqual((module.late(), self.read, said), (1, [], ""))

    @unittest.skipUnless(HAS_TORCH, "there is no PyTorch")
    def test_pytorch_wins(self):
        stray = "raise SystemExit('the neighbour was run')\n"
        names = ["torch.py", "numpy.py", "typing_extensions.py", "pickle.py", "torch/__init__.py"]
        text = "import torch\nfrom torch import nn\nfrom torch.utils import data\n"
        text += "def model():\n    return nn.Linear(2, 1)\n"
        # PyTorch appends finders to Python's own.
        self.state["meta_path"] = None
        _, module, said = self.ran_aloud({"net.py": text, **dict.fromkeys(names, stray)})
        self.assertEqual(module.model().weight.numel(), 2)
        self.assertEqual(self.read, [])
        self.assertIn("imports torch, which is an installed module", said)

    def test_an_interpreter_below_the_folder_is_installed(self):
        self.installed({"wide/__init__.py": "", "wide/deep.py": "n = 1\n"})
        _, module, _ = self.ran_aloud({"net.py": "import wide.deep\nn = wide.deep.n\n"})
        self.assertEqual((module.n, self.read), (1, []))
        self.assertTrue(module.wide.__file__.startswith(self.site))

    def test_a_warning_comes_although_the_file_fails(self):
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            self.fails(
                {"net.py": "from queue import Mine\n", "queue.py": "Mine = 1\n"}, ImportError, "cannot import name"
            )
        self.assertIn("rename the file", said.getvalue())

    def test_the_folder_on_the_path_is_hashed_all_the_same(self):
        for entry in ("str(folder)", "str(folder / 'sub' / '..')", "''", "'.'", "str(folder.parent / 'alias')"):
            with self.subTest(entry=entry), contextlib.ExitStack() as stack:
                before = pathlib.Path.cwd()
                stack.callback(os.chdir, before)
                os.chdir(self.folder)
                alias = self.root / "alias"
                if not alias.is_symlink():
                    alias.symlink_to(self.folder)
                text = f"import sys, pathlib\nfolder = pathlib.Path(__file__).parent\nsys.path.insert(0, {entry})\n"
                self.read.clear()
                text += "import helper, json\nimport one\nimport kit.two\n"
                lib = {"lib/one.py": "n = 1\n", "json.py": "raise SystemExit\n", "kit/two.py": ""}
                helper = "import sys, pathlib\nsys.path.insert(0, str(pathlib.Path(__file__).parent / 'lib'))\n"
                sources, _, _ = self.ran_aloud({"net.py": text, "helper.py": helper, **lib})
                self.assertEqual(self.read, ["helper.py", "lib/one.py", "kit/two.py"])
                sources.close()
                self.assertNotIn(str(self.folder), sys.path)

    def test_a_folder_that_was_on_the_path_before_is_hashed_all_the_same(self):
        """An editable install puts the project's folder on the path."""
        self.write({"early.py": ""})
        sys.path.insert(0, str(self.folder))
        # Python's own finder knows the folder now.
        importlib.util.find_spec("early")
        _, module, _ = self.ran_aloud(
            {"net.py": "import helper, json\n", "helper.py": "", "json.py": "raise SystemExit\n"}
        )
        self.assertEqual((self.read, module.json.loads("1")), (["helper.py"], 1))
        self.sources.Sources.newest.close()
        sys.path.remove(str(self.folder))

    def test_bytecode_is_neither_read_nor_written(self):
        self.write({"helper.py": "n = 1\n"})
        cached = py_compile.compile(str(self.folder / "helper.py"))
        stat = (self.folder / "helper.py").stat()
        self.write({"helper.py": "n = 2\n", "only.pyc": pathlib.Path(cached).read_bytes()})
        os.utime(self.folder / "helper.py", ns=(stat.st_atime_ns, stat.st_mtime_ns))
        _, module = self.ran({"net.py": "import helper\nn = helper.n\n"})
        self.assertEqual(module.n, 2)
        self.fails({"net.py": "import only\n"}, ModuleNotFoundError, "only")
        shutil.rmtree(pathlib.Path(cached).parent)
        (self.folder / "only.pyc").unlink()


class Hashes(Case):
    def test_the_hashed_bytes_are_executed(self):
        """A neighbour that changes whenever it is read, and a main file that has changed since."""
        answers = iter([b"n = 1\n", b"n = 2\n", b"n = 3\n"])
        sources = self.made(
            {
                "net.py": "import helper\nn = helper.n\nimport importlib\nimportlib.reload(helper)\nm = helper.n\n",
                "helper.py": "n = 9\n",
            },
            read=lambda _: next(answers),
        )
        self.write({"net.py": "raise SystemExit\n"})
        module = sources.run()
        self.assertEqual((module.n, module.m, next(answers)), (1, 1, b"n = 2\n"))
        other = self.digest({"net.py": sources.codes[sources.file], "helper.py": "n = 1\n"})
        self.assertEqual(sources.digest(), other)

    def test_tracebacks_and_sources_show_the_lines_that_ran(self):
        sources, module = self.ran({"net.py": "import helper\n", "helper.py": "def f():\n    return 1 / 0\n"})
        self.write({"helper.py": "# new\ndef f():\n    return 'another thing'\n", "net.py": "pass\n"})
        error = raised(module.helper.f)
        printed = "".join(traceback.format_exception(error))
        self.assertIn(f'{self.folder / "helper.py"}", line 2, in f\n    return 1 / 0\n', printed)
        self.assertEqual(inspect.getsource(module.helper.f), "def f():\n    return 1 / 0\n")
        self.assertEqual(module.helper.__loader__.get_source("helper"), "def f():\n    return 1 / 0\n")
        frames = traceback.extract_tb(error.__traceback__)
        self.assertEqual([frame.lineno for frame in frames if frame.filename in sources.files()], [2])

    def test_a_syntax_error_names_file_and_line(self):
        files = {"net.py": "n = 1\nimport helper\n", "helper.py": "n = 1\ndef f(:\n"}
        printed = self.fails(files, SyntaxError, "helper.py, line 2")
        self.assertIn(f'{self.folder / "net.py"}", line 2', printed)
        self.assertIn(f'{self.folder / "helper.py"}", line 2\n    def f(:\n', printed)
        self.fails({"net.py": "n = 1\nreturn\n"}, SyntaxError, "net.py, line 2")

    def test_what_cannot_be_read_is_named(self):
        self.write({"../outside.py": "n = 1\n"})
        outside = self.root.parent / f"{self.root.name}.py"
        outside.write_text("raise SystemExit\n")
        self.addCleanup(outside.unlink)
        (self.folder / "helper.py").symlink_to(outside)
        (self.folder / "gone.py").symlink_to(self.folder / "nowhere")
        (self.folder / "table.py").mkdir()
        (self.folder / "kit").symlink_to(self.root.parent)
        self.fails({"net.py": "\nimport helper\n"}, ImportError, "net.py:2 imports helper.py: ")
        self.fails({"net.py": "import gone\n"}, ImportError, "net.py:1 imports gone.py: ")
        self.fails({"net.py": "import table\n"}, ImportError, "net.py:1 imports table.py: ")
        package = {"net.py": f"import kit.{self.root.name}\n"}
        self.fails(package, ImportError, f"imports kit/{self.root.name}.py: ")
        sources = self.sources.Sources.newest
        self.assertEqual(sources.files(), [sources.file])

    def test_a_digest_follows_from_contents_and_relative_paths(self):
        files = {"net.py": "import helper, kit.one\n", "helper.py": "n = 1\n", "kit/one.py": "n = 1\n"}
        digest = self.digest(files)
        self.assertEqual(len(digest), 32)
        other = self.root / "elsewhere" / "deeper"
        other.mkdir(parents=True)
        self.assertEqual(self.digest(files, folder=other), digest)
        renamed = {"my-net.py": files["net.py"], "helper.py": "n = 1\n", "kit/one.py": "n = 1\n"}
        self.assertEqual(self.digest(renamed, model="my-net.py"), digest)
        changes = {
            "a neighbour": {**files, "helper.py": "n = 2\n"},
            "a module of a package": {**files, "kit/one.py": "n = 2\n"},
            "the model": {**files, "net.py": files["net.py"] + "#"},
            "an import": {**files, "net.py": "import helper\n"},
        }
        digests = {name: self.digest(changed) for name, changed in changes.items()}
        self.assertEqual(len({digest, *digests.values()}), 5)
        # A file that is not imported does not count; the order of imports does, as it is part of a file.
        self.assertEqual(self.digest({**files, "unused.py": "n = 5\n"}), digest)

    def test_contents_of_two_files_cannot_be_exchanged(self):
        one = self.digest({"net.py": "import a, b\n", "a.py": "n = 1\n", "b.py": "n = 2\n"})
        two = self.digest({"net.py": "import a, b\n", "a.py": "n = 2\n", "b.py": "n = 1\n"})
        self.assertNotEqual(one, two)

    def test_the_order_of_imports_does_not_count(self):
        text = "def late(names):\n    for name in names:\n        __import__(name)\n"
        digests = []
        for names in ("ab", "ba"):
            sources, module = self.ran({"net.py": text, "a.py": "n = 1\n", "b.py": "n = 2\n"})
            before = sources.digest()
            module.late(names)
            self.assertNotEqual(sources.digest(), before)
            digests.append(sources.digest())
        self.assertEqual(*digests)

    def test_the_digest_is_the_documented_one(self):
        def sha(data):
            return hashlib.sha256(data).digest()

        digest = self.digest({"net.py": "import helper\n", "helper.py": "n = 1\n"})
        pairs = sorted([(sha(b""), sha(b"import helper\n")), (sha(b"helper.py"), sha(b"n = 1\n"))])
        self.assertEqual(digest, sha(b"".join(a + b for a, b in pairs)))


class Sealed(Case):
    def test_a_late_import_is_refused_with_its_line(self):
        late = "import importlib\nimport kit\ndef late():\n    import helper\n"
        late += "def named():\n    importlib.import_module('helper')\n"
        late += "def part():\n    from kit import sub\ndef space():\n    import space.one\n"
        files = {"net.py": late, "helper.py": "raise SystemExit\n", "kit/__init__.py": "", "kit/sub.py": ""}
        sources, module = self.ran({**files, "space/one.py": ""})
        sources.seal()
        digest = sources.digest()
        cases = {module.late: ("net.py:4", "helper.py"), module.named: ("net.py:6", "helper.py")}
        cases |= {module.part: ("net.py:8", "kit/sub.py"), module.space: ("net.py:10", "space/one.py")}
        for call, (place, file) in cases.items():
            for _ in range(2):
                self.assertEqual(str(raised(call)), f"{place} imports {file} {LINE}")
        self.assertEqual((self.read, sources.digest()), (["kit/__init__.py"], digest))

    def test_a_thread_without_the_users_lines_is_refused(self):
        sources, _ = self.ran({"net.py": "", "helper.py": ""})
        sources.seal()
        said = []

        def work():
            try:
                importlib.import_module("helper")
            except ImportError as error:
                said.append(str(error))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        self.assertEqual(said, [f"an installed module imports helper.py {LINE}"])

    def test_what_was_imported_stays(self):
        text = "import helper, kit.sub\nimport sys, importlib, pickle\n"
        text += "def late():\n    import helper, kit.sub\n    from kit import sub\n    return helper.n + sub.n\n"
        text += "def anew():\n    del sys.modules['helper']\n    import helper\n    return helper.n\n"
        text += "def copied():\n    return pickle.loads(pickle.dumps(helper.A))\n"
        helper = "n = 1\nclass A:\n    pass\n"
        sources, module = self.ran({"net.py": text, "helper.py": helper, "kit/sub.py": "n = 2\n"})
        sources.seal()
        self.write({"helper.py": "raise SystemExit\n"})
        self.assertIs(module.copied(), sys.modules["helper"].A)
        self.assertEqual((module.late(), module.anew()), (3, 1))

    def test_installed_modules_can_be_imported_late(self):
        sys.modules.pop("colorsys", None)
        sources, module = self.ran({"net.py": "def late():\n    import colorsys\n    return colorsys\n"})
        sources.seal()
        self.assertIs(module.late(), sys.modules["colorsys"])

    def test_a_missing_module_is_missing_still(self):
        sources, module = self.ran({"net.py": "def late():\n    import nothing_like_it\n", "helper.py": ""})
        sources.seal()
        self.assertRaises(ModuleNotFoundError, module.late)
        # Finding a module is not importing it.
        self.assertIsNotNone(importlib.util.find_spec("helper"))


class Again(Case):
    def test_a_second_load_takes_changed_neighbours(self):
        files = {
            "net.py": "import helper, kit.sub\nn = helper.n, kit.sub.n\n",
            "helper.py": "n = 1\n",
            "kit/sub.py": "n = 1\n",
        }
        first, one = self.ran(files)
        first.seal()
        second, two = self.ran({**files, "helper.py": "n = 2\n", "kit/sub.py": "n = 2\n"})
        self.assertEqual((one.n, two.n), ((1, 1), (2, 2)))
        self.assertNotEqual(first.digest(), second.digest())
        self.assertIsNot(one.helper, two.helper)
        self.assertEqual(sum(isinstance(finder, self.sources.Sources) for finder in sys.meta_path), 1)
        # The first is no longer heeded, and closing it does nothing.
        first.close()
        self.assertIn("helper", sys.modules)

    def test_a_neighbour_that_was_removed_is_gone(self):
        files = {"net.py": "import helper\n", "helper.py": "n = 1\n"}
        self.ran(files)
        (self.folder / "helper.py").unlink()
        self.fails({"net.py": "import helper\n"}, ModuleNotFoundError, "helper")

    def test_another_project_sees_nothing_of_the_first(self):
        text = "import sys, pathlib\nsys.path.insert(0, str(pathlib.Path(__file__).parent))\nimport helper\n"
        self.ran({"net.py": text, "helper.py": "import sys\nsys.modules[__name__] = 5\n"})
        other = self.root / "other"
        self.fails({"net.py": "import helper\n"}, ModuleNotFoundError, "helper", folder=other)

    def test_closing_forgets_everything(self):
        text = "import helper, kit.one\ndef f():\n    import other\n"
        sources, module = self.ran({"net.py": text, "helper.py": "", "kit/one.py": "", "other.py": ""})
        sources.close()
        sources.close()
        self.assertFalse({"__tau__", "helper", "kit", "kit.one"} & set(sys.modules))
        self.assertNotIn(sources, sys.meta_path)
        self.assertRaises(ModuleNotFoundError, module.f)
        self.assertFalse([entry for entry in sys.path_importer_cache if entry.startswith(str(self.folder))])
        self.assertFalse(set(sources.files()) & set(linecache.cache))

    def test_a_failed_load_leaves_the_next_one_alone(self):
        self.fails(
            {"net.py": "import helper\n", "helper.py": "import other\n1 / 0\n", "other.py": "n = 1\n"},
            ZeroDivisionError,
            "",
        )
        _, module = self.ran({"net.py": "import helper\n", "helper.py": "import other\n", "other.py": "n = 2\n"})
        self.assertEqual(module.helper.other.n, 2)


if __name__ == "__main__":
    unittest.main()
