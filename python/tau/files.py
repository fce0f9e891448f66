"""Loads model files: the weights of a module that a run has saved, into a module that the same code makes."""

import json
import sys
from pathlib import Path

from tau.sources import Sources

# Types of numbers in a safetensors file, and PyTorch's names for them.
TYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "I16": "int16",
    "I32": "int32",
    "I64": "int64",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
}
LENGTH_BYTES = 8
# Largest header in bytes that is read, the same limit as in the safetensors library.
HEADER_BYTES_MAX = 100_000_000


class NotAModel(Exception):
    """A file is no model that Tau has saved; the text is a sentence."""


def read(path):
    """The tensors of a model file (safetensors) by their keys, and Tau's metadata on the model."""
    import torch

    try:
        contents = Path(path).read_bytes()
        length = int.from_bytes(contents[:LENGTH_BYTES], "little")
        if len(contents) < LENGTH_BYTES or not 0 < length <= min(len(contents), HEADER_BYTES_MAX):
            raise NotAModel(f"{path} is no safetensors file")
        header = json.loads(contents[LENGTH_BYTES : LENGTH_BYTES + length])
        about = json.loads(header.pop("__metadata__", {}).get("tau", "null"))
        if about is None:
            raise NotAModel(f"{path} was not saved by Tau")
        data = bytearray(contents[LENGTH_BYTES + length :])
        tensors = {}
        for key, slot in header.items():
            start, end = slot["data_offsets"]
            dtype = getattr(torch, TYPES[slot["dtype"]])
            flat = torch.frombuffer(data[start:end], dtype=dtype) if start < end else torch.empty(0, dtype=dtype)
            tensors[key] = flat.view(slot["shape"])
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise NotAModel(f"{path} is damaged, or no model file of Tau's: {error}") from None
    return tensors, about


def load(path, source):
    """Returns the trained module of a model file, in evaluation mode.

    `source` is the path of the Python file whose function `model` makes the module. It is run with your rights, so name
    a file that you trust; nothing in the model file decides what is run.
    """
    net, _ = opened(path, source)
    return net


def opened(path, source):
    """The trained module of a model file, and the names of the file that makes it."""
    tensors, about = read(path)
    sources = Sources(source, Path(source).read_bytes(), lambda file: Path(file).read_bytes())
    code = sources.run()
    net = code.model()
    if about.get("code") not in (None, sources.digest().hex()):
        print(f"warning: {source} is not the code that {path} was trained with", file=sys.stderr)
    net.load_state_dict(tensors, strict=True)
    return net.eval(), code
