"""Where `torch.compile` would go in a script that compiles nothing: read as text, nothing is run."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from torchsleuth.core.cases.door import NotRead, text_inside

MOST_BYTES = 4 << 20
MOST_PLACES = 3


def compile_places(script: Path) -> list[str]:
    """Lines to add, each with its place; none where the script shows no place: `compile_places(Path("train.py"))`."""
    try:
        tree = ast.parse(text_inside(script.parent, script.name, MOST_BYTES))
    except (NotRead, SyntaxError, ValueError, RecursionError):
        return []
    compiled = _compiled(tree)
    places = [*_models(tree, script.name, compiled), *_functions(tree, script.name, compiled)]
    return list(dict.fromkeys(places))[:MOST_PLACES]


def _compiled(tree: ast.Module) -> set[str]:
    """Names that the script gives to something called `compile`, or decorates with it."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and "compile" in ast.unparse(node.func):
            parts = (node.func, *node.args)
            found |= {n.id for part in parts for n in ast.walk(part) if isinstance(n, ast.Name)}
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and "compile" in "".join(
            map(ast.unparse, node.decorator_list)
        ):
            found.add(node.name)
    return found


def _models(tree: ast.Module, file: str, compiled: set[str]) -> Iterator[str]:
    """Variables that get a model of a class of this file."""
    classes = {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and any("Module" in ast.unparse(base) for base in node.bases)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            made = {n.id for n in ast.walk(node.value) if isinstance(n, ast.Name)}
            name = node.targets[0].id
            if made & classes - compiled and name not in compiled:
                yield f"{name} = torch.compile({name}), after {file}:{node.end_lineno}"


def _functions(tree: ast.Module, file: str, compiled: set[str]) -> Iterator[str]:
    """Functions at the top of the file that compute with torch, the longest first."""
    found = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and node.name not in compiled
        and node.args.args
        and "torch." in ast.unparse(node)
    ]
    for node in sorted(found, key=lambda n: (n.end_lineno or n.lineno) - n.lineno, reverse=True):
        yield f"@torch.compile above `def {node.name}`, at {file}:{node.lineno}"
