"""Statements written as loops do what the statements did, in the same order."""

from hypothesis import given
from hypothesis import strategies as st

from torchsleuth.torch_core.repro.loops import made_together, rolled


def calls_made(lines: list[str], arguments: dict[str, int]) -> tuple[object, list[tuple]]:
    """What the lines return, and every call they make on the way, in order."""
    made: list[tuple] = []

    def op(name: str, *values: int) -> int:
        made.append((name, *values))
        return hash((name, *values)) % 10007

    space: dict = {}
    exec(
        "\n".join(["def f(op, **given):", "    globals().update(given)", *(f"    {li}" for li in lines)]),
        space,
    )
    return space["f"](op, **arguments), made


@st.composite
def chains(draw) -> list[str]:
    """A few random statements, a block that repeats with operands from the turn before, and random ones behind it."""
    values = ["x", "y"]
    lines: list[str] = []

    def add(name: str, *operands: str) -> str:
        lines.append(f"a{len(lines)} = op('{name}', {', '.join(operands)})")
        values.append(f"a{len(lines) - 1}")
        return values[-1]

    for _ in range(draw(st.integers(0, 4))):
        add(draw(st.sampled_from("pq")), *draw(st.lists(st.sampled_from(values), min_size=1, max_size=2)))
    for _ in range(draw(st.integers(1, 2))):
        period, turns = draw(st.integers(1, 4)), draw(st.integers(2, 8))
        names = [draw(st.sampled_from("stu")) for _ in range(period)]
        # Places among the last values, the invariant ones, or a walk through what there was before.
        picks = [draw(st.lists(st.integers(-period - 2, 1), min_size=1, max_size=2)) for _ in range(period)]
        old = list(values)
        walks = [draw(st.booleans()) for _ in range(period)]
        for turn in range(turns):
            start = len(values)
            for name, pick, walk in zip(names, picks, walks):
                operands = [values[max(0, start + p)] if p < 0 else values[p] for p in pick]
                if walk:
                    operands.append(old[max(0, len(old) - 1 - turn)])
                add(name, *operands)
    for _ in range(draw(st.integers(0, 3))):
        add(draw(st.sampled_from("pq")), *draw(st.lists(st.sampled_from(values), min_size=1, max_size=3)))
    returned = draw(st.lists(st.sampled_from(values), min_size=1, max_size=3))
    return [*lines, f"return {', '.join(returned)},"]


@given(chains())
def test_loops_make_the_same_calls_and_return_the_same(lines):
    arguments = {"x": 3, "y": 5}
    assert calls_made(rolled(lines, {"x", "y", "op"}), arguments) == calls_made(lines, arguments)


def test_a_loop_takes_its_first_value_from_the_list_of_an_earlier_loop():
    lines = [f"a{i} = op('s', x)" for i in range(8)]
    for i in range(8, 20, 4):
        lines += [f"a{i} = op('s', y)", f"a{i + 1} = op('s', x)", f"a{i + 2} = op('s', a{i - 2})"]
        lines += [f"a{i + 3} = op('s', x)"]
    lines += ["return a6, a18"]
    arguments = {"x": 3, "y": 5}
    short = rolled(lines, {"x", "y", "op"})
    assert sum(line.startswith("for ") for line in short) == 2
    assert calls_made(short, arguments) == calls_made(lines, arguments)


def test_a_recurrence_and_its_gradient_become_two_loops():
    lines = ["a0 = x + y", "m0 = x * y"]
    for i in range(1, 10):
        lines += [f"a{i} = m{i - 1} + a{i - 1}", f"m{i} = m{i - 1} * a{i - 1}"]
    last = "x"
    for i in reversed(range(2, 10)):
        lines += [f"g{i} = {last} * m{i}", f"h{i} = g{i} + a{i}"]
        last = f"h{i}"
    lines += [f"return {last}"]
    assert len(lines) == 37
    assert len(rolled(lines, {"x", "y"})) <= 10


def test_equal_inputs_are_made_in_one_line_and_others_left_alone():
    lines = [
        "a = torch.ones(2)",
        "b = torch.ones(2)",
        "c = torch.ones(2)",
        "d = torch.ones(3)",
        "e = torch.ones(3)",
    ]
    assert made_together(lines) == ["a, b, c = (torch.ones(2) for _ in range(3))", *lines[3:]]
