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
    "record_frame": "torchsleuth.api",
    "replay": "torchsleuth.api",
    "ExplainOutput": "torchsleuth.explained",
    "ExplainWithBackend": "torchsleuth.explained",
    "CompileProfiler": "torchsleuth.compile_profiler",
    "compile_times": "torchsleuth.watched.observe.compile_times",
    "record_compile_times": "torchsleuth.watched.observe.compile_times",
    "no_graph_breaks": "torchsleuth.assertions",
    "no_recompilations": "torchsleuth.assertions",
    "compiled_equals_eager": "torchsleuth.assertions",
    "same": "torchsleuth.compare.compat.same",
    "same_two_models": "torchsleuth.compare.compat.models",
    "run_fwd_maybe_bwd": "torchsleuth.compare.compat.models",
    "reduce_to_scalar_loss": "torchsleuth.compare.compat.models",
    "compare_models": "torchsleuth.analyze.models",
    "repro_analyze": "torchsleuth.analyze.graphs",
    "judge": "torchsleuth.compare.verdict.judge",
    "judge_results": "torchsleuth.compare.verdict.judge",
    "Verdict": "torchsleuth.compare.verdict.verdict",
    "ContentStoreReader": "torchsleuth.tensors.store",
    "ContentStoreWriter": "torchsleuth.tensors.store",
    "Signature": "torchsleuth.script_runtime.signature",
    "fails_the_same_way": "torchsleuth.script_runtime.signature",
    "Reduction": "torchsleuth.minify.search.contract",
}
# Packages of ours that are functions as well: `torchsleuth.minify(gm, inputs, fails)`.
_CALLABLE = ("explain", "minify")

__all__ = ["__version__", *_WHERE, *_CALLABLE]


def __getattr__(name: str) -> Any:
    import importlib

    if name in _CALLABLE:
        return importlib.import_module(f"torchsleuth.{name}")
    if name not in _WHERE:
        raise AttributeError(f"module 'torchsleuth' has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
