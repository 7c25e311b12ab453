"""Backends for finding out which part of torch.compile is at fault, each usable by name: `backend="sleuth_aot_eager"`.

Everything is imported on first use, so that listing the backends does not import torch.
"""

from typing import Any

_WHERE = {
    "CATALOG": "torchsleuth.torch_core.backends.catalog",
    "DebugBackend": "torchsleuth.torch_core.backends.catalog",
    "with_torch_function_modes": "torchsleuth.torch_core.backends.eager",
    "compiling_inside_traces": "torchsleuth.torch_core.backends.aot",
    "OpMismatch": "torchsleuth.torch_core.backends.errors",
    "FakeMismatch": "torchsleuth.torch_core.backends.errors",
    "SchemaMismatch": "torchsleuth.torch_core.backends.errors",
    "EagerFails": "torchsleuth.torch_core.backends.errors",
    "UnknownOption": "torchsleuth.torch_core.backends.errors",
}

__all__ = list(_WHERE)


def __getattr__(name: str) -> Any:
    import importlib

    if name not in _WHERE:
        raise AttributeError(f"module 'torchsleuth.torch_core.backends' has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)
