"""What vector instructions the C++ compiler and this processor can do together, found out once.

Inductor asks by compiling and loading small libraries, in every new cache folder: some eight seconds. The answers
depend on torch, compiler and processor only, so they are noted and given back to a later process.

Versions: 2.11 to 2.15 ask through `VecISA.check_build`; where that is missing, nothing is noted and Inductor asks.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import platform
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from torchsleuth.core.protocol.files import write_whole

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
    clear = getattr(
        importlib.import_module("torch._inductor.cpu_vec_isa").valid_vec_isa_list, "cache_clear", None
    )
    if clear is not None:
        clear()


def _ask(replacement: Callable[[Callable[[Any, str], bool]], Callable[[Any, str], bool]]) -> bool:
    module = importlib.import_module("torch._inductor.cpu_vec_isa")
    isa = getattr(module, "VecISA", None)
    original = getattr(isa, "check_build", None)
    if isa is None or original is None or not hasattr(module.valid_vec_isa_list, "cache_clear"):
        return False
    isa.check_build = replacement(original)
    try:
        module.valid_vec_isa_list()
    finally:
        isa.check_build = original
    return True


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
