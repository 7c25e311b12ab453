"""What a graph break means and what to write instead, in plain words, by the name that torch's registry gives it.

Reasons without words of ours get torch's: its explanation, and its hints as the fix.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

# Of torch's hints, those that tell a person nothing to do.
_IDLE_HINTS = (
    "report an issue",
    "fundamental",
    "difficult to debug",
    "likely to be a dynamo bug",
    "may be possible to write dynamo tracing rules",
    "caused by an earlier graph break",
)
# What torch writes between a break and another that it ran into while it handled the first.
ANOTHER = "*** While handling this graph break, another graph break occurred: ***"


@dataclass(frozen=True)
class BreakReason:
    """Why, and what to do; `says` and `hints` are torch's own words, `because` why the function could not go on.

    `paste` are lines for the top of the program, below `import torch`, after which it may not break here any more.
    """

    why: str
    fix: str
    says: str
    hints: tuple[str, ...]
    because: str = ""
    paste: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.why


def reason_of(kind: str, text: str, registry_hints: Sequence[str] = (), code: str = "") -> BreakReason:
    """The reason in plain words, from what torch calls it and what it says; `code` is the line that breaks.

    >>> reason_of("graph break in loop", "graph break in loop\\n  Explanation: x").why
    'Dynamo cannot resume after a graph break inside a loop'
    """
    if kind in _NUMBER_TAKEN and _decides(code):
        kind = _BRANCH  # with the number in the graph the same line breaks again, at the branch
    first, _, second = text.partition(ANOTHER)
    says, hints = _explanation(first), _hints(first) or tuple(registry_hints)
    useful = [hint for hint in hints if not any(idle in hint.lower() for idle in _IDLE_HINTS)]
    names = {
        "call": _find(r"builtin operator `([^`]+)`", first) or _find(r"method `([^`]+)`", first),
        "name": _find(r"qualname: ([\w.<>]+)", first) or _find(r"function `([^`]+)`", first) or "it",
        "module": _find(r"module: ([\w.]+)", first) or "",
    }
    for pattern, why, fix in _WORDS:
        if re.search(pattern, f"{kind}\n{first}"):
            filled = {key: value or "this" for key, value in names.items()}
            pasted = _paste(kind, first, code)
            why, fix = why.format(**filled), fix.format(**filled)
            return BreakReason(why, fix, says, hints, _consequence(second), pasted)
    why = says or kind
    return BreakReason(why, " ".join(useful[:2]), says, hints, _consequence(second))


_BRANCH = "Data-dependent branching"
_NUMBER_TAKEN = (
    "Unsupported Tensor.item() call with capture_scalar_outputs=False",
    "Data dependent operator",
)


_DYNAMO = "torch._dynamo.config"


def _paste(kind: str, text: str, code: str) -> tuple[str, ...]:
    """The settings that Dynamo has for such a break.

    >>> _paste("logging.Logger method not supported", "  method: <Logger me (INFO)>.warning, args: ...", "")
    ('import logging', 'torch._dynamo.config.ignore_logging_functions.add(logging.Logger.warning)')
    """
    if "`print`" in text:
        return (f"{_DYNAMO}.reorderable_logging_functions.add(print)",)
    if re.search(r"_?warnings\.warn\b", text):
        return "import warnings", f"{_DYNAMO}.reorderable_logging_functions.add(warnings.warn)"
    if kind.startswith(("Logger", "logging.Logger")):
        method = _find(r"method: .*?>\.(\w+), args", text) or _find(r"\.(\w+)\(", code)
        found = f"{_DYNAMO}.ignore_logging_functions.add(logging.Logger.{method})"
        return ("import logging", found) if method else ()
    if kind in _NUMBER_TAKEN:
        return (f"{_DYNAMO}.capture_scalar_outputs = True",)
    if kind.startswith("Dynamic shape operator"):
        return (f"{_DYNAMO}.capture_dynamic_output_shape_ops = True",)
    return ()


def _decides(code: str) -> bool:
    """Whether a line of Python chooses a way by what it computes: `if x.item() > 1:`, `a if x.item() else b`."""
    text = code.strip().removeprefix("el")
    for whole in (text, f"{text} pass"):
        try:
            tree = ast.parse(whole)
        except (SyntaxError, ValueError):
            continue
        return any(
            isinstance(n, (ast.If, ast.While, ast.IfExp, ast.Assert, ast.BoolOp)) for n in ast.walk(tree)
        )
    return False


def _consequence(second: str) -> str:
    """Why Dynamo could not go on after the break, where it says so."""
    if "graph break in loop" in second:
        return "it is inside a loop, which cannot be resumed in the middle"
    if "GenericContextWrappingVariable" in second or "context manager" in second:
        return "it is inside a context manager that cannot be left and entered again"
    return _explanation(second)


def _explanation(text: str) -> str:
    found = re.search(r"\n  Explanation: (.*?)(?=\n  Hint: |\n\n  Developer debug context|\Z)", text, re.S)
    return " ".join(textwrap.dedent(found[1]).split()) if found else ""


def _hints(text: str) -> tuple[str, ...]:
    found = re.findall(r"\n  Hint: (.*?)(?=\n  Hint: |\n\n  Developer debug context|\Z)", text, re.S)
    return tuple(" ".join(hint.split()) for hint in found)


def _find(pattern: str, text: str) -> str | None:
    found = re.search(pattern, text)
    return found[1] if found else None


# What torch calls the reason (and says about it), why, and what to write instead. The first that fits counts.
_WORDS: tuple[tuple[str, str, str], ...] = (
    (
        r"\A(?:Failed to trace builtin operator|Unsupported function call|.*)\n[\s\S]*`print`",
        "`print` has to run in Python, right here",
        "print after the compiled function, or let Dynamo postpone it until then",
    ),
    (
        r"\ALogger|\Alogging\.Logger",
        "a logger call has to run in Python, right here",
        "log outside the compiled function, or let Dynamo skip the call",
    ),
    (
        r"\AUnsupported Tensor\.item\(\)",
        "`.item()` takes a number out of a tensor, and Python has to wait for it",
        "keep the number as a 0-d tensor, or capture it if no branch depends on it",
    ),
    (
        r"\AData-dependent branching",
        "which branch is taken depends on the values of a tensor",
        "select with torch.where, or write both branches as functions for torch.cond",
    ),
    (
        r"\AData-dependent assertion",
        "the assertion depends on the values of a tensor",
        "use torch._check instead, or assert outside the compiled function",
    ),
    (
        r"\ADynamic shape operator",
        "the size of the result depends on the values of a tensor",
        "use a form with a fixed size (torch.where(c, x, 0) for x[c]), or capture it with a symbolic size",
    ),
    (
        r"\AData dependent operator",
        "the operator's result is a Python number taken from a tensor",
        "keep it as a tensor, or capture it if no branch depends on it",
    ),
    (
        r"\ADynamic slicing with Tensor",
        "a slice has a bound that is a tensor",
        "slice with Python numbers, or use torch.index_select or a mask",
    ),
    (
        r"\ATensor\.tolist\(\)",
        "`.tolist()` turns a tensor into Python numbers",
        "keep the values in the tensor",
    ),
    (
        r"compiler\.disable\(\)`d function",
        "the function called here is marked with torch.compiler.disable",
        "remove the decorator, or call the function before or after the compiled part",
    ),
    (
        r"\ACall to `torch\._dynamo\.graph_break",
        "the program asks for a graph break here",
        "remove the call of torch._dynamo.graph_break",
    ),
    (
        r"\AAttempt to trace generator",
        "the compiled function is a generator, and Python has to leave it at each `yield`",
        "compile a function that calls the generator, or return a list",
    ),
    (
        r"_?warnings\.warn\b",
        "`warnings.warn` has to run in Python, right here",
        "warn outside the compiled function, or let Dynamo postpone it until then",
    ),
    (
        r"\A(?:Attempted to (?:call|inline) function marked as skipped|can't handle functions not implemented)",
        "`{module}.{name}` is not Python code that can be traced, or is in a module that Dynamo skips",
        "call it outside the compiled function, or register it with torch.library.custom_op so that it becomes one "
        "operator of the graph",
    ),
    (
        r"\A(?:Dynamo cannot determine the hash|Untraceable C tp_hash|User-defined object with overridden __hash__)",
        "an object whose hash is only known at run time is used as a key (a tensor, or a class with its own __hash__)",
        "use a plain key: a string, a number, a position",
    ),
    (
        r"\AGraph break under GenericContext",
        "a graph break inside a context manager that cannot be left and entered again",
        "move the context manager, or the line that breaks, out of the compiled function",
    ),
    (
        r"\A(?:Unsupported context manager|attempted to trace contextlib|unsupported contextlib)",
        "Dynamo cannot trace this context manager",
        "enter it outside the compiled function",
    ),
    (
        r"\Agraph break in loop",
        "Dynamo cannot resume after a graph break inside a loop",
        "move the body of the loop into a separate function",
    ),
    (
        r"\AObserved exception",
        "an exception is raised here and not caught inside the compiled function",
        "raise it outside the compiled function, or check beforehand",
    ),
    (
        r"\AFailed to trace builtin operator|\AUnsupported function call",
        "Dynamo cannot trace `{call}` with these arguments",
        "call it outside the compiled function, or use tensor operations instead",
    ),
    (
        r"\AUnsupported Tensor\.backward\(\)|autograd\.grad",
        "a backward pass runs inside the compiled function",
        "compile the forward pass and call backward outside of it",
    ),
    (
        r"\A(?:copy\.deepcopy|Attempted to copy\.deepcopy)",
        "an object is copied with deepcopy, which Python has to do",
        "copy it outside the compiled function, or use clone() for tensors",
    ),
    (
        r"\A(?:attempted to trace numpy|Unsupported ndarray)",
        "this function of numpy has no counterpart in torch",
        "use the torch function that does the same",
    ),
    (
        r"\ABackend compiler exception",
        "the backend could not compile the graph up to here, so it was cut",
        "see what failed with: torchsleuth run",
    ),
    (
        r"\A(?:Attempted to wrap RNN|Attempted to use `torch\.nn\.Parameter)",
        "{name} is created or used in a way that has to stay in Python",
        "create it before the compiled function",
    ),
)
