"""Functions of the standard library that exist twice: in C, which Dynamo cannot look into, and as Python.

`_bisect.bisect_left` is one: `bisect.py` holds the same in Python, for interpreters without the C module.
"""

from __future__ import annotations

import ast
import builtins
import sys
from importlib.machinery import PathFinder
from pathlib import Path


def python_twin(c_module: str, function: str) -> str | None:
    """Lines that let Dynamo capture the Python text of this function, or None where there is no such text.

    >>> print(python_twin("_bisect", "bisect_right").splitlines()[1])
    @torch.compiler.substitute_in_graph(bisect.bisect_right)
    >>> python_twin("_socket", "gethostname") is python_twin("numpy", "sort") is None
    True
    """
    module = c_module.removeprefix("_")
    if module == c_module or module not in sys.stdlib_module_names:
        return None
    found = PathFinder.find_spec(module)
    if found is None or not (found.origin or "").endswith(".py"):
        return None
    try:
        tree = ast.parse(Path(str(found.origin)).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    defined = {each.name: each for each in tree.body if isinstance(each, ast.FunctionDef)}
    twin = defined.get(function)
    if twin is None or not _stands_alone(twin):
        return None
    if len(twin.body) > 1 and ast.get_docstring(twin) is not None:
        del twin.body[0]
    return f"import {module}\n@torch.compiler.substitute_in_graph({module}.{function})\n{ast.unparse(twin)}"


def _stands_alone(function: ast.FunctionDef) -> bool:
    """Whether it reads nothing but its arguments, what it makes itself and Python's built-in functions."""
    names = [each for each in ast.walk(function) if isinstance(each, ast.Name)]
    arguments = {each.arg for each in ast.walk(function) if isinstance(each, ast.arg)}
    own = arguments | {each.id for each in names if not isinstance(each.ctx, ast.Load)}
    return all(each.id in own or hasattr(builtins, each.id) for each in names)
