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
from dataclasses import dataclass, field
from typing import Any

MOST_TOGETHER = 16
"""Kernels in one source file; more files are built side by side."""

_ENTRY = re.compile(r'extern "C"\s+(?:\S+\s+)?void\s+kernel\s*\(')
_INCLUDE = re.compile(r"^[ \t]*#include\b.*$", re.MULTILINE)
_NUMBERS = {"int64_t": ctypes.c_int64, "float": ctypes.c_float, "double": ctypes.c_double}


@contextlib.contextmanager
def built_together() -> Iterator[None]:
    """Inside, the C++ kernels of each generated module are built in few source files.

    Used as `with built_together(): torch.compile(model)(x)`.
    """
    compiling: Any = importlib.import_module("torch._inductor.async_compile").AsyncCompile
    caching: Any = importlib.import_module("torch._inductor.codecache")
    original = getattr(compiling, "cpp_pybinding", None)
    library = getattr(caching, "CppPythonBindingsCodeCache", None)
    future = getattr(caching, "LambdaFuture", None)
    threads = importlib.import_module("torch._inductor.async_compile").get_compile_threads
    if original is None or library is None or future is None or not hasattr(library, "load_async"):
        yield
        return
    modules: dict[int, _Together] = {}

    def cpp_pybinding(module: Any, argtypes: Sequence[str], source: str) -> Any:
        # One thread builds at once, before the module names its next kernel.
        if threads() <= 1 or not _can_share(argtypes, source):
            return original(module, argtypes, source)
        together = modules.setdefault(id(module), _Together(module, _loader(library, compiling.submit), original))
        return future(together.add(tuple(argtypes), source))

    compiling.cpp_pybinding = cpp_pybinding
    try:
        yield
    finally:
        compiling.cpp_pybinding = original


@dataclass
class _Together:
    """The kernels of one module; they are built when the first of them is asked for."""

    module: Any
    load: Callable[[str], Callable[[], Any]]
    alone: Callable[..., Any]
    kernels: list[tuple[tuple[str, ...], str]] = field(default_factory=list)
    built: list[Callable[..., Any]] = field(default_factory=list)

    def add(self, argtypes: tuple[str, ...], source: str) -> Callable[[], Any]:
        place = len(self.kernels)
        self.kernels.append((argtypes, source))

        def result() -> Any:
            if not self.built:
                self.built = self._built()
            return self.built[place]

        return result

    def _built(self) -> list[Callable[..., Any]]:
        try:
            return self._shared()
        except Exception:  # helpers of two kernels may not go together; then each by itself, as Inductor does
            alone = [self.alone(self.module, list(types), source) for types, source in self.kernels]
            return [each.result() if hasattr(each, "result") else each for each in alone]

    def _shared(self) -> list[Callable[..., Any]]:
        places = range(0, len(self.kernels), MOST_TOGETHER)
        groups = [self.kernels[start : start + MOST_TOGETHER] for start in places]
        loads = [self.load(source_of(group)) for group in groups]
        return [
            _function(getattr(library, f"entry_{place}"), types)
            for group, library in zip(groups, [load() for load in loads])
            for place, (types, _) in enumerate(group)
        ]


def _can_share(argtypes: Sequence[str], source: str) -> bool:
    known = all(kind.strip().endswith("*") or kind.strip() in _NUMBERS for kind in argtypes)
    return known and len(_ENTRY.findall(source)) == 1


def source_of(kernels: Sequence[tuple[Sequence[str], str]]) -> str:
    """One source file of several kernels, each with an entry that hands on what was thrown.

    >>> 'extern "C" const char* entry_0(float* a0) noexcept' in source_of([(["float*"], 'extern "C" void kernel(float* p) {}')])
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
        why = entry(*(arg.data_ptr() if pointer else arg for pointer, arg in zip(pointers, args, strict=True)))
        if why is not None:
            raise RuntimeError(why.decode(errors="replace"))

    return kernel


def _loader(library: Any, submit: Callable[..., Any]) -> Callable[[str], Callable[[], Any]]:
    """Builds a source as Inductor builds a kernel, and loads it as a plain library."""

    class Library(library):  # type: ignore[misc]
        cache: dict[str, Any] = {}

        @classmethod
        def _load_library_inner(cls, path: str, key: str) -> Any:
            return ctypes.CDLL(path)

    return lambda source: Library.load_async(source, submit_fn=submit)
