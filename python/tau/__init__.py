"""Tau trains one neural network on many machines at once, without a server.

Importing this package imports no PyTorch and downloads nothing. `tau.load` returns a trained module, and `python -m
tau.worker` is the worker that a node with `--python` starts.
"""

from tau import _tau
from tau.files import NotAModel, load

__version__ = _tau.VERSION

__all__ = ["NotAModel", "__version__", "load"]
