"""Recompilations of a run: per function every one, with all guards that said no, grouped by cause, each with its cure.

A call that no compiled version fits is refused by each version for its own reasons. The version that objects least is
the one that nearly fitted: its objections are the cause. What could be done is an idea for each cause; marks and
settings, which do not touch the program's text, can be tried in further runs, and help where fewer compiles are left.
`recompile_lines` shows all of it to a person, in a terminal and as `CompileProfiler.report()`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from torchsleuth.front.observe.breaks import Place, Tried, tried_lines
from torchsleuth.front.observe.events import Event, Facts, Shown, counted, of_events

_RESUMED = re.compile(r"torch_dynamo_resume_in_.*_at_(\d+)")


@dataclass(frozen=True)
class FailedGuard:
    """A guard that said no: `cause` is what it is about (shape, dtype, python number ...), `name` what it looked at."""

    cause: str
    name: str
    expected: str
    actual: str
    guard: str
    index: int | None = None

    @property
    def about(self) -> str:
        """The value, with its dimension.

        >>> FailedGuard("shape", "x", "2", "3", "", 0).about
        'dimension 0 of x'
        """
        name = self.name or self.cause
        return name if self.index is None else f"dimension {self.index} of {name}"


@dataclass(frozen=True)
class Refusal:
    """One compiled version of the function and why it was not used."""

    version: str
    guards: tuple[FailedGuard, ...]


@dataclass(frozen=True)
class Recompilation:
    """One compile of a function that had been compiled before; `after_line` where it is the rest behind a break.

    `refused` where a limit kept the call from being compiled: it ran without the compiler.
    """

    version: str
    seconds: float
    refusals: tuple[Refusal, ...]
    after_line: int | None = None
    refused: bool = False

    @property
    def causes(self) -> tuple[FailedGuard, ...]:
        """The objections of the version that nearly fitted."""
        return self.nearest.guards if self.nearest is not None else ()

    @property
    def nearest(self) -> Refusal | None:
        """The version with the fewest objections."""
        known = [refusal for refusal in self.refusals if refusal.guards]
        return min(known, key=lambda refusal: len(refusal.guards), default=None)


@dataclass(frozen=True)
class Cause:
    """What several recompilations of a function have in common: `values` are those that a guard met, in order."""

    cause: str
    about: str
    values: tuple[str, ...]
    times: int
    cure: Cure


@dataclass(frozen=True)
class FunctionRecompiles:
    """The recompilations of one function; `limit` is the setting that kept it from more, first at `at_limit`."""

    place: Place
    compiles: int
    seconds: float
    recompilations: tuple[Recompilation, ...]
    causes: tuple[Cause, ...]
    limit: str | None = None
    limit_value: int | None = None
    at_limit: Recompilation | None = None

    @property
    def function(self) -> str:
        return self.place.function


@dataclass(frozen=True, repr=False)
class Recompiles(Shown):
    """What a run shows about recompilations, the function that spent most on them first."""

    functions: tuple[FunctionRecompiles, ...]
    compiled_functions: int
    compiles: int
    tried: tuple[Tried, ...] = ()

    def __str__(self) -> str:
        return "\n".join(recompile_lines(self))

    @property
    def count(self) -> int:
        return sum(len(function.recompilations) for function in self.functions)

    @property
    def seconds(self) -> float:
        return sum(each.seconds for function in self.functions for each in function.recompilations)

    @property
    def limits(self) -> int:
        """How many functions reached a limit."""
        return sum(function.limit is not None for function in self.functions)

    @property
    def causes(self) -> tuple[str, ...]:
        """What the causes are about, each once: `("self.mode", "dimension 0 of x")`."""
        return tuple(dict.fromkeys(cause.about for each in self.functions for cause in each.causes))

    def to_json(self) -> dict[str, object]:
        return {
            "recompilations": self.count,
            "seconds": round(self.seconds, 6),
            "compiles": self.compiles,
            "compiled_functions": self.compiled_functions,
            "functions": [asdict(function) for function in self.functions],
            "tried": [each.to_json() for each in self.tried],
        }


@of_events
def recompiles_of(events: Sequence[Event]) -> Recompiles:
    """The recompilations in these events.

    >>> recompiles_of([]).count
    0
    """
    frames = {(e.pid, e.fields["frame"]): e.fields for e in events if e.kind == "frame"}
    limits = {(e.pid, e.fields["frame"]): e.fields for e in events if e.kind == "limit"}
    groups: dict[tuple[str, int, str], list[Event]] = defaultdict(list)
    for event in events:
        if event.kind == "recompile":
            groups[event.fields["file"], event.fields["line"], event.fields["function"]].append(event)
    found = [_function(key, group, frames, limits) for key, group in groups.items()]
    places = {(frame["file"], frame["line"], frame["function"]) for frame in frames.values()}
    return Recompiles(
        functions=tuple(sorted(found, key=lambda f: sum(r.seconds for r in f.recompilations), reverse=True)),
        compiled_functions=len(places),
        compiles=sum(frame["outcome"] == "compiled" for frame in frames.values()),
    )


def _function(
    key: tuple[str, int, str],
    group: Sequence[Event],
    frames: Mapping[tuple[int, int], Facts],
    limits: Mapping[tuple[int, int], Facts],
) -> FunctionRecompiles:
    file, line, name = key
    mine = [f for f in frames.values() if (f["file"], f["line"], f["function"]) == key]
    limit = next((limits[at] for e in group if (at := (e.pid, e.fields["frame"])) in limits), None)
    # An attempt that a limit ended, or that came to nothing, is no recompilation.
    known = [e for e in group if frames.get((e.pid, e.fields["frame"]), {}).get("outcome") == "compiled"]
    recompilations = tuple(_recompilation(e, frames.get((e.pid, e.fields["frame"]), {})) for e in known)
    at_limit = next(
        (_recompilation(e, {}, True) for e in group if (e.pid, e.fields["frame"]) in limits), None
    )
    met = recompilations if at_limit is None else (*recompilations, at_limit)
    arguments = tuple(group[0].fields["arguments"])
    return FunctionRecompiles(
        place=Place(file, line, name),
        compiles=sum(f["outcome"] == "compiled" for f in mine),
        seconds=sum(f["seconds"] for f in mine),
        recompilations=recompilations,
        causes=_causes(met, arguments),
        at_limit=at_limit,
        limit=limit["limit"] if limit else None,
        limit_value=limit["value"] if limit else None,
    )


def _recompilation(event: Event, frame: Facts, refused: bool = False) -> Recompilation:
    rest = _RESUMED.fullmatch(event.fields["code"])
    return Recompilation(
        version=event.fields["id"],
        seconds=frame.get("seconds", 0.0),
        refusals=tuple(
            Refusal(entry["compile_id"], tuple(_guard(failure) for failure in entry["failures"]))
            for entry in event.fields["refused"]
        ),
        after_line=int(rest[1]) if rest else None,
        refused=refused,
    )


def _guard(failure: Facts) -> FailedGuard:
    return FailedGuard(
        cause=_cause(failure),
        name=readable(failure["source"]),
        expected=readable(failure["expected"]),
        actual=failure["actual"],
        guard=failure["guard"],
        index=failure["index"],
    )


def _cause(failure: Facts) -> str:
    """What the guard is about, from how it looks at which value."""
    kind, source = str(failure["kind"]), str(failure["source"])
    if kind not in ("value", "type", "object identity", "length"):
        return kind
    if source.startswith("G["):
        return "global"
    if kind == "value":
        return "python number" if _is_number(failure["expected"]) else "python value"
    return kind


def readable(source: str) -> str:
    """A value as the program names it.

    >>> readable("L['self']._modules['lin']._parameters['weight']"), readable("G['SCALE']"), readable("len(L['xs'])")
    ('self.lin.weight', 'SCALE', 'len(xs)')
    """
    text = re.sub(r"\._(?:modules|parameters|buffers)\['(\w+)'\]", r".\1", source)
    text = re.sub(r"[LG]\['(\w+)'\]", r"\1", text)
    # What lay on Python's stack when a graph broke goes on under such a name.
    text = re.sub(r"\b___stack\d+\b", AT_A_BREAK, text)
    return text.removesuffix(".__code__")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _causes(recompilations: Sequence[Recompilation], arguments: Sequence[str]) -> tuple[Cause, ...]:
    groups: dict[tuple[str, str], list[FailedGuard]] = defaultdict(list)
    for each in recompilations:
        for guard in each.causes:
            groups[guard.cause, guard.about].append(guard)
    found = [
        Cause(
            cause=cause,
            about=about,
            values=values,
            times=len(guards),
            cure=cure_of(cause, guards[0].name, guards[0].index, values, arguments),
        )
        for (cause, about), guards in groups.items()
        for values in [tuple(dict.fromkeys([guards[0].expected, *(g.actual for g in guards)]))]
    ]
    return tuple(sorted(found, key=lambda each: each.times, reverse=True))


MOST_VALUES = 6
MOST_LISTED = 20
# Other versions that are named beside the one that nearly fitted; all of them are in recompiles.json.
MOST_OTHERS = 8


def recompile_lines(found: Recompiles, shorten: Callable[[str], str] = str) -> Iterator[str]:
    """The lines to show; `shorten` makes paths shorter."""
    if not found.functions:
        of = counted(found.compiled_functions, "function")
        yield f"no recompilations; {counted(found.compiles, 'compile')} of {of}"
        return
    reached = f"; {found.limits} reached a limit" if found.limits else ""
    yield (
        f"{counted(found.count, 'recompilation')} in {len(found.functions)} of "
        f"{found.compiled_functions} compiled functions, {found.seconds:.2f} s{reached}"
    )
    for number, function in enumerate(found.functions, 1):
        yield ""
        yield from _function_lines(number, function, shorten)
    yield from tried_lines(found.tried)


def _function_lines(
    number: int, function: FunctionRecompiles, shorten: Callable[[str], str]
) -> Iterator[str]:
    times = len(function.recompilations)
    seconds = sum(each.seconds for each in function.recompilations)
    yield (
        f"{number}. {function.function} ({shorten(function.place.file)}:{function.place.line}): compiled "
        f"{counted(function.compiles, 'time')}, {times} of them again, {seconds:.2f} s"
    )
    for cause in function.causes:
        values = " → ".join(cause.values[:MOST_VALUES]) + (" …" if len(cause.values) > MOST_VALUES else "")
        again = f"  ({cause.times} times)" if cause.times > 1 else ""
        about = "" if cause.about == cause.cause else f"{cause.about}: "
        yield f"   {cause.cause}: {about}{values}{again}"
        if cause.cure.how:
            yield f"      idea  {cause.cure.how}"
    for each in function.recompilations[:MOST_LISTED]:
        yield from _recompilation_lines(each)
    if times > MOST_LISTED:
        yield f"   … and {times - MOST_LISTED} more"
    if function.at_limit is not None:
        yield from _recompilation_lines(function.at_limit)
    if function.limit:
        yield (
            f"   limit: torch._dynamo.config.{function.limit} = {function.limit_value} reached; calls that fit no "
            "version now run without the compiler"
        )


def _recompilation_lines(each: Recompilation) -> Iterator[str]:
    where = f", the rest after line {each.after_line}" if each.after_line is not None else ""
    came = "not compiled" if each.refused else f"{each.seconds:.2f} s"
    nearest = each.nearest
    yield f"   {each.version}{where}: {came}: {objections(nearest) if nearest else 'no guard known'}"
    for other in [refusal for refusal in each.refusals if refusal is not nearest and refusal.guards][
        :MOST_OTHERS
    ]:
        yield f"      nor {other.version}: {objections(other)}"


def objections(refusal: Refusal) -> str:
    """Why a version was not used: `"dimension 0 of x is 3, not 2"`."""
    return "; ".join(dict.fromkeys(f"{g.about} is {g.actual}, not {g.expected}" for g in refusal.guards))


AT_A_BREAK = "a value from before the graph break"


@dataclass(frozen=True)
class Cure:
    """`how` in words, an idea; `trial` names what further runs can put in place, if anything.

    A trial is `mark:ARGUMENT:DIMENSION`, `dynamic`, or `set:NAME=VALUE` of torch._dynamo.config.
    """

    how: str
    trial: str | None = None


def cure_of(
    cause: str, name: str, index: int | None, values: Sequence[str], arguments: Sequence[str]
) -> Cure:
    """What could be done about one cause; `values` are those that a guard met, `arguments` those of the function.

    >>> cure_of("shape", "x", 0, ["2", "3"], ["x"]).how
    'torch._dynamo.mark_dynamic(x, 0) before the call, or torch.compile(..., dynamic=True)'
    >>> cure_of("module attribute", "self.mode", None, ["'train'", "'eval'"], ["self"]).trial is None
    True
    """
    if AT_A_BREAK in name:
        return Cure("remove the graph break in that line: see torchsleuth explain")
    if cause == "shape":
        return _shape(name, index, values, arguments)
    whole = all(value.lstrip("-").isdecimal() for value in values)
    number = all(_is_number(value) for value in values)
    if cause == "python number":
        tensor = f"pass {name} as a tensor: torch.tensor({name})"
        given = [tensor] if name in arguments else []
        return Cure(", or ".join(["torch.compile(..., dynamic=True)", *given]), "dynamic")
    if cause == "module attribute":
        setting = "allow_unspec_int_on_nn_module"
        if whole:
            return Cure(f"torch._dynamo.config.{setting} = True", f"set:{setting}=True")
        if number:
            return Cure(f"where {name} is only computed with: make it a buffer, and change that in place")
        return Cure(_EACH_VALUE.format(name=name))
    if cause == "condition":
        return Cure(
            f"each outcome of {name} gets its own version: decide it outside the compiled function, or select "
            "with torch.where"
        )
    plain = name.removeprefix("len(").removesuffix(")") if cause == "length" else name
    return Cure(_OTHERS.get(cause, "").format(name=plain or "it"))


def _shape(name: str, index: int | None, values: Sequence[str], arguments: Sequence[str]) -> Cure:
    if len([value for value in values if value not in ("0", "1")]) < 2:
        return Cure(
            f"torch compiles sizes 0 and 1 separately: leave such a {name} out, or pad it to 2 and cut the result"
        )
    if index is not None and name in arguments:
        # A size of 0 or 1 cannot be promised to be dynamic: torch would refuse the call.
        mark = "maybe_mark_dynamic" if {"0", "1"} & {*values} else "mark_dynamic"
        how = f"torch._dynamo.{mark}({name}, {index}) before the call, or torch.compile(..., dynamic=True)"
        return Cure(how, f"mark:{name}:{index}")
    return Cure(f"torch.compile(..., dynamic=True), or pad {name} to a few sizes", "dynamic")


_EACH_VALUE = "each value of {name} gets its own version: keep the number of values small"
_OTHERS = {
    "shape bound": "the code was compiled for a range of sizes because it asks for the size of {name}: pad {name} to a "
    "few sizes (bucketing), or take the question out of the compiled function",
    "rank": "give {name} the same number of dimensions in every call: unsqueeze it before",
    "stride": "{name}.contiguous() before the call",
    "dtype": "{name}.to(one dtype) before the call",
    "device": "move {name} to one device before the call",
    "requires_grad": "detach {name} before the call, or let it require gradients in every call",
    "tensor class": "pass {name} as the same class of tensor in every call",
    "grad mode": "call it always inside torch.no_grad() or always outside; each of the two needs one version",
    "autocast": "call it always inside the same torch.autocast or always outside",
    "default dtype": "set the default dtype once, before the first call",
    "num threads": "call torch.set_num_threads once, before the first call",
    "python value": _EACH_VALUE,
    "global": "pass {name} to the function as an argument, and a changing number as a tensor",
    "object identity": "use the same object for {name} in every call: do not create functions or objects anew",
    "type": "give {name} the same type in every call",
    "length": "each length of {name} gets its own version: pad it to one length, or stack it into one tensor",
    "dict keys": "give the dictionary the same keys in every call",
    "aliasing": "give different tensors, or clone one of them",
    "backend": "create the backend once and use the same object for every torch.compile",
    "dynamic mark": "mark the tensor in every call, or in none",
    "freed object": "keep {name} alive as long as the compiled function",
}
