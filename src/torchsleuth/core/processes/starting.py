"""How processes of ours are started: by which command, in which environment, and with which devices in sight."""

from __future__ import annotations

import functools
import glob
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import torchsleuth

_INJECT = os.path.join("torchsleuth", "watched", "inject")
_VISIBLE_DEVICES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
# What a driver puts there for each device it has.
_DEVICE_FILES = ("/dev/nvidia[0-9]*", "/dev/kfd", "/dev/accel*", "/dev/davinci[0-9]*")


# Variables that torch's compiler reads its settings from, and those of them that change nothing about a graph.
_SETTING = re.compile(
    r"TORCH(?:INDUCTOR|DYNAMO)_|TORCH_(?:(?:DISTRIBUTED_)?COMPILE|DYNAMO|FAKE_TENSOR|CUDAGRAPH)|TORCH_\w+_PRECOMPILE$|AOT_?(?:INDUCTOR|PART)"
    r"|INDUCTOR_|PARTITIONER_|ENABLE_\w*(?:TMA|AUTOWS)(?:_|$)|FLYDSL_E|CUT(?:LASS|EDSL)_E|TENSORIFY_|FAKE_ALLOW_META|UNSAFE_SKIP_FSDP"
)
_HARMLESS = frozenset(
    ["TORCHINDUCTOR_CACHE_DIR", "TORCHINDUCTOR_COMPILE_THREADS", "TORCHINDUCTOR_WORKER_START"]
)


def is_compiler_setting(variable: str) -> bool:
    """Whether torch's compiler takes a setting from this variable: a script sets it itself, or runs without it.

    >>> is_compiler_setting("TORCHINDUCTOR_MAX_AUTOTUNE"), is_compiler_setting("TORCHINDUCTOR_CACHE_DIR")
    (True, False)
    """
    return _SETTING.match(variable) is not None and variable not in _HARMLESS


def python_command(python: str, module: str, *arguments: object) -> list[str]:
    """How a module of ours is started: the very torchsleuth that asks, wherever Python found it.

    Its folder goes last: before the standard library it could hide some of it. The current folder, which a stranger
    may have filled, is not looked into.
    """
    ours = str(Path(torchsleuth.__file__).resolve().parent.parent)
    path = f"import sys; sys.path[:] = [*filter(None, sys.path), {ours!r}]"
    start = f"{path}; from {module} import main; main(sys.argv[1:])"
    return [python, "-c", start, *map(str, arguments)]


def fresh_environment(environment: Mapping[str, str], cache: Path) -> dict[str, str]:
    """The environment of a fresh process: not watched, with a kernel cache of its own, and without the settings of the
    person's shell, which another machine has not.

    >>> fresh_environment({"TORCHSLEUTH": "1", "TORCHDYNAMO_REPRO_LEVEL": "4"}, Path("cache"))
    {'TORCHINDUCTOR_CACHE_DIR': 'cache', 'PYTHONUNBUFFERED': '1'}
    """
    kept = {
        k: v
        for k, v in environment.items()
        if k != "TORCHSLEUTH" and not k.startswith("TORCHSLEUTH_") and not is_compiler_setting(k)
    }
    paths = [p for p in kept.get("PYTHONPATH", "").split(os.pathsep) if not p.endswith(_INJECT)]
    kept["PYTHONPATH"] = os.pathsep.join(paths)
    if not kept["PYTHONPATH"]:
        del kept["PYTHONPATH"]
    return {**kept, **bytecode(kept), "TORCHINDUCTOR_CACHE_DIR": str(cache), "PYTHONUNBUFFERED": "1"}


def bytecode(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables by which Python keeps the bytecode of what it imports, where that of torch is not beside it.

    Many images have none and forbid to write any. Then every process compiles the 2,700 modules that a first compile
    loads: 7 of the 14 s that a small program takes there (H200, torch 2.11, `python -m cProfile`).
    """
    if environment.get("PYTHONPYCACHEPREFIX") or _torch_has_bytecode():
        return {}
    base = environment.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return {
        "PYTHONPYCACHEPREFIX": os.path.join(base, "torchsleuth", "bytecode"),
        "PYTHONDONTWRITEBYTECODE": "",
    }


@functools.cache
def _torch_has_bytecode() -> bool:
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return True
    with_none = Path(found.origin).parent / "__pycache__"
    return any(with_none.glob("__init__.*.pyc"))


def without_devices() -> dict[str, str]:
    """The variables under which torch sees no accelerator, and does not wake a driver to find out.

    A process that has looked at a device through the driver cannot be forked into one that uses it.

    >>> without_devices()["CUDA_VISIBLE_DEVICES"]
    ''
    """
    return {**dict.fromkeys(_VISIBLE_DEVICES, ""), "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}


def sees_devices(environment: Mapping[str, str]) -> bool:
    """Whether a process with this environment may find an accelerator here; asked of the file system alone.

    >>> sees_devices({"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", "ZE_AFFINITY_MASK": ""})
    False
    """
    if all(environment.get(name) == "" for name in _VISIBLE_DEVICES):
        return False
    nvidia_only = not any(glob.glob(pattern) for pattern in _DEVICE_FILES[1:])
    if nvidia_only and environment.get("CUDA_VISIBLE_DEVICES") == "":
        return False
    return any(glob.glob(pattern) for pattern in _DEVICE_FILES)


# A compiler as Inductor calls one, and what of the sanitizer is about libraries, not about what is built: what they
# never give back, define twice, or give back otherwise than they got it.
SANITIZING_CXX = '#!/bin/sh\nexec g++ "$@" -fsanitize=address,undefined -fno-omit-frame-pointer -g1\n'
SANITIZING = (
    "detect_leaks=0:alloc_dealloc_mismatch=0:new_delete_type_mismatch=0:detect_odr_violation=0:"
    "abort_on_error=1"
)
# Loaded before all else; the second because the first looks for its exceptions.
SANITIZERS = ("libasan", "libstdc++")


def sanitizing() -> dict[str, str] | None:
    """The variables under which the C++ of graphs is built with sanitizers; None where g++ has none.

    An access out of range, which may do no visible harm, then ends the process.
    """
    if shutil.which("g++") is None:
        return None
    asked = [["g++", f"-print-file-name={name}.so"] for name in SANITIZERS]
    found = [subprocess.run(each, capture_output=True, text=True).stdout.strip() for each in asked]
    if not all(map(os.path.isabs, found)):  # of what it has not, g++ says the name alone
        return None
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    compiler = Path(base, "torchsleuth", "sanitizing", "c++")
    compiler.parent.mkdir(parents=True, exist_ok=True)
    if not compiler.is_file() or compiler.read_text() != SANITIZING_CXX:
        compiler.write_text(SANITIZING_CXX)
        compiler.chmod(0o755)
    return {"CXX": str(compiler), "LD_PRELOAD": " ".join(found), "ASAN_OPTIONS": SANITIZING}


def is_sanitized(environment: Mapping[str, str]) -> bool:
    """Whether a process with this environment builds C++ with sanitizers: `is_sanitized(os.environ)`."""
    return "libasan" in environment.get("LD_PRELOAD", "")
