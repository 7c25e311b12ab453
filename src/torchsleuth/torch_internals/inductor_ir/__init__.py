"""Evaluates graphs that Inductor has lowered, without code generation: enter by `lowering.interpreted_lowering`.

Inductor's IR is no interface: what is relied on changes without notice, so `why_not_interpretable` looks for it first.
"""

from __future__ import annotations

import importlib

import torch

from torchsleuth.torch_internals.hooks import torch_release

# The releases whose IR this was written for.
_OLDEST, _NEWEST = (2, 11), (2, 15)
_NEEDED: dict[str, dict[str, tuple[str, ...]]] = {
    "torch._inductor.graph": {"GraphLowering": ("compile_to_module",)},
    "torch._inductor.virtualized": {"V": ("set_graph_handler", "set_ops_handler")},
    "torch._inductor.ir": {
        "ComputedBuffer": ("get_name", "get_output_spec", "get_store_function"),
        "Loops": ("get_device", "get_pointwise_size", "get_reduction_size", "get_reduction_type"),
        "FlexibleLayout": ("allow_indexing",),
        "MutationLayoutSHOULDREMOVE": ("get_buffer",),
        "ReinterpretView": ("get_layout", "get_name"),
        "ExternKernel": ("codegen", "get_name", "get_op_name", "get_output_spec"),
        "FallbackKernel": ("codegen",),
        "MultiOutput": ("codegen",),
    },
    "torch._C._dynamo.guards": {"assert_size_stride": ()},
}


def why_not_interpretable() -> str | None:
    """One sentence on why the lowered graphs of this torch cannot be evaluated; None where they can.

    >>> why_not_interpretable() is None
    True
    """
    if not _OLDEST <= torch_release() <= _NEWEST:
        known = " to ".join(".".join(map(str, release)) for release in (_OLDEST, _NEWEST))
        return f"the lowered graphs of torch {torch.__version__} are not known here, only those of {known}"
    for module_name, classes in _NEEDED.items():
        try:
            module = importlib.import_module(module_name)
        except ImportError:
            return f"torch {torch.__version__} has no module {module_name}"
        for name, attributes in classes.items():
            found = getattr(module, name, None)
            lacks = [name] if found is None else [f"{name}.{a}" for a in attributes if not hasattr(found, a)]
            if lacks:
                return f"torch {torch.__version__} has no {module_name}.{lacks[0]}"
    return None
