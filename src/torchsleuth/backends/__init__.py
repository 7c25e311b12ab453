"""Backends for finding out which part of torch.compile is at fault, each usable by name: `backend="sleuth_aot_eager"`.

Everything is imported on first use, so that listing the backends does not import torch.
"""

from typing import Any

_WHERE = {
    "CATALOG": "torchsleuth.backends.catalog",
    "DebugBackend": "torchsleuth.backends.catalog",
    "with_torch_function_modes": "torchsleuth.backends.function_modes",
    "compiling_inside_traces": "torchsleuth.backends.subgraphs",
    "OpMismatch": "torchsleuth.backends.wrapped_errors",
    "FakeMismatch": "torchsleuth.backends.wrapped_errors",
    "SchemaMismatch": "torchsleuth.backends.wrapped_errors",
    "EagerFails": "torchsleuth.backends.wrapped_errors",
    "UnknownOption": "torchsleuth.backends.keyword_options",
}

__all__ = list(_WHERE)


def __getattr__(name: str) -> Any:
    import importlib

    if name not in _WHERE:
        raise AttributeError(f"module 'torchsleuth.backends' has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)
