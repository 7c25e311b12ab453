"""What an observed run shows, from the events that its processes wrote: pure, without torch.

The package can be called, because `torchsleuth.explain` is both this room and a function of the public API:

    >>> from torchsleuth import explain
    >>> explain(lambda x: x * 2)(torch.ones(2)).graph_break_count
    0
"""

import importlib
import sys
import types
from typing import Any


class _Explain(types.ModuleType):
    """This package as a module that answers a call with `torchsleuth.explained.explain`, which needs torch."""

    def __call__(self, function: Any, **options: Any) -> Any:
        """A function that calls `function` under torch.compile and gives an `ExplainOutput`."""
        return importlib.import_module("torchsleuth.explained").explain(function, **options)


sys.modules[__name__].__class__ = _Explain
