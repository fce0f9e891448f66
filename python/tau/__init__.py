"""Tau trains one neural network on many machines at once, without a server.

Importing this package imports no PyTorch and downloads nothing. `python -m tau.worker` is the worker that a node starts
where a model is Python code.
"""

from tau import _tau

__version__ = _tau.VERSION

__all__ = ["__version__"]
