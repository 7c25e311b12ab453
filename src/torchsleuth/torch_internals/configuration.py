"""Torch's settings as values: what of its configuration differs from the defaults, and its global switches.

Configuration is read where a graph is compiled, so that mode= and options= of torch.compile, which torch
applies as temporary patches, are part of what is read.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch

CONFIG_MODULES = ("torch._dynamo.config", "torch._inductor.config", "torch._functorch.config")

# Set by torchsleuth itself, about where files lie, or about logging: none of them changes what is compiled.
_OURS_OR_HARMLESS = {
    "torch._functorch.config": {"enable_autograd_cache", "enable_remote_autograd_cache"},
    "torch._dynamo.config": {"repro_after", "repro_level", "debug_dir_root", "verbose"},
    "torch._inductor.config": {"compile_threads", "worker_start_method", "debug", "cpp.cxx"},
}
_HARMLESS_PREFIXES = ("trace.", "_")


def changed_settings() -> dict[str, dict[str, Any]]:
    """Every setting of dynamo, inductor and functorch that is not at its default, by module.

    >>> sorted(changed_settings())
    ['torch._dynamo.config', 'torch._functorch.config', 'torch._inductor.config']
    """
    return {name: _changed(name) for name in CONFIG_MODULES}


def _changed(module_name: str) -> dict[str, Any]:
    module: Any = importlib.import_module(module_name)
    skipped = _OURS_OR_HARMLESS[module_name]
    found = {}
    for key, entry in module._config.items():
        # 2.13 marks deprecated settings; 2.11 has no such mark.
        stands_for_another = entry.alias or getattr(entry, "deprecated", False)
        if key in skipped or key.startswith(_HARMLESS_PREFIXES) or stands_for_another:
            continue
        if module._is_default(key):
            continue
        value = getattr(module, key)
        if not (value is entry.default or value == entry.default):
            found[key] = value
    return found


def global_state() -> dict[str, Any]:
    """The process-wide switches that change what a graph means or how it is compiled, as JSON-able values."""
    state: dict[str, Any] = {
        "grad": torch.is_grad_enabled(),
        "inference_mode": torch.is_inference_mode_enabled(),
        "default_dtype": str(torch.get_default_dtype()),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "autocast": {},
    }
    for device in ("cpu", "cuda"):
        if torch.is_autocast_enabled(device):
            state["autocast"][device] = str(torch.get_autocast_dtype(device))
    return state


def versions() -> dict[str, Any]:
    """What torch and which devices these are, for environment.txt and the head of a repro."""
    found: dict[str, Any] = {
        "torch": torch.__version__,
        "git": getattr(torch.version, "git_version", None),
        "cuda": torch.version.cuda,
        "devices": [],
    }
    if torch.version.cuda and torch.cuda.is_initialized():
        found["devices"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return found


def default_setting(module_name: str, key: str) -> tuple[Any] | None:
    """The default of one setting in a tuple, or None where this torch has no such setting.

    >>> default_setting("torch._inductor.config", "epilogue_fusion")
    (True,)
    """
    entry = importlib.import_module(module_name)._config.get(key)
    return None if entry is None else (entry.default,)
