"""Compiled code that is saved and loaded again, perhaps by another process: packages of AOTInductor, what
`aot_compile` and its like bundle, and artefacts of `torch.compiler.precompile`.

Versions: `precompile` is there from 2.15 on, and 2.11 may lack one of the other two places that are hooked; code loaded
at a place that is not there runs unwatched.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import os
import threading
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx.graph import CodeGen

from torchsleuth.torch_internals.hooks import replace_callable
from torchsleuth.torch_internals.places import replaced

Run = Callable[[list[Any]], Any]


@dataclass(frozen=True)
class SavedCode:
    """Compiled code is about to be loaded. `names` are those that `names_of` gave what was saved.

    `around(loaded, wrap)` is what was loaded with `wrap(run)` in place of the callable that runs it.
    """

    kind: str
    names: tuple[str, ...]
    backward: bool
    as_without_us: Callable[[], Any]
    around: Callable[[Any, Callable[[Run], Run]], Any]


def names_of(compiled: Any) -> tuple[str, ...]:
    """By what a result of the inner compile is known once it is saved; nothing where it will only be run.

    >>> names_of(lambda args: args)
    ()
    """
    functorch_config: Any = importlib.import_module("torch._functorch.config")
    files = getattr(compiled, "filename", None)
    if isinstance(files, (str, list)):
        listed = [files] if isinstance(files, str) else files
        return tuple(os.path.basename(f) for f in listed if isinstance(f, str) and _is_code(f))
    key = getattr(compiled, "cache_key", None)
    return (key,) if key and getattr(functorch_config, "bundled_autograd_cache", False) else ()


def runnable_copy(graph: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A copy that takes its inputs one by one, as the graph's placeholders stand for them.

    A graph for AOTInductor is printed as the exported program is called. Weights that were packed for MKL-DNN have no
    memory that could be copied; nothing writes to them.
    """
    held = [
        v for m in graph.modules() for part in (vars(m), m._parameters, m._buffers) for v in part.values()
    ]
    packed = [value for value in held if isinstance(value, torch.Tensor) and value.is_mkldnn]
    made = copy.deepcopy(graph, {id(value): value for value in packed})
    if type(made.graph._codegen) is not CodeGen:
        made.graph.set_codegen(CodeGen())
        made.recompile()
    return made


def keeps_state(graph: torch.fx.GraphModule) -> bool:
    """Whether a call of the graph changes a buffer of its own, so that no two calls of it are alike."""
    return bool(graph.meta.get("mutated_named_buffers"))


def _is_code(file: str) -> bool:
    return file.endswith((".so", ".cpp"))


def hook_packages(handler: Callable[[SavedCode], Any]) -> Callable[[], None]:
    """Routes every package of AOTInductor that is loaded through `handler`; returns the undo function."""

    def routed(original: Any) -> Any:
        def load(file: str, model_name: str, *args: Any, **kwargs: Any) -> Any:
            names: tuple[str, ...] = ()
            with (
                contextlib.suppress(OSError, zipfile.BadZipFile, TypeError),
                zipfile.ZipFile(file) as archive,
            ):
                inside = [n for n in archive.namelist() if f"/aotinductor/{model_name}/" in n and _is_code(n)]
                names = tuple(os.path.basename(n) for n in inside)
            made = lambda: original(file, model_name, *args, **kwargs)  # noqa: E731
            return handler(SavedCode("package of AOTInductor", names, False, made, _around_model))

        return load

    return replaced("torch.export.pt2_archive._package", "", "_load_aoti", routed)


def _around_model(model: Any, wrap: Callable[[Run], Run]) -> Any:
    model.loader = _Loader(model.loader, wrap)
    return model


class _Loader:
    """A loaded package, as torch's own loader is, with something around its runs."""

    def __init__(self, loader: Any, wrap: Callable[[Run], Run]) -> None:
        self._loader = loader
        self.boxed_run = wrap(loader.boxed_run)

    def load_constants(self, *args: Any, **kwargs: Any) -> Any:
        # With other weights it is another function than the one that was compiled.
        self.boxed_run = self._loader.boxed_run
        return self._loader.load_constants(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def hook_bundles(handler: Callable[[SavedCode], Any]) -> Callable[[], None]:
    """Routes every graph of a saved function that is loaded through `handler`; returns the undo function."""
    module: Any = importlib.import_module("torch._functorch._aot_autograd.aot_autograd_result")
    backward = getattr(module, "GenericCompiledBackward", ())

    def routed(original: Any) -> Any:
        def post_compile(self: Any, result: Any, *args: Any, **kwargs: Any) -> Any:
            key = getattr(result, "cache_key", None)
            names, is_backward = (key,) if key else (), isinstance(self, backward)
            made = lambda: original(self, result, *args, **kwargs)  # noqa: E731
            return handler(SavedCode("saved function", names, is_backward, made, replace_callable))

        return post_compile

    place = (
        "torch._functorch._aot_autograd.aot_autograd_result",
        "BundledOutputCodeLoadable",
        "post_compile",
    )
    return replaced(*place, routed)


def hook_precompiled(handler: Callable[[SavedCode], Any]) -> Callable[[], None]:
    """Routes every artefact of `torch.compiler.precompile` that is loaded through `handler`; returns the undo."""

    def routed(original: Any) -> Any:
        def load(*args: Any, **kwargs: Any) -> Any:
            made = lambda: original(*args, **kwargs)  # noqa: E731
            return handler(SavedCode("precompiled artefact", (), False, made, _Precompiled))

        return load

    return replaced("torch._precompile", "", "_runnable_from_pair", routed)


class _Precompiled:
    """A loaded artefact, as torch's own is, with something around its calls."""

    def __init__(self, runnable: Any, wrap: Callable[[Run], Run]) -> None:
        self._runnable = runnable
        self._run = wrap(self._called)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self._runnable)

    def _called(self, given: list[Any]) -> Any:
        args, kwargs = given[0]
        return self._runnable(*args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._run([(args, kwargs)])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runnable, name)


@functools.cache
def forget_cached_graphs() -> None:
    """A compile finds nothing in AOTAutograd's cache: what is there skips the inner compile, and with it all we watch.

    What is compiled goes into it as ever: a program may save its compiled functions.
    """
    module: Any = importlib.import_module("torch._functorch._aot_autograd.autograd_cache")
    cache = getattr(module, "AOTAutogradCache", None)
    load, look_up = getattr(cache, "try_load", None), getattr(cache, "_lookup", None)
    if cache is None or load is None or look_up is None:
        config: Any = importlib.import_module("torch._functorch.config")
        config.enable_autograd_cache = False
        return
    here = threading.local()

    @functools.wraps(load)
    def try_load(*args: Any, **kwargs: Any) -> Any:
        before, here.compiling = getattr(here, "compiling", False), True
        try:
            return load(*args, **kwargs)
        finally:
            here.compiling = before

    @functools.wraps(look_up)
    def lookup(*args: Any, **kwargs: Any) -> Any:
        # A program that loads what it saved looks there as well, and must find it.
        return None if getattr(here, "compiling", False) else look_up(*args, **kwargs)

    cache.try_load, cache._lookup = staticmethod(try_load), staticmethod(lookup)
