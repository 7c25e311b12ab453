"""Compiles for a CPU in less time: the work of Inductor's that is spared here changes no machine code.

- *Kernels of a graph are built together*: most of a kernel's build is reading the same headers once more. Those of one
  generated module share a source file, each in a namespace of its own, with the flags that Inductor gives. What cannot
  be put together, or does not build so, is built Inductor's way.
- *No idle work*: two things take a fifth of the function calls of a compile. The rules for dtypes are one object that
  is made anew for every operation; and where a loop's length is a multiple of the vector's, there is no rest, yet code
  for it is generated and dropped.
- *What the C++ compiler can do is asked once*: Inductor asks which vector instructions it and the processor know by
  compiling and loading small libraries, in every new cache folder: some eight seconds. The answers depend on torch,
  compiler and processor only, so they are noted and given back to a later process.

Versions: the names of Inductor's are those of 2.11 to 2.15; where one is missing, that work is done as ever.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import importlib
import json
import os
import platform
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from torchsleuth.core.protocol.files import write_whole
from torchsleuth.torch_internals.places import replaced

MOST_TOGETHER = 16
"""Kernels in one source file; more files are built side by side."""

_ENTRY = re.compile(r'extern "C"\s+(?:\S+\s+)?void\s+kernel\s*\(')
_INCLUDE = re.compile(r"^[ \t]*#include\b.*$", re.MULTILINE)
_NUMBERS = {"int64_t": ctypes.c_int64, "float": ctypes.c_float, "double": ctypes.c_double}


@contextlib.contextmanager
def built_together() -> Iterator[Callable[[], None]]:
    """Inside, the C++ kernels of a generated module are built in few source files, when what this gives is called.

    Used as `with built_together() as build: module = load(); build()`; else the first kernel that runs does it.
    """
    compiling: Any = importlib.import_module("torch._inductor.async_compile").AsyncCompile
    caching: Any = importlib.import_module("torch._inductor.codecache")
    library = getattr(caching, "CppPythonBindingsCodeCache", None)
    if not hasattr(library, "load_async"):
        yield lambda: None
        return
    load = _loader(library, compiling)
    waiting: list[_Kernel] = []

    def gathered(original: Any) -> Any:
        def cpp_pybinding(module: Any, argtypes: Sequence[str], source: str) -> Any:
            def alone() -> Any:
                return original(module, argtypes, source)

            if not _can_share(argtypes, source):
                return alone()
            waiting.append(_Kernel(tuple(argtypes), source, alone, build))
            return waiting[-1]

        return cpp_pybinding

    def build() -> None:
        kernels = list(waiting)
        waiting.clear()
        _build(kernels, load)

    with replaced("torch._inductor.async_compile", "AsyncCompile", "cpp_pybinding", gathered):
        yield build


@dataclass
class _Kernel:
    """What the generated code calls; `run` once it is built."""

    argtypes: tuple[str, ...]
    source: str
    alone: Callable[[], Any]
    build: Callable[[], None]
    run: Callable[..., None] | None = None

    def __call__(self, *args: Any) -> None:
        if self.run is None:
            self.build()
        assert self.run is not None
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


def _loader(library: Any, compiling: Any) -> Callable[[str], Callable[[], Any]]:
    """Builds a source as Inductor builds a kernel, and loads it as a plain library."""

    class Library(library):
        cache: dict[str, Any] = {}

        @classmethod
        def _load_library_inner(cls, path: str, key: str) -> Any:
            return ctypes.CDLL(path)

    def load(source: str) -> Callable[[], Any]:
        # It is submitted under the lock of the file, for which the build waits: with one thread, this one would.
        alone = importlib.import_module(compiling.__module__).get_compile_threads() <= 1
        return Library.load_async(source, submit_fn=None if alone else compiling.submit)

    return load


@contextlib.contextmanager
def without_idle_work() -> Iterator[None]:
    """Inside, Inductor generates the code that it would, sooner: `with without_idle_work(): torch.compile(f)(x)`."""
    rules = ("torch._inductor.dtype_propagation", "DtypePropagationOpsHandler", "__init__")
    codegen = ("torch._inductor.scheduler", "SchedulerNode", "codegen")
    with replaced(*rules, _once), replaced(*codegen, _but_for_nothing):
        yield


def _once(original: Callable[[Any], None]) -> Callable[[Any], None]:
    def init(rules: Any) -> None:
        if not vars(rules):  # there is one object of this class, and all it holds is made here
            original(rules)

    return init


def _but_for_nothing(original: Callable[..., None]) -> Callable[..., None]:
    kernels = importlib.import_module("torch._inductor.codegen.cpp")
    virtualized = importlib.import_module("torch._inductor.virtualized")
    of_vectors = getattr(kernels, "CppVecKernel", ())

    def codegen(node: Any, index_vars: Any) -> None:
        kernel = virtualized.V.kernel
        rests = [getattr(kernel, name, None) for name in ("tail_size", "outer_tail_size")]
        if isinstance(kernel, of_vectors) and 0 in rests:
            return
        original(node, index_vars)

    return codegen


# Settings of a trial under which the answers could be others.
_ASKS_ANEW = ("cpp.cxx", "cpp.vec_isa_ok")


def probe_vector_instructions() -> dict[str, bool]:
    """Lets Inductor ask, and notes each answer; takes seconds and starts compilers."""
    answers: dict[str, bool] = {}

    def noting(original: Callable[[Any, str], bool]) -> Callable[[Any, str], bool]:
        def check(isa: Any, code: str) -> bool:
            name = _question(isa, code)
            answers[name] = bool(original(isa, code))
            return answers[name]

        return check

    _ask(noting)
    return answers


def recall_vector_instructions(answers: Mapping[str, bool]) -> bool:
    """Answers Inductor's questions from what was noted; False where one of them is new."""

    def recalling(original: Callable[[Any, str], bool]) -> Callable[[Any, str], bool]:
        return lambda isa, code: answers[_question(isa, code)]

    try:
        return bool(answers) and _ask(recalling)
    except KeyError:
        return False


def with_believed_instructions(build: Callable[[], Any]) -> Any:
    """What `build` compiles, Inductor having been told that the compiler can do whatever the processor can.

    The kernels' own build is the test of that: where it fails, Inductor asks, and `build` is called once more. What it
    was told is forgotten at the end; where it has asked before, nothing changes. Used as
    `with_believed_instructions(lambda: compile_fx_inner(graph, inputs))`.
    """
    with _belief() as believed:
        try:
            return build()
        except Exception:
            if not believed:
                raise
    return build()


@contextlib.contextmanager
def _belief() -> Iterator[bool]:
    module: Any = importlib.import_module("torch._inductor.cpu_vec_isa")
    answered = getattr(module.valid_vec_isa_list, "cache_info", None)
    known = answered is None or answered().currsize > 0 or not hasattr(module, "supported_vec_isa_list")
    states = [] if known else [(isa, dict(vars(isa))) for isa in module.supported_vec_isa_list]
    if known or not _ask(lambda original: lambda isa, code: True):
        yield False
        return
    try:
        yield True
    finally:
        _forget()
        for isa, state in states:
            vars(isa).clear()
            vars(isa).update(state)
            for each in [each for kind in type(isa).__mro__ for each in vars(kind).values()]:
                getattr(each, "cache_clear", lambda: None)()


def forget_vector_instructions(config: Mapping[str, Mapping[str, str]]) -> None:
    """Lets Inductor ask again where a trial's settings name another compiler or forbid vectors."""
    if any(key in _ASKS_ANEW for values in config.values() for key in values):
        _forget()


def forget_where_named(script: str) -> None:
    """The same for a script, whose settings stand somewhere in its text."""
    if any(key in script for key in _ASKS_ANEW):
        _forget()


def _forget() -> None:
    module = importlib.import_module("torch._inductor.cpu_vec_isa")
    getattr(module.valid_vec_isa_list, "cache_clear", lambda: None)()


def _ask(replacement: Callable[[Callable[[Any, str], bool]], Callable[[Any, str], bool]]) -> bool:
    module = importlib.import_module("torch._inductor.cpu_vec_isa")
    if not hasattr(module.valid_vec_isa_list, "cache_clear"):
        return False
    with replaced("torch._inductor.cpu_vec_isa", "VecISA", "check_build", replacement) as asked:
        if asked.there:
            module.valid_vec_isa_list()
        return asked.there


def _question(isa: Any, code: str) -> str:
    return f"{isa} {isa.build_arch_flags()} {hashlib.sha256(code.encode()).hexdigest()[:16]}"


def noted_answers() -> dict[str, bool]:
    """The answers that an earlier process noted for this torch, compiler and processor; none where there are none."""
    try:
        doc = json.loads(_notes().read_text(encoding="utf-8"))
        return {str(name): bool(value) for name, value in doc.items()}
    except (OSError, ValueError, AttributeError):
        return {}


def note_answers(answers: Mapping[str, bool]) -> None:
    """Keeps the answers for later processes; a no may come from a busy machine and is not kept."""
    if not answers or not all(answers.values()):
        return
    try:
        path = _notes()
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(dict(answers)))
    except OSError:  # a home that cannot be written to costs seconds, no more
        pass


def _notes() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    parts = [torch.__version__, torch.version.git_version, platform.machine(), _compiler(), _processor()]
    name = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
    return Path(home, "torchsleuth", f"vector-instructions-{name}.json")


def _compiler() -> list[object]:
    try:
        path = os.path.realpath(shutil.which(os.environ.get("CXX", "g++")) or "")
        about = os.stat(path)
        return [path, about.st_size, about.st_mtime_ns]
    except OSError:
        return []


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            return next((line for line in file if line.startswith(("flags", "Features"))), "")
    except OSError:
        return platform.processor()
