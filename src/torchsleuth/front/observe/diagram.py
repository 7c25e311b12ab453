"""A graph's text as a drawing: each call a box, results flow downwards. Read as Python text, never executed."""

from __future__ import annotations

import ast
import html
from dataclasses import dataclass

# More than this nobody can look at.
MOST_NODES = 400
WIDTH, HEIGHT, GAP_X, GAP_Y = 170, 26, 14, 34


@dataclass(frozen=True)
class Box:
    """One input or call: its name, what it calls, whose results it takes."""

    name: str
    calls: str
    takes: tuple[str, ...]


def boxes_of(source: str) -> list[Box]:
    """The inputs and calls of the last `forward` in a graph's text, in order; none where there is no such text.

    >>> boxes_of("class G:\\n    def forward(self, x):\\n        y = torch.sin(x)\\n        return (y,)")[1]
    Box(name='y', calls='torch.sin', takes=('x',))
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return []
    functions = [
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "forward"
    ]
    if not functions:
        return []
    forward = functions[-1]
    boxes = [Box(each.arg, "input", ()) for each in forward.args.args if each.arg != "self"]
    known = {box.name for box in boxes}
    for statement in forward.body:
        if isinstance(statement, ast.Return):
            boxes.append(Box("return", "output", _names(statement, known)))
        elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            name, value = statement.targets[0].id, statement.value
            if not (isinstance(value, ast.Constant) and value.value is None):  # `x = None` frees x
                called = ast.unparse(value.func) if isinstance(value, ast.Call) else ast.unparse(value)
                boxes.append(Box(name, called.removeprefix("torch.ops."), _names(value, known)))
                known.add(name)
    return boxes


def _names(node: ast.AST, known: set[str]) -> tuple[str, ...]:
    used = [each.id for each in ast.walk(node) if isinstance(each, ast.Name) and each.id in known]
    return tuple(dict.fromkeys(used))


def diagram_svg(source: str) -> str | None:
    """The drawing, or None where the text is no graph or too large a one to look at."""
    boxes = boxes_of(source)
    if not boxes or len(boxes) > MOST_NODES:
        return None
    rows: dict[int, list[Box]] = {}
    depth: dict[str, int] = {}
    for box in boxes:
        depth[box.name] = 1 + max((depth[name] for name in box.takes), default=-1)
        rows.setdefault(depth[box.name], []).append(box)
    place = {
        box.name: (8 + column * (WIDTH + GAP_X), 8 + row * (HEIGHT + GAP_Y))
        for row, members in rows.items()
        for column, box in enumerate(members)
    }
    width = 8 + max(len(members) for members in rows.values()) * (WIDTH + GAP_X)
    height = 8 + len(rows) * (HEIGHT + GAP_Y)
    lines = "".join(
        f'<line x1="{place[name][0] + WIDTH / 2}" y1="{place[name][1] + HEIGHT}" '
        f'x2="{place[box.name][0] + WIDTH / 2}" y2="{place[box.name][1]}" stroke="#888"/>'
        for box in boxes
        for name in box.takes
    )
    drawn = "".join(_box(box, *place[box.name]) for box in boxes)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
        f'font-size="11"><rect width="100%" height="100%" fill="#ffffff"/>{lines}{drawn}</svg>\n'
    )


def _box(box: Box, x: int, y: int) -> str:
    colour = {"input": "#dbeafe", "output": "#fde68a"}.get(box.calls, "#ececec")
    words = f"{box.name} = {box.calls}"
    return (
        f'<g><title>{html.escape(words)}</title><rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="4" '
        f'fill="{colour}" stroke="#888"/><text x="{x + 5}" y="{y + 17}">{html.escape(words[:28])}</text></g>'
    )
