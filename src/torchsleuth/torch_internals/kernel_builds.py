"""C++ kernels of a graph built together: most of a kernel's build is reading the same headers once more.

Inductor hands each kernel to the C++ compiler by itself. Here those of one generated module share a source file, each
in a namespace of its own, with the flags that Inductor gives; so a kernel's machine code stays what it was. What cannot
be put together, or does not build so, is built Inductor's way.
Differs between torch versions: `AsyncCompile.cpp_pybinding` takes a kernel, `CppPythonBindingsCodeCache` builds and
loads a library, from 2.11 on; where one of them is missing, nothing changes.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

MOST_TOGETHER = 16
"""Kernels in one source file; more files are built side by side."""

_ENTRY = re.compile(r'extern "C"\s+(?:\S+\s+)?void\s+kernel\s*\(')
_INCLUDE = re.compile(r"^[ \t]*#include\b.*$", re.MULTILINE)
_NUMBERS = {"int64_t": ctypes.c_int64, "float": ctypes.c_float, "double": ctypes.c_double}


@contextlib.contextmanager
def built_together() -> Iterator[Callable[[], None]]:
    """Inside, the C++ kernels of a generated module are built in few source files, when what this gives is called.

    Used as `with built_together() as build: module = load(); build()`.
    """
    compiling: Any = importlib.import_module("torch._inductor.async_compile").AsyncCompile
    caching: Any = importlib.import_module("torch._inductor.codecache")
    original = getattr(compiling, "cpp_pybinding", None)
    library = getattr(caching, "CppPythonBindingsCodeCache", None)
    if original is None or not hasattr(library, "load_async"):
        yield lambda: None
        return
    load = _loader(library, compiling.submit)
    waiting: list[_Kernel] = []

    def cpp_pybinding(module: Any, argtypes: Sequence[str], source: str) -> Any:
        def alone() -> Any:
            return original(module, argtypes, source)

        if not _can_share(argtypes, source):
            return alone()
        waiting.append(_Kernel(tuple(argtypes), source, alone))
        return waiting[-1]

    def build() -> None:
        kernels = list(waiting)
        waiting.clear()
        _build(kernels, load)

    compiling.cpp_pybinding = cpp_pybinding
    try:
        yield build
    finally:
        compiling.cpp_pybinding = original


@dataclass
class _Kernel:
    """What the generated code calls; `run` once it is built."""

    argtypes: tuple[str, ...]
    source: str
    alone: Callable[[], Any]
    run: Callable[..., None] | None = None

    def __call__(self, *args: Any) -> None:
        assert self.run is not None, "the kernels are built before they run"
        self.run(*args)


def _build(kernels: Sequence[_Kernel], load: Callable[[str], Callable[[], Any]]) -> None:
    groups = [kernels[start : start + MOST_TOGETHER] for start in range(0, len(kernels), MOST_TOGETHER)]
    try:
        loads = [load(source_of([(each.argtypes, each.source) for each in group])) for group in groups]
        for group, loaded in zip(groups, loads):
            entries = loaded()
            for place, kernel in enumerate(group):
                kernel.run = _function(getattr(entries, f"entry_{place}"), kernel.argtypes)
    except Exception:  # helpers of two kernels may not go together; then each by itself, as Inductor does
        made = [(kernel, kernel.alone()) for kernel in kernels]
        for kernel, each in made:
            kernel.run = each.result() if hasattr(each, "result") else each


def _can_share(argtypes: Sequence[str], source: str) -> bool:
    known = all(kind.strip().endswith("*") or kind.strip() in _NUMBERS for kind in argtypes)
    return known and len(_ENTRY.findall(source)) == 1


def source_of(kernels: Sequence[tuple[Sequence[str], str]]) -> str:
    """One source file of several kernels, each with an entry that hands on what was thrown.

    >>> "entry_0(float* a0) noexcept" in source_of([(["float*"], 'extern "C" void kernel(float* p) {}')])
    True
    """
    includes = dict.fromkeys(line.strip() for _, source in kernels for line in _INCLUDE.findall(source))
    parts = [*includes, "#include <exception>", "#include <string>"]
    for place, (argtypes, source) in enumerate(kernels):
        names = [f"a{number}" for number in range(len(argtypes))]
        given = ", ".join(f"{kind} {name}" for kind, name in zip(argtypes, names))
        body = _ENTRY.sub(f"void kernel_{place}(", _INCLUDE.sub("", source))
        parts.append(
            f"namespace together_{place} {{\n{body}\n}}\n"
            f'extern "C" const char* entry_{place}({given}) noexcept {{\n'
            "  static thread_local std::string why;\n"
            f"  try {{ together_{place}::kernel_{place}({', '.join(names)}); return nullptr; }}\n"
            "  catch (const std::exception& error) { why = error.what(); }\n"
            '  catch (...) { why = "unhandled error"; }\n'
            "  return why.c_str();\n}"
        )
    return "\n".join(parts) + "\n"


def _function(entry: Any, argtypes: Sequence[str]) -> Callable[..., None]:
    pointers = [kind.strip().endswith("*") for kind in argtypes]
    entry.restype = ctypes.c_char_p
    entry.argtypes = [
        ctypes.c_void_p if pointer else _NUMBERS[kind.strip()] for pointer, kind in zip(pointers, argtypes)
    ]

    def kernel(*args: Any) -> None:
        why = entry(
            *(arg.data_ptr() if pointer else arg for pointer, arg in zip(pointers, args, strict=True))
        )
        if why is not None:
            raise RuntimeError(why.decode(errors="replace"))

    return kernel


def _loader(library: Any, submit: Callable[..., Any]) -> Callable[[str], Callable[[], Any]]:
    """Builds a source as Inductor builds a kernel, and loads it as a plain library."""

    class Library(library):
        cache: dict[str, Any] = {}

        @classmethod
        def _load_library_inner(cls, path: str, key: str) -> Any:
            return ctypes.CDLL(path)

    return lambda source: Library.load_async(source, submit_fn=submit)
