"""The small program in the words of the given one: what was left as it was is written as it was."""

from __future__ import annotations

import ast

from torchsleuth.search.minify.python.program import Program


def as_written(program: Program, given: str) -> str:
    """The program's text, with each line that stood in `given` as it stood there, less comments.

    >>> from torchsleuth.search.minify.python.program import parsed
    >>> as_written(parsed("f( 'a' )"), "f( 'a' )  # why")
    "f( 'a' )\\n"
    """
    text = program.text
    known = dict(_lines(given))
    lines = text.splitlines()
    for node in _statements(text):
        first = node.lineno - 1
        head = known.get(_key(node))
        if head is not None and _ends(node) == first:
            lines[first] = lines[first][: node.col_offset] + head
    made = "\n".join(lines).strip() + "\n"
    return made if _same(made, text) else text + "\n"


def _lines(text: str) -> list[tuple[str, str]]:
    """Every statement, or head of a block, that takes one line of its own; with what it says."""
    lines = text.splitlines()
    found = []
    for node in _statements(text):
        first = node.lineno - 1
        if _ends(node) != first:
            continue
        raw = lines[first].encode()
        if raw[: node.col_offset].strip():  # something stands before it
            continue
        if hasattr(node, "body"):
            head = raw[node.col_offset :].decode().partition("  #")[0].rstrip()
            if head.endswith(":"):
                found.append((_key(node), head))
        elif node.end_col_offset is not None:
            found.append((_key(node), raw[node.col_offset : node.end_col_offset].decode()))
    return found


def _statements(text: str) -> list[ast.stmt]:
    return [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.stmt)]


def _ends(node: ast.stmt) -> int:
    """The last line, from 0, of a statement or of the head of a block."""
    body = getattr(node, "body", None)
    if body:
        return int(body[0].lineno) - 2 if not getattr(body[0], "decorator_list", None) else -1
    return (node.end_lineno or node.lineno) - 1


def _key(node: ast.stmt) -> str:
    """Equal for statements that say the same, blocks without what stands in them."""
    fields = {name: value for name, value in ast.iter_fields(node) if name not in _INSIDE}
    return f"{type(node).__name__} {[_dump(value) for value in fields.values()]}"


_INSIDE = ("body", "orelse", "finalbody", "handlers", "cases", "decorator_list")


def _dump(value: object) -> str:
    if isinstance(value, list):
        return str([_dump(item) for item in value])
    return ast.dump(value) if isinstance(value, ast.AST) else repr(value)


def _same(one: str, other: str) -> bool:
    try:
        return ast.dump(ast.parse(one)) == ast.dump(ast.parse(other))
    except SyntaxError:
        return False
