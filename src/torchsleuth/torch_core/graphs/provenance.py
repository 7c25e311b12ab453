"""Which line of the user's program a graph node came from.

Dynamo leaves the Python stack of every call on `node.stack_trace`, as text, and AOTAutograd copies it to
forward and backward nodes alike. The line a person wants is the innermost frame of *their* code: not torch's,
not an installed library's, unless the whole model is a library's.
"""

import functools
import linecache
import os
import re
import sys
import sysconfig

import torch

import torchsleuth
from torchsleuth.torch_core.graphs.source_line import SourceLine

_FRAME = re.compile(r'^\s*File "(?P<file>.*)", line (?P<line>\d+), in (?P<function>.*)$')
_TORCH_FOLDER = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_OWN_FOLDER = os.path.dirname(os.path.abspath(torchsleuth.__file__)) + os.sep
_STDLIB_FOLDERS = tuple(
    {os.path.abspath(sysconfig.get_paths()[key]) + os.sep for key in ("stdlib", "platstdlib")}
)
_INSTALLED = re.compile(r"[/\\](site|dist)-packages[/\\]")


def source_line(node: torch.fx.Node) -> SourceLine | None:
    """The user's line behind a node, or None where the graph does not say.

    >>> source_line(node).place
    'model.py:84'
    """
    frame = _innermost_user_frame(node.stack_trace) if node.stack_trace else None
    return None if frame is None else SourceLine(*frame, *module_and_call(node))


def module_and_call(node: torch.fx.Node) -> tuple[str, str, bool]:
    """The module path a node ran in, what the program called there, and whether the node is of that call's gradient.

    >>> module_and_call(node)
    ('encoder.layers.3', 'nn.ReLU', False)
    """
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    module = _module_path(str(next(reversed(stack.values()))[0])) if stack else ""
    backward = node.meta.get("fwd_source_fn_stack")
    called = node.meta.get("source_fn_stack") or backward
    return module, _call_name(called[-1][1]) if called else "", bool(backward)


def calling_line() -> SourceLine | None:
    """The line of the user's program that is being run: of a model made of library modules, the line that calls it."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if _is_users(file) and not os.path.abspath(file).startswith(_OWN_FOLDER) and not file.startswith("<"):
            code = linecache.getline(file, frame.f_lineno).strip()
            return SourceLine(file, frame.f_lineno, frame.f_code.co_name, code)
        frame = frame.f_back  # type: ignore[assignment]
    return None


def user_lines(gm: torch.fx.GraphModule) -> tuple[str, ...]:
    """The distinct `"model.py:84"` of a graph's calls, nested graphs included, in graph order.

    >>> user_lines(gm)
    ('model.py:84',)
    """
    found: dict[str, None] = {}
    for module in gm.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                line = source_line(node) if node.op.startswith("call_") else None
                if line is not None:
                    found[line.place] = None
    return tuple(found)


def _call_name(target: object) -> str:
    """`nn.Conv2d`, `gelu`, `sigmoid`: a module by its class, anything else by its own name."""
    name = getattr(target, "__name__", None) or str(target)
    return f"nn.{name}" if isinstance(target, type) and target.__module__.startswith("torch.nn.") else name


# Nodes of one source line share one trace, so a graph has far fewer traces than nodes.
@functools.lru_cache(maxsize=4096)
def _innermost_user_frame(trace: str) -> tuple[str, int, str, str] | None:
    frames = _frames(trace)
    for is_wanted in (_is_users, _is_library):
        for frame in reversed(frames):
            if is_wanted(frame[0]):
                return frame
    return None


def _frames(trace: str) -> list[tuple[str, int, str, str]]:
    frames = []
    lines = trace.splitlines()
    for number, text in enumerate(lines):
        match = _FRAME.match(text)
        if match:
            following = lines[number + 1].strip() if number + 1 < len(lines) else ""
            code = "" if _FRAME.match(following) else following
            frames.append((match["file"], int(match["line"]), _as_written(match["function"]), code))
    return frames


def _as_written(function: str) -> str:
    """After a graph break Dynamo goes on in a function of its own making, named after the user's."""
    resumed = re.fullmatch(r"torch_dynamo_resume_in_(.+)_at_\d+", function)
    return resumed[1] if resumed else function


def _is_users(file: str) -> bool:
    path = os.path.abspath(file)
    return _is_library(file) and not _INSTALLED.search(path) and not path.startswith(_STDLIB_FOLDERS)


def _is_library(file: str) -> bool:
    if file.startswith(("<eval_with_key>", "<frozen ")):  # code that fx or Python made up
        return False
    return not os.path.abspath(file).startswith(_TORCH_FOLDER)


@functools.lru_cache(maxsize=4096)
def _module_path(spelled: str) -> str:
    """`encoder.layers.3.mlp` for the ways Dynamo has spelled it: `L['self'].encoder.layers[3].mlp` is one."""
    path = re.sub(r"getattr\((.*?), '(.*?)'\)", r"\1.\2", spelled)
    path = re.sub(r"^[LG]\['\w+'\]", "", path)
    path = re.sub(r"\.?_modules\['([^']*)'\]", r".\1", path)
    path = re.sub(r"\[['\"]?([^'\"\]]*)['\"]?\]", r".\1", path)
    return path.removeprefix("self.").strip(".") if path != "self" else ""
