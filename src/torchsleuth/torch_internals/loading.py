"""What a first `torch.compile` loads and prepares, whatever it compiles: a process can do so before it is needed.

It takes some four seconds and compiles nothing. Versions: 2.11 to 2.15 have most of these; what is missing is left
for the compile to load or prepare.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import threading
from collections.abc import Iterator

_MODULES = (
    "torch", "torch._dynamo", "torch._inductor.compile_fx", "torch._dynamo.backends.inductor",
    "torch._dynamo.backends.cudagraphs", "torch._dynamo.backends.distributed",
    "torch._dynamo.backends.onnxrt", "torch._dynamo.backends.tensorrt", "torch._dynamo.backends.torchxla",
    "torch._dynamo.backends.tvm", "torch._dynamo.dce_extra_outputs", "torch._dynamo.repro.after_dynamo",
    "torch._functorch.aot_autograd", "torch._functorch._aot_autograd.subclass_codegen",
    "torch._higher_order_ops.passes.inline_invoke_subgraph", "torch._inductor.bounds",
    "torch._inductor.compiler_bisector", "torch._inductor.codegen.cpp_wrapper_cpu_array_ref",
    "torch._inductor.codegen.cpp_wrapper_gpu", "torch._inductor.codegen.cuda_combined_scheduling",
    "torch._inductor.codegen.halide", "torch._inductor.codegen.wrapper_fxir",
    "torch._inductor.fx_passes.efficient_conv_bn_eval", "torch._inductor.fx_passes.freezing_patterns",
    "torch._inductor.fx_passes.fuse_attention", "torch._inductor.fx_passes.mkldnn_fusion",
    "torch._inductor.fx_passes.pad_mm", "torch._inductor.fx_passes.quantization",
    "torch._inductor.runtime.caching", "torch._inductor.extern_node_serializer",
    "torch._subclasses.schema_check_mode", "torch.distributed.tensor.experimental", "torch.export._trace",
    "torch.fx.experimental.validator",
)  # fmt: skip


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


def prepare_compiler() -> None:
    """What Inductor does once per process before its first graph: its backends and its tables of patterns.

    >>> prepare_compiler()
    """
    with without_collecting():
        import torch

        _call("torch._inductor.codegen.common", "init_backend_registration")
        _call("torch._inductor.fx_passes.joint_graph", "lazy_init", torch.device("cpu"))
        _call("torch._inductor.fx_passes.post_grad", "lazy_init")


def prepare_kernels() -> None:
    """What only a compile that reaches its kernels needs: the paths of headers, and the hash of torch's own sources.

    >>> prepare_kernels()
    """
    with without_collecting(), contextlib.suppress(ImportError):
        importlib.import_module("torch.utils.cpp_extension")
    _call("torch._inductor.codecache", "torch_key")


def heed_compile_disable() -> None:
    """Switches the compiler off where TORCH_COMPILE_DISABLE says so; torch reads it once, when it is loaded."""
    if os.environ.get("TORCH_COMPILE_DISABLE") == "1":
        setattr(importlib.import_module("torch._dynamo.config"), "disable", True)  # noqa: B010


def no_monitor_thread() -> None:
    """Keeps tqdm, which Inductor shows its progress with, from what must not be forked: a thread and a shared lock.

    Its lock is one of the machine's semaphores, which all forked processes share: one of them that is killed while it
    draws holds it for ever, and every later one waits.
    """
    try:
        tqdm = importlib.import_module("tqdm").tqdm
    except ImportError:
        return
    tqdm.monitor_interval = 0
    tqdm.set_lock(threading.RLock())


def _call(module: str, function: str, *arguments: object) -> None:
    # Whatever is wrong with it, the compile that needs it will say so.
    with contextlib.suppress(Exception):
        getattr(importlib.import_module(module), function)(*arguments)
