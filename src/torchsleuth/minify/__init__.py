"""The smallest graph, inputs and settings that fail the same way.

The package can be called, because `torchsleuth.minify` is both this room and a function of the public API:

    >>> from torchsleuth import minify
    >>> minify(gm, [x], lambda gm, inputs: any(n.target is torch.relu for n in gm.graph.nodes)).calls
    1
"""

import sys
import types
from typing import Any


class _Minify(types.ModuleType):
    """This package as a module that answers a call with `torchsleuth.minify.search.driver.minify`."""

    def __call__(self, gm: Any, inputs: Any, fails: Any, **options: Any) -> Any:
        """Reduces a graph and its inputs as long as `fails(graph, inputs)` says yes; gives a `Reduction`."""
        from torchsleuth.minify.search.driver import minify

        return minify(gm, inputs, fails, **options)


sys.modules[__name__].__class__ = _Minify
