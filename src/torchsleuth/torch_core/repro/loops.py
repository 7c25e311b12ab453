"""Statements that repeat, written as a loop: a chain of eighty calls in five lines, which still makes the same calls.

A run of statements repeats with a period when each does what the one a period before it did, with operands that are
the same, or lie equally far back, or move evenly through what an earlier loop made. What a loop makes goes into a list:
`v += [v[-1] + v[-2], v[-1] * v[-2]]`. Whoever traces the function sees the statements in their old order.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

MOST_LINES = 400
"""What is longer is nobody's to read, and takes long to look through."""

LONGEST_PERIOD = 12
LEAST_TURNS = 3
LEAST_SAVED = 4
"""Lines that a loop must save: below that the plain statements read better."""


@dataclass(frozen=True)
class _Item:
    """The element of a list that a loop made."""

    list: str
    place: int


_Operand = str | _Item


@dataclass(frozen=True)
class _Statement:
    """`target = shape` with the operands in the holes of the shape; a target of None is not for loops."""

    target: str | None
    shape: str
    operands: tuple[_Operand, ...]


@dataclass(frozen=True)
class _Loop:
    """`turns` repetitions of `period` statements from `first` on; how each operand is written inside; what precedes."""

    first: int
    period: int
    turns: int
    operands: tuple[tuple[str, ...], ...]
    before: tuple[_Operand, ...]
    counts: bool

    @property
    def saved(self) -> int:
        return self.period * self.turns - self.period - 2


def rolled(lines: Sequence[str], taken: Collection[str]) -> list[str]:
    """The statements with those that repeat in loops; `taken` are names that mean something else.

    >>> rolled(["a = x + 1", *(f"{b} = {a} * {a}" for a, b in zip("abcdefgh", "bcdefghi")), "return i"], {"x"})
    ['a = x + 1', 'v = [a]', 'for _ in range(8):', '    v += [v[-1] * v[-1]]', 'return v[8]']
    """
    if len(lines) > MOST_LINES:
        return list(lines)
    statements = [_read(line) for line in lines]
    words = {*taken, *_words(lines)}
    names = (name for name in ("v", "w", *(f"v{n}" for n in range(2, MOST_LINES))) if name not in words)
    counter = next(name for name in ("i", "j", *(f"i{n}" for n in range(len(words)))) if name not in words)
    return _rolled(statements, counter, names)[0]


def made_together(lines: Sequence[str]) -> list[str]:
    """Assignments of one expression to several names in a row, as one line.

    >>> made_together(["x = torch.ones(2)", "y = torch.ones(2)", "z = torch.ones(2)"])
    ['x, y, z = (torch.ones(2) for _ in range(3))']
    """
    written: list[str] = []
    for value, group in itertools.groupby(lines, key=lambda line: line.partition(" = ")[2]):
        names = [line.partition(" = ")[0] for line in group]
        if value and len(names) >= LEAST_TURNS:
            written.append(f"{', '.join(names)} = ({value} for _ in range({len(names)}))")
        else:
            written += [f"{name} = {value}" if value else name for name in names]
    return written


def _rolled(
    statements: Sequence[_Statement], counter: str, names: Iterator[str]
) -> tuple[list[str], dict[str, _Operand]]:
    """The longest saving first, what lies before and behind it in the same way; with where each value now lies.

    What lies before comes first: the loop and what is behind it name its values by where they lie by then.
    """
    found = _best_loop(statements)
    if found is None:
        return [_written(s) for s in statements], {}
    lines, items = _rolled(statements[: found.first], counter, names)
    rest = _relocated(statements[found.first :], items)
    loop = _loop_of(rest, 0, found.period, found.turns)
    assert loop is not None, "a loop stays one when what it takes from before it moves into a list"
    name, end, start = next(names), loop.period * loop.turns, len(loop.before)
    items |= {s.target: _Item(name, start + i) for i, s in enumerate(rest[:end]) if s.target is not None}
    behind, further = _rolled(_relocated(rest[end:], items), counter, names)
    return [*lines, *_loop_lines(rest, loop, name, counter), *behind], items | further


def _relocated(statements: Sequence[_Statement], items: dict[str, _Operand]) -> list[_Statement]:
    """The statements with every operand that lies in a list by now taken from there."""
    return [
        replace(s, operands=tuple(items.get(o, o) if isinstance(o, str) else o for o in s.operands))
        for s in statements
    ]


def _loop_lines(statements: Sequence[_Statement], loop: _Loop, name: str, counter: str) -> list[str]:
    body = statements[loop.first : loop.first + loop.period]
    local = [any(s.target in texts for texts in loop.operands) for s in body]
    lines = [
        f"{name} = [{', '.join(_word(o) for o in loop.before)}]",
        f"for {counter if loop.counts else '_'} in range({loop.turns}):",
    ]
    texts = [s.shape.format(*(t.format(v=name, i=counter) for t in ts)) for s, ts in zip(body, loop.operands)]
    if any(local):
        lines += [f"    {s.target} = {text}" for s, text in zip(body, texts)]
        texts = [str(s.target) for s in body]
    return [*lines, f"    {name} += [{', '.join(texts)}]"]


def _best_loop(statements: Sequence[_Statement]) -> _Loop | None:
    """The one that saves most; of each period at each place the longest is asked."""
    found = []
    for first, period in itertools.product(range(len(statements)), range(1, LONGEST_PERIOD + 1)):
        turns = range(_same_shapes(statements, first, period), LEAST_TURNS - 1, -1)
        longest = next(filter(None, (_loop_of(statements, first, period, n) for n in turns)), None)
        found += [longest] if longest is not None and longest.saved >= LEAST_SAVED else []
    return max(found, key=lambda loop: (loop.saved, -loop.period), default=None)


def _same_shapes(statements: Sequence[_Statement], first: int, period: int) -> int:
    """How many turns of this period have statements of one shape."""
    turns = 0
    while first + (turns + 1) * period <= len(statements):
        for i in range(period):
            one, other = statements[first + i], statements[first + turns * period + i]
            if one.target is None or other.target is None or one.shape != other.shape:
                return turns
        turns += 1
    return turns


def _loop_of(statements: Sequence[_Statement], first: int, period: int, turns: int) -> _Loop | None:
    """The loop of so many turns, where every operand can be written inside."""
    places: dict[_Operand, int] = {s.target: i for i, s in enumerate(statements) if s.target is not None}
    before: dict[int, _Operand] = {}
    written: list[tuple[str, ...]] = []
    counts = False
    for i in range(period):
        texts = []
        for hole in range(len(statements[first + i].operands)):
            seen = [statements[first + t * period + i].operands[hole] for t in range(turns)]
            text = _text_of(seen, places, first, period, before)
            if text is None:
                return None
            counts |= "{i}" in text
            texts.append(text)
        written.append(tuple(texts))
    back = max(before, default=0)
    if set(before) != set(range(1, back + 1)):
        return None
    return _Loop(first, period, turns, tuple(written), tuple(before[k] for k in range(back, 0, -1)), counts)


def _text_of(
    seen: Sequence[_Operand],
    places: dict[_Operand, int],
    first: int,
    period: int,
    before: dict[int, _Operand],
) -> str | None:
    """How one operand is written inside the loop; notes in `before` what the list has to begin with."""
    if all(each == seen[0] for each in seen):
        return _word(seen[0])
    lists = {each.list for each in seen if isinstance(each, _Item)}
    if len(lists) == 1 and all(isinstance(each, _Item) for each in seen):
        steps = [each.place for each in seen if isinstance(each, _Item)]
        step = steps[1] - steps[0]
        if all(b - a == step for a, b in itertools.pairwise(steps)):
            sign = "+" if step > 0 else "-"
            times = "{i}" if abs(step) == 1 else f"{abs(step)} * {{i}}"
            return f"{lists.pop()}[{steps[0]} {sign} {times}]"
        return None
    # From the second turn on it is known how far back the operand lies; the first one tells where the list begins.
    back = {first + t * period - places.get(each, -1) for t, each in enumerate(seen) if t > 0}
    if len(back) != 1 or any(each not in places for each in seen[1:]):
        return None
    distance = back.pop()
    if distance <= 0:
        # Of the same turn: a statement before this one, under its first name.
        return str(seen[0]) if places.get(seen[0]) == first - distance else None
    if distance > period or before.setdefault(distance, seen[0]) != seen[0]:
        return None
    return f"{{v}}[-{distance}]"


def _read(line: str) -> _Statement:
    (node,) = ast.parse(line).body
    target: str | None = None
    value: ast.AST = node
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
        target, value = node.targets[0].id, node.value
    text = line if target is None else line.partition(" = ")[2]
    shift = len(line) - len(text)
    loads = [n for n in ast.walk(value) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
    loads.sort(key=lambda n: n.col_offset)
    shape, operands, at = "", [], 0
    for name in loads:
        begin = name.col_offset - shift
        shape += text[at:begin].replace("{", "{{").replace("}", "}}") + "{}"
        operands.append(name.id)
        at = begin + len(name.id)
    return _Statement(target, shape + text[at:].replace("{", "{{").replace("}", "}}"), tuple(operands))


def _written(statement: _Statement) -> str:
    value = statement.shape.format(*(_word(o) for o in statement.operands))
    return value if statement.target is None else f"{statement.target} = {value}"


def _word(operand: _Operand) -> str:
    return operand if isinstance(operand, str) else f"{operand.list}[{operand.place}]"


def _words(lines: Sequence[str]) -> set[str]:
    return {n.id for line in lines for n in ast.walk(ast.parse(line)) if isinstance(n, ast.Name)}
