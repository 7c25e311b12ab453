"""Puts a `Change` in place in the process of the user's program, as the parts of the compiler that it is about arrive.

What cannot be put in place ends the program: a run without it would be taken for a run with it. Without the variable of
`core/changes.py` nothing is ever done here.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import gc
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from torchsleuth.core.changes import DYNAMO, Change, change_from_environment, with_lines
from torchsleuth.torch_internals import module_names
from torchsleuth.watched.startup import after_import


@functools.cache
def change_this_process() -> None:
    """Puts in place what the environment asks for, as the parts of the compiler are imported."""
    with _or_end():
        wanted = change_from_environment()
        if wanted is not None:
            _put_in_place(wanted)


class _or_end:
    """Ends the process where an override cannot be put in place."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception):
            sys.stderr.write(f"torchsleuth: cannot override: {type(error).__name__}: {error}\n")
            raise SystemExit(2) from error


def _put_in_place(wanted: Change) -> None:
    settings: dict[str, dict[str, Any]] = {
        module: {key: ast.literal_eval(text) for key, text in values.items()}
        for module, values in wanted.config.items()
    }
    decomposed, lowered = (
        wanted.off.get(each, {}).get("names", ()) for each in ("decomposition", "lowerings")
    )
    # What is not decomposed any more has no lowering, either, and needs no other word to stay eager.
    kept_eager = [name for name in lowered if name not in decomposed]

    def forced() -> ModuleType:
        from torchsleuth.torch_internals import compile_overrides

        return compile_overrides

    def at_capture(_module: ModuleType) -> None:
        if wanted.dynamic is not None:
            settings.setdefault(DYNAMO, {}).update(forced().settings_for_dynamic(wanted.dynamic))
        if settings:
            forced().force_at_captures(settings)
        if wanted.snippet:
            forced().run_before_captures(wanted.snippet)
        if wanted.dynamic_dims:
            forced().mark_dimensions(wanted.dynamic_dims)
        if wanted.functions:
            forced().leave_functions_eager(wanted.functions)
        if wanted.traced:
            forced().trace_functions_whole(wanted.traced)
        if wanted.modules or wanted.classes:
            forced().leave_modules_eager(wanted.modules, wanted.classes)

    def at_backend(_module: ModuleType) -> None:
        if settings:
            forced().force_at_backend_calls(settings)

    def at_inductor(_module: ModuleType) -> None:
        forced().check_settings(settings)
        if settings:
            forced().force_at_inner_compiles(settings)
        forced().forget_decompositions(decomposed)

    def rewrite(_module: ModuleType) -> None:
        from torchsleuth.torch_internals.compiled_calls import hook_compiled_calls

        hook_compiled_calls(before_calls(wanted.rewritten))

    # The part of the compiler that is waited for, whether anything is to be changed there, and how.
    places: list[tuple[str, object, Callable[[ModuleType], None]]] = [
        (module_names.DYNAMO, wanted.uncompiled, lambda _: forced().compile_nothing()),
        (
            module_names.DYNAMO,
            wanted.backend or wanted.mode,
            lambda _: forced().compile_with(wanted.backend, wanted.mode),
        ),
        (module_names.TORCH, wanted.dtype, functools.partial(_compute_in, wanted.dtype)),
        (
            module_names.DYNAMO,
            wanted.graph_breaks or wanted.fullgraph,
            lambda _: forced().force_fullgraph(wanted.fullgraph),
        ),
        (module_names.COMPILED_CALL, wanted.rewritten, rewrite),
        (module_names.DYNAMO, wanted.dynamic is False, lambda _: forced().ignore_dynamic_marks()),
        (module_names.FRAME_CAPTURE, True, at_capture),
        (module_names.BACKEND_CALL, True, at_backend),
        (module_names.INNER_COMPILE, True, at_inductor),
        (module_names.LOWERING, kept_eager, lambda _: forced().keep_operators_eager(kept_eager)),
    ]
    for name, asked, put_in in places:
        if asked:
            _when(name, put_in)


def _compute_in(name: str | None, torch: Any) -> None:
    """Has the program compute in that dtype where it does not say another itself."""
    dtype = getattr(torch, str(name))
    if dtype in (torch.float32, torch.float64):
        torch.set_default_dtype(dtype)
        return
    # Its cache of cast weights is emptied at the end of a region, which never comes here.
    torch.set_autocast_cache_enabled(False)
    for device in ("cpu", "cuda"):
        torch.set_autocast_dtype(device, dtype)
        torch.set_autocast_enabled(device, True)


def _when(name: str, then: Callable[[ModuleType], None]) -> None:
    def put_in(module: ModuleType) -> None:
        with _or_end():
            then(module)

    after_import(name, put_in)


# -- functions that run as if other lines stood in their file, without a change to the file
#
# Python swaps the code of a function that is there, so this waits for the first call of each compiled function: by then
# what it calls is defined. Whole calls are compared with the text as it was, which is why the swap can be undone.

Lines = tuple[str, int, int, str]  # file, first and last line, and what stands there instead


# Functions that run with other code, and the code they had.
_swapped: list[tuple[FunctionType, CodeType]] = []
_silent = False


def before_calls(wanted: Sequence[Lines]) -> Callable[[Any], None]:
    """What to do before each call of a compiled function: puts the code in, where the function was not seen before."""
    global _silent
    _silent = any("is_compiling()" in text for *_, text in wanted)
    others = {os.path.abspath(file): _changed(file, wanted) for file in {file for file, *_ in wanted}}
    seen: set[int] = set()

    def begin(call: Any) -> None:
        if id(call.function) not in seen:
            seen.add(id(call.function))
            _swap(others)

    return begin


def _changed(file: str, wanted: Sequence[Lines]) -> dict[CodeType, CodeType]:
    """The functions of a file that are others with what is wanted there, by what they are without it."""
    source = changed = Path(file).read_text(encoding="utf-8")
    for _, first, last, text in sorted((each for each in wanted if each[0] == file), reverse=True):
        changed = with_lines(changed, first, last, text)
    return dict(_pairs(*(compile(text, file, "exec", dont_inherit=True) for text in (source, changed))))


def _pairs(one: CodeType, other: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """The functions of two texts that differ, those inside of others as well."""
    mine, theirs = ([c for c in code.co_consts if isinstance(c, CodeType)] for code in (one, other))
    for name in dict.fromkeys(code.co_name for code in mine):
        for first, second in zip(*([c for c in codes if c.co_name == name] for codes in (mine, theirs))):
            if first != second:
                yield first, second
                yield from _pairs(first, second)


def _swap(others: dict[str, dict[CodeType, CodeType]]) -> None:
    for function in gc.get_objects():
        if type(function) is not FunctionType:  # nothing is asked of other objects, which may run code then
            continue
        before = function.__code__
        after = others.get(os.path.abspath(before.co_filename), {}).get(before)
        if after is not None and after.co_freevars == before.co_freevars:
            function.__code__ = after
            _swapped.append((function, before))


@contextlib.contextmanager
def as_it_was() -> Iterator[None]:
    """Inside, the program runs as its file says."""
    now = [function.__code__ for function, _ in _swapped]
    for function, code in _swapped:
        function.__code__ = code
    try:
        yield
    finally:
        for (function, _), code in zip(_swapped, now):
            function.__code__ = code


def prints_less() -> bool:
    """Whether what stands there now means to print less when it is compiled."""
    return _silent


def end_if_not_compared(why: str) -> None:
    """Ends the process where a call of rewritten functions could not be compared: it would be taken for equal."""
    if _swapped:
        sys.stderr.write(f"torchsleuth: cannot override: what was rewritten cannot be compared: {why}\n")
        sys.stderr.flush()
        os._exit(2)
