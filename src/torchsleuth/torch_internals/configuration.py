"""Torch's settings as values: what of its configuration differs from the defaults, and its global switches.

Configuration is read where a graph is compiled, so that mode= and options= of torch.compile, which torch
applies as temporary patches, are part of what is read.

Versions: 2.13 marks deprecated settings; a setting that one of 2.11..2.15 lacks is left alone. From 2.15 on
a setting may hold others (`numerics`), whatever these are set to: they are no settings of the user's then.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from torchsleuth.core.processes.starting import is_compiler_setting

CONFIG_MODULES = (
    "torch._dynamo.config",
    "torch._inductor.config",
    "torch._functorch.config",
    "torch.fx.experimental._config",
    "torch.compiler.config",
)

# Set by torchsleuth itself, about where files lie, or about logging: none of them changes what is compiled.
_OURS_OR_HARMLESS = {
    "torch._functorch.config": {"enable_autograd_cache", "enable_remote_autograd_cache"},
    "torch._dynamo.config": {
        "repro_after",
        "repro_level",
        "debug_dir_root",
        "verbose",
        # For graphs by their number, which is another one in a script.
        "debug_backend_override",
        "debug_dynamo_config_override",
        "debug_inductor_config_override",
    },
    "torch._inductor.config": {
        "compile_threads",
        "worker_start_method",
        "debug",
        "cpp.cxx",
        "aot_inductor.output_path",
        "fx_graph_cache",
        "fx_graph_remote_cache",
    },
    "torch.fx.experimental._config": {
        "extended_debug_guard_added",
        "extended_debug_create_symbol",
        "extended_debug_cpp",
        "extended_debug_current_loc",
        "print_specializations",
        "enrich_profiler_metadata",
    },
    "torch.compiler.config": {
        "job_id",
        "pgo_extra_read_key",
        "pgo_extra_write_key",
        "cache_key_tag",
        "force_disable_caches",
    },
}
_HARMLESS_PREFIXES = ("trace.", "_")


def changed_settings() -> dict[str, dict[str, Any]]:
    """Every setting of the compiler that is not at its default, by module.

    >>> "torch._dynamo.config" in changed_settings()
    True
    """
    return {name: _changed(name) for name in CONFIG_MODULES}


def held_by(module: Any, key: str) -> str | None:
    """The setting that holds another one at its value, whatever that is set to; None where none does.

    >>> held_by(torch._inductor.config, "max_autotune") is None
    True
    """
    rules = getattr(module, "_implications", {}).get(key, ())
    return next((source for source, value, _ in rules if getattr(module, source) == value), None)


def _changed(module_name: str) -> dict[str, Any]:
    module: Any = importlib.import_module(module_name)
    skipped = _OURS_OR_HARMLESS[module_name]
    unset = _without_environment(module_name)
    found = {}
    for key, entry in module._config.items():
        stands_for_another = entry.alias or getattr(entry, "deprecated", False)
        if key in skipped or key.startswith(_HARMLESS_PREFIXES) or stands_for_another:
            continue
        if held_by(module, key) is not None:
            continue
        if not unset and module._is_default(key):
            continue
        value, default = getattr(module, key), unset.get(key, entry.default)
        if not (value is default or value == default):
            found[key] = value
    return found


@functools.cache
def _without_environment(module_name: str) -> Mapping[str, Any]:
    """What each setting is where no variable of the environment says otherwise; empty where none does.

    torch reads the variables while its module of settings is executed: it is executed once more, under another name.
    """
    kept = {name: value for name, value in os.environ.items() if not is_compiler_setting(name)}
    if len(kept) == len(os.environ):
        return {}
    name = f"torchsleuth_unset_{module_name}"
    file = importlib.import_module(module_name).__file__
    spec = importlib.util.spec_from_file_location(name, str(file))
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    environment, sys.modules[name] = os.environ, module
    os.environ = kept  # type: ignore[assignment] # noqa: B003 - for this module alone; nobody's variables change
    try:
        spec.loader.exec_module(module)
        return {key: getattr(module, key) for key, entry in module._config.items() if not entry.alias}
    finally:
        os.environ = environment  # noqa: B003
        del sys.modules[name]


def global_state() -> dict[str, Any]:
    """The process-wide switches that change what a graph means or how it is compiled, as JSON-able values."""
    state: dict[str, Any] = {
        "grad": torch.is_grad_enabled(),
        "inference_mode": torch.is_inference_mode_enabled(),
        "default_dtype": str(torch.get_default_dtype()),
        "default_device": str(torch.get_default_device()),
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


# What answers from a cache of whole graphs.
_CACHES = {
    "torch._inductor.config": ("fx_graph_cache", "fx_graph_remote_cache"),
    "torch._functorch.config": ("enable_autograd_cache", "enable_remote_autograd_cache"),
}


@contextlib.contextmanager
def without_caches() -> Iterator[None]:
    """Inside, every compile goes all its way: `with without_caches(): torch.compile(torch.relu)(x)`."""
    with contextlib.ExitStack() as stack:
        for name, keys in _CACHES.items():
            config = importlib.import_module(name)
            stack.enter_context(config.patch({key: False for key in keys if hasattr(config, key)}))
        yield


def see_every_compile() -> None:
    """From now on every compile goes all its way, and in this process only."""
    for name, keys in _CACHES.items():
        config = importlib.import_module(name)
        for key in filter(config._config.__contains__, keys):
            setattr(config, key, False)
    setattr(importlib.import_module("torch._inductor.config"), "compile_threads", 1)  # noqa: B010


def saved_settings() -> dict[str, Any]:
    """The compiler's settings as they are now, for `restore_settings`."""
    return {name: importlib.import_module(name).get_config_copy() for name in CONFIG_MODULES}


def restore_settings(saved: dict[str, Any]) -> None:
    """Puts settings back that were changed, and forgets what was compiled."""
    for name, values in saved.items():
        module = importlib.import_module(name)
        for key, value in values.items():
            if getattr(module, key, value) != value:
                setattr(module, key, value)
    importlib.import_module("torch._dynamo").reset()


def crossref_setting() -> str | bool:
    """`torch._functorch.config.fake_tensor_crossref`: False, "custom_ops" or "all"."""
    config: Any = importlib.import_module("torch._functorch.config")
    return getattr(config, "fake_tensor_crossref", False)


@contextlib.contextmanager
def no_script_autocast() -> Iterator[None]:
    """TorchScript's own autocast is off inside: AOTAutograd's graphs hold the casts already."""
    before = torch._C._jit_set_autocast_mode(False)
    try:
        yield
    finally:
        torch._C._jit_set_autocast_mode(before)
