"""What a worker must set, and set back, around a trial: caches that hide a compile, threads, configuration.

Versions: the names below exist in 2.11 to 2.15; one that is missing is left alone.
"""

from __future__ import annotations

import importlib
import threading
from typing import Any

_CONFIGS = ("torch._dynamo.config", "torch._inductor.config", "torch._functorch.config")


def see_every_compile() -> None:
    """Turns off what answers from a cache of whole graphs, and compiles in this process only."""
    for module_name, key, value in (
        ("torch._inductor.config", "fx_graph_cache", False),
        ("torch._inductor.config", "fx_graph_remote_cache", False),
        ("torch._functorch.config", "enable_autograd_cache", False),
        ("torch._inductor.config", "compile_threads", 1),
    ):
        module = importlib.import_module(module_name)
        if hasattr(module, key):
            setattr(module, key, value)


def saved_settings() -> dict[str, Any]:
    """The compiler's settings as they are now, for `restore_settings`."""
    return {name: importlib.import_module(name).get_config_copy() for name in _CONFIGS}


def restore_settings(saved: dict[str, Any]) -> None:
    """Puts settings back that a trial changed, and forgets what was compiled."""
    for name, values in saved.items():
        module = importlib.import_module(name)
        for key, value in values.items():
            if getattr(module, key, value) != value:
                setattr(module, key, value)
    importlib.import_module("torch._dynamo").reset()


def no_monitor_thread() -> None:
    """Keeps tqdm, which Inductor shows its progress with, from what must not be forked: a thread and a shared lock.

    Its lock is one of the machine's semaphores, which all forked processes share: one of them that is killed while it
    draws holds it for ever, and every later one waits.
    """
    try:
        tqdm = importlib.import_module("tqdm").tqdm
    except ImportError:
        return
    tqdm.monitor_interval = 0
    tqdm.set_lock(threading.RLock())
