"""Reads a script that PyTorch's own minifier wrote: `repro.py`, `minifier_launcher.py` or a checkpoint of either.

Such a script defines `mod` and `load_args(reader)` and starts at `if __name__ == "__main__"`; it is executed up to
there. 2.11..2.15 write `run_repro(mod, load_args, accuracy=..., command=..., save_dir=..., backend=...)` alike; the
tensors lie in `save_dir` in torch's own content store, which its `InputReader` opens.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True)
class ForeignScript:
    """The module and inputs of a foreign script, at which level it compiles, and with which backend."""

    module: torch.nn.Module
    inputs: list[Any]
    level: str
    backend: str
    accuracy: bool
    config: dict[str, dict[str, str]]


def is_foreign(text: str) -> bool:
    """Whether a script was written by PyTorch's minifier."""
    return bool(re.search(r"from torch\._dynamo\.repro\.after_(aot|dynamo) import run_repro", text))


def read_foreign(path: Path) -> ForeignScript:
    """Executes the definitions of a foreign script and loads its inputs; missing tensors are random, as in torch."""
    from torch._dynamo.debug_utils import InputReader

    text = path.read_text(encoding="utf-8")
    options = _options(text)
    scope: dict[str, Any] = {"__name__": "foreign_repro", "__file__": str(path)}
    exec(compile(text, str(path), "exec"), scope)
    kept = options.get("save_dir")
    reader = InputReader(save_dir=kept if kept and Path(kept).is_dir() else None)
    scope["load_args"](reader)
    after = re.search(r"repro\.after_(aot|dynamo) import run_repro", text)
    return ForeignScript(
        scope["mod"],
        list(reader.args),
        after[1] if after else "aot",
        str(options.get("backend") or "inductor"),
        bool(options.get("accuracy")),
        _config(text),
    )


def _options(text: str) -> dict[str, Any]:
    """The literal keyword arguments of the call of `run_repro`."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "run_repro":
            return {
                k.arg: k.value.value for k in node.keywords if k.arg and isinstance(k.value, ast.Constant)
            }
    return {}


def _config(text: str) -> dict[str, dict[str, str]]:
    """The settings that the script makes, by module, as source."""
    found: dict[str, dict[str, str]] = {}
    for module, key, value in re.findall(r"^(torch\.[\w.]*config)\.([\w.]+) = (.+)$", text, re.MULTILINE):
        if key != "fake_tensor_allow_unsafe_data_ptr_access":  # the script's own need, not the program's
            found.setdefault(module, {})[key] = value
    return found
