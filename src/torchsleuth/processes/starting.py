"""How processes of ours are started: by which command, in which environment, and with which devices in sight."""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping
from pathlib import Path

import torchsleuth

_INJECT = os.path.join("torchsleuth", "watched", "inject")
_VISIBLE_DEVICES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
# What a driver puts there for each device it has.
_DEVICE_FILES = ("/dev/nvidia[0-9]*", "/dev/kfd", "/dev/accel*", "/dev/davinci[0-9]*")


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
    """The environment of a fresh process: not watched, and with a kernel cache of its own.

    >>> fresh_environment({"TORCHSLEUTH_LEVEL": "4"}, Path("cache"))
    {'TORCHINDUCTOR_CACHE_DIR': 'cache', 'PYTHONUNBUFFERED': '1'}
    """
    kept = {k: v for k, v in environment.items() if not k.startswith("TORCHSLEUTH_")}
    paths = [p for p in kept.get("PYTHONPATH", "").split(os.pathsep) if not p.endswith(_INJECT)]
    kept["PYTHONPATH"] = os.pathsep.join(paths)
    if not kept["PYTHONPATH"]:
        del kept["PYTHONPATH"]
    return {**kept, "TORCHINDUCTOR_CACHE_DIR": str(cache), "PYTHONUNBUFFERED": "1"}


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
