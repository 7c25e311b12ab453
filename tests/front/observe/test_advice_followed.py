"""Advice of `recompiles` and `explain`, followed as it is printed: the recompilations and the breaks that it is for are gone.

Each piece has a program that gets the advice. What is code in the printed text is taken out of it and run; what is
words is followed by a second form of the program, and has to stand in the text. Nothing here knows a cure by heart.
"""

import logging
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

import torchsleuth

SETTING = re.compile(r"torch\._dynamo\.config\.\w+ = \w+")
MARK = re.compile(r"torch\._dynamo\.(?:maybe_)?mark_dynamic\(x, \d\)")
LOG = logging.getLogger("advice")


@pytest.fixture(autouse=True)
def nothing_stays():
    """What is set by advice, and what is compiled, is gone afterwards."""
    torch.compiler.reset()
    with torch._dynamo.config.patch(
        capture_scalar_outputs=False,
        capture_dynamic_output_shape_ops=False,
        allow_unspec_int_on_nn_module=False,
        reorderable_logging_functions=set(),
        ignore_logging_functions=set(),
    ):
        yield
    torch.compiler.reset()


def printed_code(pattern: re.Pattern[str], text: str) -> str:
    """The one piece of code of that form in a printed advice."""
    (found,) = dict.fromkeys(pattern.findall(text))
    return found


# -- recompiles


@dataclass
class Calls:
    """A function, the arguments of its calls, and what `torch.compile` gets beside."""

    function: Callable[..., object]
    arguments: list[tuple[object, ...]]
    options: dict[str, object] | None = None
    before: Callable[..., object] = lambda *_: None


def recompiled(calls: Calls) -> tuple[int, str]:
    """How often it is compiled again, and what is printed about that."""
    torch.compiler.reset()
    profiler = torchsleuth.CompileProfiler()
    compiled = torch.compile(calls.function, backend=profiler, **(calls.options or {}))
    for each in calls.arguments:
        calls.before(*each)
        compiled(*each)
    return profiler.recompiles.count, profiler.report()


def sized(*sizes):
    return [(torch.ones(size, 3),) for size in sizes]


def sine(x, *_):
    return x.sin() + 1


def scaled(x, by):
    return x * by


class Steps(torch.nn.Module):
    step = 0

    def forward(self, x):
        return x * self.step


def stepping():
    model = Steps()

    def set_step(x, step):
        model.step = step

    return Calls(lambda x, _: model(x), [(torch.ones(3), n) for n in (2, 3, 4)], before=set_step)


@dataclass
class Scale:
    by: int


def at_scale(x, scale):
    return x * scale.by


def total(x, items):
    for item in items:
        x = x + item
    return x


def applied(x, f):
    return f(x)


def with_mark(calls: Calls, text: str) -> Calls:
    line = printed_code(MARK, text)
    return Calls(calls.function, calls.arguments, before=lambda x, *_: exec(line, {"torch": torch, "x": x}))


def dynamic(calls: Calls, text: str) -> Calls:
    assert "torch.compile(..., dynamic=True)" in text
    return Calls(calls.function, calls.arguments, {"dynamic": True})


def with_setting(calls: Calls, text: str) -> Calls:
    exec(printed_code(SETTING, text), {"torch": torch})
    return calls


def instead(says: str, arguments: Callable[[], list[tuple[object, ...]]]):
    """Other arguments, as the printed words ask for them."""

    def follow(calls: Calls, text: str) -> Calls:
        assert says in text, text
        return Calls(calls.function, arguments(), calls.options)

    return follow


ONE = torch.ones(3, 3)
RECOMPILES = {
    "mark": (lambda: Calls(sine, sized(2, 3, 4)), with_mark),
    "mark, and a size of 1": (lambda: Calls(sine, sized(8, 1, 9, 10)), with_mark),
    "dynamic for sizes": (lambda: Calls(sine, sized(2, 3, 4)), dynamic),
    "dynamic for whole numbers": (lambda: Calls(scaled, [(ONE, n) for n in (2, 3, 4)]), dynamic),
    "dynamic for other numbers": (lambda: Calls(scaled, [(ONE, n) for n in (2.5, 3.5)]), dynamic),
    "a number as a tensor": (
        lambda: Calls(scaled, [(ONE, n) for n in (2.5, 3.5)]),
        instead(
            "give by as a tensor: torch.tensor(by)", lambda: [(ONE, torch.tensor(by)) for by in (2.5, 3.5)]
        ),
    ),
    "a whole number of a module": (stepping, with_setting),
    "a whole number of an object": (
        lambda: Calls(at_scale, [(ONE, Scale(n)) for n in (2, 3, 4)]),
        dynamic,
    ),
    "contiguous": (
        lambda: Calls(sine, [(ONE,), (ONE.t(),)]),
        instead("x.contiguous() before the call", lambda: [(ONE,), (ONE.t().contiguous(),)]),
    ),
    "one dtype": (
        lambda: Calls(sine, [(ONE,), (ONE.double(),)]),
        instead("x.to(one dtype) before the call", lambda: [(ONE,), (ONE.double().to(torch.float32),)]),
    ),
    "one rank": (
        lambda: Calls(sine, [(ONE,), (ONE[0],)]),
        instead("unsqueeze it before", lambda: [(ONE,), (ONE.clone(),)]),
    ),
    "detached": (
        lambda: Calls(sine, [(ONE,), (torch.ones(3, 3, requires_grad=True),)]),
        instead(
            "detach x before the call", lambda: [(ONE,), (torch.ones(3, 3, requires_grad=True).detach(),)]
        ),
    ),
    "one length": (
        lambda: Calls(total, [(ONE, [ONE + 1]), (ONE, [ONE + 1, ONE + 2])]),
        instead("pad it to one length", lambda: [(ONE, [ONE + 1, ONE * 0]), (ONE, [ONE + 1, ONE + 2])]),
    ),
    "one object": (
        lambda: Calls(applied, [(ONE, lambda x: x.sin()), (ONE, lambda x: x.sin())]),
        instead("use the same object for f", lambda: [(ONE, sine), (ONE, sine)]),
    ),
}


@pytest.mark.parametrize("piece", RECOMPILES)
def test_fewer_compiles_are_left(piece):
    program, follow = RECOMPILES[piece]
    calls = program()
    before, text = recompiled(calls)
    after, _ = recompiled(follow(calls, text))
    assert after < before, text


# -- explain


def branches(x):
    if x.mean().item() > 10:
        return x.sin()
    return x.cos()


def chooses(x):
    return torch.where(x.mean() > 10, x.sin(), x.cos())


def computes(x):
    n = x.sum().item()
    return x * n


def selects(x):
    return x[x > 0] * 2


def prints(x):
    y = x.sin()
    print("at", "work")
    return y.cos()


def logs(x):
    y = x.sin()
    LOG.info("at work")
    return y.cos()


def breaks(x):
    y = x.sin()
    torch._dynamo.graph_break()
    return y.cos()


def warns(x):
    y = x.sin()
    warnings.warn("at work")  # noqa: B028
    return y.cos()


def paste_as_printed(text: str) -> None:
    """The lines after `paste`, which stand below each other up to what came of them."""
    (lines,) = re.findall(r"^   paste   (.*?)\n +\(not tried\)$", text, re.MULTILINE | re.DOTALL)
    exec("\n".join(line.strip() for line in lines.splitlines()), {"torch": torch})


def says(what: str) -> Callable[[str], None]:
    def check(text: str) -> None:
        assert what in text, text

    return check


BREAKS = {
    "a number is captured": (computes, paste_as_printed, computes),
    "a branch is chosen with where": (branches, says("choose with torch.where"), chooses),
    "a size that depends on values": (selects, paste_as_printed, selects),
    "print is put off": (prints, paste_as_printed, prints),
    "a logger is left out": (logs, paste_as_printed, logs),
    "a warning is put off": (warns, paste_as_printed, warns),
    "a break is taken away": (breaks, says("take the call of torch._dynamo.graph_break away"), sine),
}


@pytest.mark.parametrize("piece", BREAKS)
def test_no_break_is_left(piece):
    function, follow, then = BREAKS[piece]
    found = torchsleuth.explain(function)(torch.ones(3))
    assert found.graph_break_count == 1
    follow(str(found))
    assert torchsleuth.explain(then)(torch.ones(3)).graph_break_count == 0
