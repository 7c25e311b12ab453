"""The modules that a first `torch.compile` loads, so that a process can load them before it is needed.

Loading them takes three seconds and compiles nothing. Versions: 2.11 to 2.15 have all of these; one that is missing is
left for the compile to load.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
from collections.abc import Iterator

_MODULES = (
    "torch",
    "torch._dynamo",
    "torch._inductor.compile_fx",
    "torch._dynamo.backends.inductor",
    "torch._dynamo.backends.cudagraphs",
    "torch._dynamo.repro.after_dynamo",
    "torch._functorch.aot_autograd",
    "torch._inductor.compiler_bisector",
    "torch._inductor.codegen.cpp_wrapper_cpu_array_ref",
    "torch._inductor.codegen.cpp_wrapper_gpu",
    "torch._inductor.codegen.cuda_combined_scheduling",
    "torch._inductor.codegen.halide",
    "torch._inductor.codegen.wrapper_fxir",
    "torch._inductor.fx_passes.efficient_conv_bn_eval",
    "torch._inductor.fx_passes.freezing_patterns",
    "torch._inductor.fx_passes.fuse_attention",
    "torch._inductor.fx_passes.mkldnn_fusion",
    "torch._inductor.fx_passes.pad_mm",
    "torch._inductor.fx_passes.quantization",
    "torch._inductor.runtime.caching",
    "torch.distributed.tensor.experimental",
    "torch.export._trace",
)


@contextlib.contextmanager
def without_collecting() -> Iterator[None]:
    """Keeps Python from looking through a million new objects again and again: 0.5 of 3.8 s of loading.

    >>> with without_collecting(): import torch
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def load_compiler() -> None:
    """Imports torch and its compiler and nothing else: `load_compiler()`."""
    with without_collecting():
        for name in _MODULES:
            try:
                importlib.import_module(name)
            except ImportError:
                continue
