"""One call of a compiled function as a plain script: the user's functions and classes, the values, the call.

Made in the user's process from live objects, while the call is under way. Of the values that hold their own name at the
top of a file the statement that made them is taken, or, in a second form, all are rebuilt from what they are now.

Some failures come only after others: a limit of recompilations is reached, or a guard is missing that would have told
two calls apart. So the calls that made Dynamo compile something are kept, lightly: tensors by their form, with their
numbers where those are few, objects as long as others do.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import CodeType
from typing import Any

import torch

from torchsleuth.core.cases.record import WRONG, AmbientState
from torchsleuth.core.protocol.failures import CallForm
from torchsleuth.torch_internals.compiled_calls import CallUnderWay, mode_of
from torchsleuth.torch_internals.configuration import changed_settings
from torchsleuth.watched.call_state import (
    CALL,
    CLOSURE,
    DEFAULT,
    GLOBAL,
    GRADIENT,
    MOST_ITEMS,
    PRINTED,
    RANDOM_NUMBERS,
    is_below,
    iterator_of,
    roots_of,
    user_function,
)
from torchsleuth.watched.embed_paste import Paste
from torchsleuth.watched.embed_slice import CannotEmbed
from torchsleuth.watched.value_source import ValueSource, kept

# ---- earlier calls


# Of one function, and functions in all.
MOST_CALLS, MOST_FUNCTIONS = 12, 256
_ATOMS = (bool, int, float, complex, str, type(None))


@dataclass(frozen=True)
class EarlierCall:
    """A call that compiled something, its arguments kept, and the plain values that it could read besides them."""

    call: CallUnderWay
    form: str
    read: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class EarlierCalls:
    """What is known of the calls of this process: `calls.note(call)`, later `calls.before(call)`."""

    calls: dict[CodeType, list[EarlierCall]] = field(default_factory=dict)

    def note(self, call: CallUnderWay) -> None:
        """Keeps a call that compiled something, unless one like it came right before."""
        function = user_function(call.function)
        if function is None or (function.__code__ not in self.calls and len(self.calls) >= MOST_FUNCTIONS):
            return
        known = self.calls.setdefault(function.__code__, [])
        read = values_read(call)
        form = repr((id(call.function), *map(_form, (call.args, call.kwargs)), read))
        if not known or known[-1].form != form:
            args, kwargs = tuple(map(kept, call.args)), {name: kept(v) for name, v in call.kwargs.items()}
            known.append(EarlierCall(replace(call, args=args, kwargs=kwargs, options={}), form, read))
            del known[:-MOST_CALLS]

    def before(self, call: CallUnderWay) -> list[EarlierCall]:
        """The calls of the same function, the earliest first."""
        function = user_function(call.function)
        known = [] if function is None else self.calls.get(function.__code__, [])
        return list(known)


def values_read(call: CallUnderWay) -> dict[str, Any]:
    """Numbers, texts and flags that a call reads by name, globals and attributes: `{"scale (global)": 2.0}`."""
    function = call.function
    owner = function if isinstance(function, torch.nn.Module) else getattr(function, "__self__", None)
    attributes = {f"self.{name}": value for name, value in getattr(owner, "__dict__", {}).items()}
    found = {**attributes, **dict(roots_of(function, (), {}))}
    return {
        path: value
        for path, value in found.items()
        if type(value) in _ATOMS and (path.startswith("self.") or path.endswith(GLOBAL))
    }


def _form(value: Any) -> str:
    """Equal for values that Dynamo would most likely not tell apart."""
    if isinstance(value, torch.Tensor):
        return f"{value.dtype}{tuple(value.shape)}{value.requires_grad}"
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__}{[_form(item) for item in value]}"
    if isinstance(value, dict):
        return str({str(key): _form(item) for key, item in value.items()})
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    return str(id(value))


# ---- the call as a script


_PRINTS = ("import contextlib", "import io")
_PRINTED_TEXT = "printed.getvalue()"
_CELLS = "inspect.getclosurevars"
# In a script: the items of an iterator, then what it returns; in the line that is not made smaller.
_DRAW = "(lambda steps: (yield (yield from steps)))("
_KEYWORD = re.compile(r"\w+=(?!=)")
# What dynamic= of torch.compile sets while the function runs.
_SET_BY_DYNAMIC = {"assume_static_by_default", "automatic_dynamic_shapes"}


@dataclass(frozen=True)
class Around:
    """What belongs to a call beside itself: the modes it is made in, and the calls before it.

    `wrong` are the paths at which it differs from eager (`watched/whole_calls.py`); `at_limit` where it is one
    recompilation too many.
    """

    state: AmbientState
    earlier: Sequence[EarlierCall] = ()
    wrong: Sequence[str] = ()
    at_limit: bool = False


def call_sources(call: CallUnderWay, around: Around) -> tuple[list[CallForm], str | None]:
    """The forms in which a call can be written, the nearest to the user's text first; or why there is none.

    Used as `forms, why_none = call_sources(call_under_way(), Around(state_now()))`.
    """
    forms: list[CallForm] = []
    reason = None
    alone = replace(around, earlier=())
    several = [] if not around.earlier else [around]
    for beside in several if around.at_limit else [alone, *several]:
        for rebuilt, by_text in ((False, False), (True, False), (True, True)):
            try:
                form = _call_source(call, beside, rebuilt, by_text)
            except CannotEmbed as why:
                reason = str(why)
            except Exception as why:  # a user's object may raise anything where it is looked at
                reason = f"{type(why).__name__}: {why}"
            else:
                forms += [form] if form not in forms else []
    return forms, None if forms else reason


def _call_source(call: CallUnderWay, around: Around, rebuilt: bool, by_text: bool) -> CallForm:
    paste = Paste(by_value=(torch.Tensor, torch.nn.Module) if rebuilt else (torch.Tensor,), by_text=by_text)
    values = ValueSource(paste)
    function = paste.expression(call.function, _name_of(call.function))
    how = list(_compile_arguments(call, paste))
    switches = around.state.lines(device=True)
    made: list[str] = []
    lines: list[str] = []

    def arguments_of(call: CallUnderWay) -> list[str]:
        # Switches hold for what is made inside the call, and the script's own tensors are no part of that.
        return _bound(_given(call, values), made) if switches else _given(call, values)

    now = values_read(call) if around.earlier else {}
    for past in around.earlier:
        before, other_function = "compiled", past.call.function
        if other_function is not call.function:  # the same code, with another closure
            text = paste.expression(other_function, _name_of(other_function))
            before = f"torch.compile({', '.join([text, *how])})"
        other = {path: value for path, value in past.read.items() if path in now and now[path] != value}
        lines += _set(other, function)
        lines.append(f"{before}({', '.join(arguments_of(past.call))})")
        lines += _set({path: now[path] for path in other}, function)
    given = arguments_of(call)
    code = getattr(call.function, "__code__", None)
    shown = _shown(around.wrong, function, given, getattr(code, "co_freevars", ()))
    lines += _call_lines(f"compiled({', '.join(given)})", around.wrong, shown)
    holds = [f"{WRONG} = [{', '.join(shown)}]"] if around.wrong else []
    if any(
        _DRAW in each for each in shown
    ):  # what comes out of an iterator is computed there, in the modes of the call
        lines, holds = lines + holds, []
    embedded = paste.finish()
    contexts = list(_contexts(around.state))
    if contexts:
        lines = [f"with {', '.join(contexts)}:", *(f"    {line}" for line in lines)]
    settings = list(_settings(call, around.at_limit))
    # The one module of settings that neither `import torch` nor the first use of Dynamo's brings along.
    late = ["import torch.fx.experimental._config"] * any(".fx.experimental." in line for line in settings)
    return CallForm(
        imports=tuple(dict.fromkeys(("import torch", *late, *embedded.imports, *_imports_of(shown)))),
        source=embedded.source,
        setup=(*settings, f"compiled = torch.compile({', '.join([function, *how])})"),
        call=(*made, *switches, *lines, *holds),
        notes=embedded.notes,
        replaced=tuple(values.replaced),
    )


def _set(values: Mapping[str, Any], function: str) -> list[str]:
    """The lines that give plain values to what a call reads."""
    return [f"{_shown([path], function, [])[0]} = {value!r}" for path, value in values.items()]


def _given(call: CallUnderWay, values: ValueSource) -> list[str]:
    """The arguments of a call as they are written."""
    named = zip(_parameter_names(call), call.args)
    return [values.inside(value, name) for name, value in named] + [
        f"{key}={values.inside(value, key)}" for key, value in call.kwargs.items()
    ]


def _bound(given: Sequence[str], made: list[str]) -> list[str]:
    """The same arguments by names, whose lines are added to `made`.

    >>> lines = []
    >>> _bound(["torch.ones(2)", "n=3", "x"], lines), lines
    (['given_0', 'n=3', 'x'], ['given_0 = torch.ones(2)'])
    """
    found = []
    for text in given:
        key, _, value = text.partition("=") if _KEYWORD.match(text) else ("", "", text)
        if "(" in value:
            made.append(f"given_{len(made)} = {value}")
            value = made[-1].partition(" ")[0]
        found.append(f"{key}={value}" if key else value)
    return found


def _call_lines(call: str, wrong: Sequence[str], shown: Sequence[str]) -> list[str]:
    """The statements of the call; where one of the two raises and the other does not, that is its result."""
    if CALL in wrong:
        return ["try:", f"    result = {call}", "except Exception as error:", "    result = type(error)"]
    if _PRINTED_TEXT in shown:
        return ["printed = io.StringIO()", "with contextlib.redirect_stdout(printed):", f"    {call}"]
    return [f"result = {call}" if wrong else call]


def _shown(
    wrong: Sequence[str], function: str, given: Sequence[str], closed_over: Sequence[str] = ()
) -> list[str]:
    """Expressions for what differs, by the paths under which `watched/call_state.py` knows it."""
    names = {f"kwargs[{text.partition('=')[0]!r}]": text.partition("=")[2] for text in given if "=" in text}
    names |= {f"args[{place}]": text for place, text in enumerate(given)}
    names |= {CALL: "result", RANDOM_NUMBERS: "torch.rand(1)"}
    names |= {"self": function.rpartition(".")[0] or function}
    found = []
    for path in wrong:
        if DEFAULT in path:
            continue
        if CLOSURE in path:
            name, _, below = path.partition(CLOSURE)
            if name in closed_over:  # of other functions than the compiled one, a script has no name
                found.append(f"{_CELLS}({function}).nonlocals[{name!r}]{below}")
            continue
        if (steps := iterator_of(path)) is not None:
            found.append(f"[repr(step) for _, step in zip(range({MOST_ITEMS}), {_DRAW}{steps}))]")
            continue
        root = next((name for name in names if is_below(path, name)), None)
        text = path.replace(GLOBAL, "", 1) if root is None else names[root] + path[len(root) :]
        found += [text] if _is_expression(text) else []
    if not found:  # these take lines of their own, and a result of one tensor
        of = [path.removeprefix(GRADIENT) for path in wrong if path.startswith(GRADIENT)]
        inputs = [text for path in of for text in _shown([path], function, given)]
        found = [f"torch.autograd.grad(result.sum(), {text}, allow_unused=True)[0]" for text in inputs]
    if not found and PRINTED in wrong:
        found = [_PRINTED_TEXT]
    if wrong and not found:
        raise CannotEmbed(f"what differs ({', '.join(wrong[:3])}) has no name in a script.")
    return list(dict.fromkeys(found))


def _imports_of(shown: Sequence[str]) -> tuple[str, ...]:
    if any(text.startswith(_CELLS) for text in shown):
        return ("import inspect",)
    return _PRINTS if _PRINTED_TEXT in shown else ()


def _is_expression(text: str) -> bool:
    try:
        ast.parse(text, mode="eval")
    except SyntaxError:
        return False
    return True


def _name_of(function: Any) -> str:
    if isinstance(function, torch.nn.Module):
        return "model"
    return str(getattr(function, "__name__", "function"))


def _parameter_names(call: CallUnderWay) -> list[str]:
    function = call.function.forward if isinstance(call.function, torch.nn.Module) else call.function
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    plain = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return (plain + [f"x{i}" for i in range(len(call.args))])[: len(call.args)]


def _compile_arguments(call: CallUnderWay, paste: Paste) -> Iterator[str]:
    if call.backend != "inductor":
        yield f"backend={paste.expression(call.backend, 'backend')}"
    if call.fullgraph:
        yield "fullgraph=True"
    if call.dynamic is not None:
        yield f"dynamic={call.dynamic}"
    options = dict(call.options)
    if call.backend != "inductor":  # it is called with what torch.compile was given, each by its name
        given = {key: options.pop(key) for key in ("mode", "name", "options") if key in options}
        options |= given.pop("options", {})
        yield from (f"{key}={value!r}" for key, value in given.items())
    elif options and (mode := mode_of(options, call.dynamic)) is not None:
        options = {}
        yield f"mode={mode!r}"
    if options:
        yield f"options={paste.expression(options, 'options')}"
    for key, value in call.shapes.items():
        yield f"{key}={paste.expression(value, key)}"


def _settings(call: CallUnderWay, at_limit: bool) -> Iterator[str]:
    """The lines that set what is not at its default, where a line can."""
    if at_limit:  # a lower limit is reached sooner, in the same way
        yield "torch._dynamo.config.recompile_limit = 1"
    for module, values in changed_settings().items():
        if call.backend != "inductor" and module.startswith("torch._inductor"):
            continue
        for key, value in values.items():
            by_dynamic = call.dynamic is not None and key in _SET_BY_DYNAMIC
            if key == "recompile_limit" and at_limit:
                continue
            if not by_dynamic and isinstance(value, (bool, int, float, str)):
                yield f"{module}.{key} = {value!r}"


def _contexts(state: AmbientState) -> Iterator[str]:
    if state.inference_mode:
        yield "torch.inference_mode()"
    elif not state.grad:
        yield "torch.no_grad()"
    for device, dtype in state.autocast.items():
        yield f"torch.autocast({device!r}, dtype={dtype})"
