"""A graph as a drawing: calls in rows by what they need, and lines between them. Who shows it has the colours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torchsleuth.front.report.graph_reading import Graph

# More than a person takes in at once; the list of calls is better then.
MOST_CALLS = 60
# More than a person can find anything in, in a file of its own.
MOST_IN_A_FILE = 400
_CHARACTER, _PADDING, _HEIGHT = 7.3, 12.0, 40.0
_ACROSS, _DOWN, _EDGE = 22.0, 34.0, 8.0
_LONGEST = 44
_SWEEPS = 6


@dataclass(frozen=True)
class Box:
    """An input, a call or the result; `x`, `y` are the middle of its top."""

    title: str
    below: str
    kind: str  # "input", "call" or "output"
    x: float
    y: float
    width: float
    height: float = _HEIGHT


@dataclass(frozen=True)
class Drawing:
    """Boxes, and the lines between them as SVG paths."""

    width: float
    height: float
    boxes: tuple[Box, ...]
    paths: tuple[str, ...]
    in_words: str


class TooLarge(ValueError):
    """A graph that nobody could read as a drawing."""


def draw(graph: Graph, most: int = MOST_CALLS, *, named: bool = False) -> Drawing:
    """Where everything of a graph goes: `draw(read_function(script)).boxes`; raises `TooLarge`.

    Lines go around boxes only where there are few. With `named`, a call is shown under the name of its result.
    """
    if len(graph.calls) > most:
        raise TooLarge(f"it has {len(graph.calls)} calls, more than a drawing of {most} shows")
    uses = {call.name: call.uses for call in graph.calls}
    used = {name for each in uses.values() for name in each} | {*graph.outputs}
    inputs = [name for name in graph.inputs if name in used]
    known = {*inputs, *uses}
    result = "the result"
    needs = {name: tuple(each for each in found if each in known) for name, found in uses.items()}
    needs[result] = tuple(dict.fromkeys(each for each in graph.outputs if each in known))
    chains, edges = _chains(_rows(inputs, needs), needs, bend=len(graph.calls) <= MOST_CALLS)
    titles = {
        **{name: (name, graph.made.get(name, ""), "input") for name in inputs},
        **{
            call.name: (f"{call.name} = " * named + _short(call.op), call.shape, "call")
            for call in graph.calls
        },
        result: ("returned", "", "output"),
    }
    widths = {name: _width(*titles[name][:2]) if name in titles else _EDGE for row in chains for name in row}
    ordered = _ordered(chains, edges)
    places, width = _places(ordered, widths)
    boxes = tuple(
        Box(_cut(titles[name][0]), _cut(titles[name][1]), titles[name][2], *places[name], widths[name])
        for row in ordered
        for name in row
        if name in titles
    )
    paths = tuple(_path(places, chain, titles) for chain in _whole_edges(edges, titles))
    words = f"{len(graph.calls)} calls from {len(inputs)} inputs: " + ", ".join(
        titles[call.name][0] for call in graph.calls[:12]
    )
    return Drawing(width, len(ordered) * (_HEIGHT + _DOWN), boxes, paths, words)


def _rows(inputs: Sequence[str], needs: Mapping[str, tuple[str, ...]]) -> dict[str, int]:
    """The row of each: below all that it needs; inputs right above what first uses them."""
    row: dict[str, int] = dict.fromkeys(inputs, 0)
    for name, found in needs.items():
        row[name] = max((row[each] for each in found if each in row), default=0) + 1
    for name in inputs:
        row[name] = max(0, min((row[user] for user, found in needs.items() if name in found), default=1) - 1)
    return row


def _chains(
    row: Mapping[str, int], needs: Mapping[str, tuple[str, ...]], bend: bool
) -> tuple[list[list[str]], list[tuple[str, str]]]:
    """Names by row, where lines bend with one point in each row that a long one passes; and the lines."""
    rows: list[list[str]] = [[] for _ in range(max(row.values(), default=0) + 1)]
    for name, number in row.items():
        rows[number].append(name)
    edges: list[tuple[str, str]] = []
    for user, found in needs.items():
        for maker in found:
            last = maker
            for number in range(row[maker] + 1, row[user]) if bend else ():
                point = f"{maker}\0{user}\0{number}"
                rows[number].append(point)
                edges.append((last, point))
                last = point
            edges.append((last, user))
    return [each for each in rows if each], edges


def _ordered(rows: list[list[str]], edges: Sequence[tuple[str, str]]) -> list[list[str]]:
    """Each row by the middle of its neighbours in the row before, down and up again: few lines cross."""
    above: dict[str, list[str]] = {}
    below: dict[str, list[str]] = {}
    for maker, user in edges:
        above.setdefault(user, []).append(maker)
        below.setdefault(maker, []).append(user)
    rows = [list(each) for each in rows]
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        order = range(1, len(rows)) if down else range(len(rows) - 2, -1, -1)
        for number in order:
            beside = rows[number - 1 if down else number + 1]
            at = {name: place for place, name in enumerate(beside)}
            near = above if down else below
            middle = {
                name: sum(found) / len(found) if found else float(place)
                for place, name in enumerate(rows[number])
                for found in [[at[each] for each in near.get(name, ()) if each in at]]
            }
            rows[number].sort(key=lambda name: middle[name])
    return rows


def _places(
    rows: Sequence[Sequence[str]], widths: Mapping[str, float]
) -> tuple[dict[str, tuple[float, float]], float]:
    """Rows centred under each other."""
    lengths = [sum(widths[name] for name in row) + _ACROSS * (len(row) + 1) for row in rows]
    width = max(lengths, default=0.0)
    places = {}
    for number, row in enumerate(rows):
        x = (width - lengths[number]) / 2 + _ACROSS
        for name in row:
            places[name] = (round(x + widths[name] / 2, 1), round(_DOWN / 2 + number * (_HEIGHT + _DOWN), 1))
            x += widths[name] + _ACROSS
    return places, width


def _whole_edges(edges: Sequence[tuple[str, str]], titles: Mapping[str, object]) -> list[list[str]]:
    """Lines from box to box, through the points between."""
    following = {maker: user for maker, user in edges if maker not in titles}
    found = []
    for maker, user in edges:
        if maker in titles:
            chain = [maker, user]
            while chain[-1] not in titles:
                chain.append(following[chain[-1]])
            found.append(chain)
    return found


def _path(
    places: Mapping[str, tuple[float, float]], chain: Sequence[str], titles: Mapping[str, object]
) -> str:
    x, y = places[chain[0]]
    y += _HEIGHT
    parts = [f"M{x:g} {y:g}"]
    for name in chain[1:]:
        next_x, next_y = places[name]
        middle = (y + next_y) / 2
        parts.append(f"C{x:g} {middle:g} {next_x:g} {middle:g} {next_x:g} {next_y:g}")
        x, y = next_x, next_y
        if name not in titles:
            y += _HEIGHT
            parts.append(f"V{y:g}")
    return "".join(parts)


def _width(title: str, below: str) -> float:
    return round(max(60.0, _CHARACTER * max(len(_cut(title)), len(_cut(below))) + 2 * _PADDING), 1)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _short(op: str) -> str:
    """`torch.nn.functional.relu` is `F.relu`, `torch.ops.aten.relu.default` is `aten.relu.default`."""
    return op.replace("torch.nn.functional.", "F.").removeprefix("torch.ops.")
