"""torchsleuth: find out why a program breaks under torch.compile.

Everything public is here and is imported on first use, so that `import torchsleuth` costs nothing.
"""

from typing import Any

from torchsleuth._version import __version__

_WHERE = {
    "start": "torchsleuth.unsupervised",
    "watch": "torchsleuth.api",
    "wrap_compiler_debug": "torchsleuth.api",
    "save_graph_repro": "torchsleuth.api",
    "save_repro": "torchsleuth.api",
    "record_frame": "torchsleuth.api",
    "replay": "torchsleuth.api",
    "explain": "torchsleuth.explained",
    "ExplainOutput": "torchsleuth.explained",
    "ExplainWithBackend": "torchsleuth.explained",
    "CompileProfiler": "torchsleuth.explained",
    "compile_times": "torchsleuth.explained",
    "record_compile_times": "torchsleuth.explained",
    "no_graph_breaks": "torchsleuth.assertions",
    "no_recompilations": "torchsleuth.assertions",
    "compiled_equals_eager": "torchsleuth.assertions",
    "same": "torchsleuth.torch_core.compare.same",
    "same_two_models": "torchsleuth.torch_core.compare.two_models",
    "run_fwd_maybe_bwd": "torchsleuth.torch_core.compare.two_models",
    "reduce_to_scalar_loss": "torchsleuth.torch_core.compare.two_models",
    "compare_models": "torchsleuth.search.analyze.models",
    "repro_analyze": "torchsleuth.search.analyze.models",
    "judge": "torchsleuth.torch_core.compare.verdict.judge",
    "judge_results": "torchsleuth.torch_core.compare.verdict.judge",
    "calibrate": "torchsleuth.torch_core.compare.verdict.calibrate",
    "save_calibration": "torchsleuth.torch_core.compare.verdict.limits",
    "with_torch_function_modes": "torchsleuth.torch_core.backends.debugging",
    "compiling_inside_traces": "torchsleuth.torch_core.backends.debugging",
    "Verdict": "torchsleuth.torch_core.compare.verdict.verdict",
    "ContentStoreReader": "torchsleuth.torch_core.tensors",
    "ContentStoreWriter": "torchsleuth.torch_core.tensors",
    "Signature": "torchsleuth.script_runtime.signature",
    "fails_the_same_way": "torchsleuth.script_runtime.signature",
    "minify": "torchsleuth.search.minify.driver",
    "Reduction": "torchsleuth.search.minify.contract",
}
# What `%load_ext torchsleuth` looks for.
_OF_IPYTHON = {"load_ipython_extension": "torchsleuth.notebook"}
__all__ = ["__version__", *_WHERE]


def __getattr__(name: str) -> Any:
    import importlib

    where = {**_WHERE, **_OF_IPYTHON}
    if name not in where:
        raise AttributeError(f"module 'torchsleuth' has no attribute {name!r}")
    return getattr(importlib.import_module(where[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
