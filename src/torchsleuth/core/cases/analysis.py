"""analysis.json as values: how far each value of a compiled run is off, which kernel begins it, and that in words.

`analyze` writes it piece by piece, from the parts that a trial sends. Reading checks every type, because a case may
come from a stranger.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from torchsleuth.core.cases.errors import DamagedCase, SleuthError
from torchsleuth.core.cases.model import Analyzed, Case
from torchsleuth.core.protocol import codec
from torchsleuth.core.protocol.codec import Document
from torchsleuth.torch_core.graphs.source_line import SourceLine


class NotNumerical(SleuthError):
    """A failure without numbers to compare; says what to do instead."""

    exit_status = 1


FILE = "analysis.json"
PICTURE = "analysis.svg"
SCHEMA = 2


@dataclass(frozen=True)
class ValueAnalysis:
    """One value of the compiled run, in the order of execution.

    `off` and `noise` are of the run as it was: how far the value is from float64, and how far rounding may move it;
    `times` is their ratio. The same with `local_` is of its kernel alone, given eager's values. `made` counts elements
    that only the compiled run makes infinite or NaN, `lost` those that are not the infinity or NaN of eager's and
    float64's; `differs` is how far two compiled runs are apart, by the largest element.
    """

    node: str
    op: str = ""
    kernel: str = ""
    line: str | None = None
    module: str | None = None
    off: float | None = None
    noise: float | None = None
    times: float | None = None
    local_off: float | None = None
    local_noise: float | None = None
    local_times: float | None = None
    made: int = 0
    lost: int = 0
    differs: float | None = None


@dataclass(frozen=True)
class RunDifference:
    """A value that two compiled runs make differently: in which buffer, and in which `field`.

    That is "dtype", "shape" or "strides"; or "elements": in how many, and the largest difference of finite ones.
    """

    node: str
    buffer: str = ""
    kernel: str = ""
    field: str = ""
    elements: int = 0
    off: float = 0.0


@dataclass(frozen=True)
class Culprit:
    """Where the error begins: the first kernel that is off by itself, and the node in it.

    `seen_at` is the value at which it was seen; `calls` are those that the kernel makes it of. `confirmed` where these
    calls, compiled by themselves, are wrong as well; `how` tells how the node among them was found (a key of GRADIENTS
    where only the node's gradient is wrong). `recovers` where everything is right with eager's values in the place of
    this kernel's and of `also`: other values that are off, too.
    """

    node: str
    op: str = ""
    seen_at: str = ""
    kernel: str = ""
    calls: tuple[str, ...] = ()
    off: float = 0.0
    noise: float = 0.0
    times: float = 0.0
    made: int = 0
    lost: int = 0
    confirmed: bool = False
    how: str = ""
    verdict: str = ""
    recovers: bool | None = None
    also: tuple[str, ...] = ()
    user_line: str | None = None
    code: str | None = None
    function: str | None = None
    module: str | None = None
    forward_op: str | None = None


@dataclass(frozen=True)
class Analysis:
    """What is known of where a compiled graph leaves eager's way."""

    case: str
    values: tuple[ValueAnalysis, ...] = ()
    culprit: Culprit | None = None
    outputs: Document = field(default_factory=dict)
    calls: int = 0
    seen: int = 0
    why_not: str | None = None  # why the code itself shows nothing
    nondeterministic: tuple[RunDifference, ...] = ()
    fallbacks: Document = field(default_factory=dict)
    skipped: Document = field(default_factory=dict)
    seconds: Document = field(default_factory=dict)
    complete: bool = False
    error: str | None = None
    schema: int = SCHEMA

    @property
    def clean(self) -> bool:
        """Whether all was looked at, nothing is off, and two runs do not differ.

        >>> Analysis("3f9a0000", complete=True).clean
        True
        """
        return self.within_rounding and not self.nondeterministic

    @property
    def within_rounding(self) -> bool:
        """Whether all of one run was looked at, and nothing is off.

        >>> Analysis("3f9a0000", outputs={"outputs[0]": {"times": 900.0}}, complete=True).within_rounding
        False
        """
        far = any(
            value.get("times", 0.0) > 16 or value.get("made") or value.get("lost")
            for value in self.outputs.values()
        )
        return self.complete and self.culprit is None and not far and self.error is None

    @property
    def words(self) -> str:
        """The answer in a sentence or two.

        >>> Analysis("3f9a0000", nondeterministic=(RunDifference("add", field="shape"),), complete=True).words[:65]
        'two runs of the compiled code on the same inputs differ: add, in '
        """
        if not self.nondeterministic:
            return self._words
        differ = (
            f"two runs of the compiled code on the same inputs differ: {differences(self.nondeterministic)}"
        )
        # What is known to be wrong comes first; that nothing else is, is said of one run only.
        return f"{self._words}; {differ}" if self.culprit is not None else f"{differ}; {self._words}"

    @property
    def _words(self) -> str:
        if self.culprit is not None:
            return _blame(self.culprit)
        if self.error is not None:
            return self.error
        if not self.complete:
            return "the time was up before the kernel at which it begins was found (--budget)"
        if self.within_rounding and self.nondeterministic:
            return f"the {self.seen} values that were seen of the first are off by no more than rounding explains"
        if self.within_rounding:
            return f"nothing diverges: {self.seen} values of the compiled run are off by no more than rounding explains"
        return (
            "the results are wrong, but no kernel is wrong by itself, given eager's values: "
            "look at what the compiler's passes made of the graph (torchsleuth triage)"
        )

    def to_json(self) -> dict[str, object]:
        """The document: `json.dumps(analysis.to_json())`."""
        doc = codec.plain(self)
        return {"schema": doc.pop("schema"), "words": self.words, **doc}

    def summary(self) -> Analyzed:
        """What case.json says of it."""
        same = ("node", "op", "kernel", "user_line", "off", "noise", "confirmed", "recovers")
        found = {} if self.culprit is None else {name: getattr(self.culprit, name) for name in same}
        return Analyzed(
            self.words,
            **found,
            clean=self.clean,
            seconds=round(sum(v for v in self.seconds.values() if isinstance(v, (int, float))), 2),
            error=self.error,
        )


def differences(found: Sequence[RunDifference], most: int = 4) -> str:
    """Which values two compiled runs make differently, and how: the first few, and how many more there are.

    >>> differences([RunDifference("sum_1", "buf3", "cpp_fused_sum_0", "elements", 4, 0.5)])
    'sum_1 (buf3 of cpp_fused_sum_0), in 4 elements, by up to 5.0e-01'
    """
    more = f"; and {len(found) - most} more" if len(found) > most else ""
    return "; ".join(map(_difference, found[:most])) + more


def _difference(each: RunDifference) -> str:
    what = f"{each.node} ({each.buffer} of {each.kernel})" if each.buffer else each.node
    if each.field != "elements":
        return f"{what}, in its {each.field}"
    if each.elements == 0:
        return f"{what}, in its bits"
    count = "1 element" if each.elements == 1 else f"{each.elements} elements"
    far = f"by up to {each.off:.1e}" if each.off else "by an infinity or NaN"
    return f"{what}, in {count}, {far}"


def require_numbers(case: Case) -> None:
    """Raises `NotNumerical` where a case is no wrong result: `require_numbers(folder.case)`."""
    if case.kind != "accuracy":
        raise NotNumerical(
            f"case {case.id} is not a wrong result ({case.kind}: {case.signature.summary}), so there are no numbers to "
            f"compare; who is at fault: torchsleuth triage {case.id}"
        )


def analysis_from_json(doc: object, where: str = FILE) -> Analysis:
    """The analysis of a parsed document, every type checked: `analysis_from_json(json.loads(text)).words`."""
    if not isinstance(doc, dict) or doc.get("schema") != SCHEMA:
        raise DamagedCase(where, f"it is not an analysis of schema {SCHEMA}")
    try:
        return codec.from_json(Analysis, doc)
    except codec.WrongShape as failure:
        raise DamagedCase(where, str(failure)) from None


def worst(analysis: Analysis, most: int = 10) -> list[ValueAnalysis]:
    """The values that are furthest off by their kernel's own doing, the furthest first.

    >>> worst(Analysis("3f9a0000", (ValueAnalysis("a", local_times=2.0), ValueAnalysis("b", local_times=9.0))))[0].node
    'b'
    """
    known = [value for value in analysis.values if value.local_times is not None or value.times is not None]
    own = sorted(known, key=lambda value: (-value.made, -(value.local_times or 0.0), -(value.times or 0.0)))
    return own[:most]


# How a wrong gradient was found -> what that means.
GRADIENTS = {
    "gradients": "AOTAutograd wrote or parted its backward wrongly: with eager's kernels it is wrong as well",
    "compiled gradients": "only the compiled backward is wrong",
}


def _blame(culprit: Culprit) -> str:
    place = f" in `{culprit.module}`" if culprit.module else ""
    line = f" ({culprit.user_line})" if culprit.user_line else ""
    kernel = f", kernel `{culprit.kernel}`" if culprit.kernel else ""
    gradient = f", of the gradient of {culprit.forward_op}" if culprit.forward_op else ""
    if culprit.how in GRADIENTS:
        many = f", together with {len(culprit.calls) - 1} calls before it" if len(culprit.calls) > 1 else ""
        return (
            f"the gradient of `{_short(culprit.op)}`{place}{line}{many}: {culprit.verdict}; all values of the forward "
            f"are right; {GRADIENTS[culprit.how]}"
        )
    if culprit.made:
        off = f"makes {culprit.made} elements infinite or NaN where eager and float64 are finite"
    elif culprit.lost:
        off = f"in {culprit.lost} elements not the infinity or NaN on which eager and float64 agree"
    else:
        off = f"{culprit.off:.1e} off where rounding explains {culprit.noise:.0e}"
    return f"`{_short(culprit.op)}`{place}{line}{gradient}{kernel}: {off}; {_rest(culprit)}"


def _rest(culprit: Culprit) -> str:
    if culprit.also:
        count = len(culprit.also)
        others = f"{count} other {'value is' if count == 1 else 'values are'} off, too, given eager's values"
        return f"{others} ({', '.join(culprit.also[:3])}{', …' if count > 3 else ''})" + (
            "; with eager's values in all these places the results are right" if culprit.recovers else ""
        )
    if culprit.recovers:
        return "everything after it inherits the error: with eager's value in its place the results are right"
    if culprit.recovers is None:
        return "everything after it may inherit the error"
    return "with eager's value in its place the results are still wrong: it is not alone"


def _short(op: str) -> str:
    parts = op.split(".")
    return parts[1] if len(parts) == 3 and parts[0] in ("aten", "prims") else op


def merged_values(
    accumulated: Sequence[Document],
    local: Sequence[Document],
    differing: Sequence[RunDifference],
    lines: Mapping[str, tuple[str | None, str | None]],
) -> tuple[ValueAnalysis, ...]:
    """The rows of both runs as one row for each value; `lines` has the user's line and module of a node."""
    own = {row["node"]: row for row in local}
    rows = {row["node"]: row for row in [*local, *accumulated]}
    order = [row["node"] for row in accumulated] or list(own)
    apart = {each.node: each.off for each in differing}
    found = []
    for name in order:
        row, by_itself = rows[name], own.get(name, {})
        line, module = lines.get(name, (None, None))
        free = row if accumulated else {}
        found.append(
            ValueAnalysis(
                name,
                row["op"],
                row["kernel"],
                line,
                module,
                off=free.get("off"),
                noise=free.get("noise"),
                times=free.get("times"),
                local_off=by_itself.get("off"),
                local_noise=by_itself.get("noise"),
                local_times=by_itself.get("times"),
                made=max(row.get("made", 0), by_itself.get("made", 0)),
                lost=max(row.get("lost", 0), by_itself.get("lost", 0)),
                differs=apart.get(name),
            )
        )
    return tuple(found)


def analysis_of(
    parts: Document,
    lines: Mapping[str, SourceLine],
    *,
    case: str = "",
    called_from: SourceLine | None = None,
) -> Analysis:
    """The analysis so far; `lines` has the user's line of each node, `called_from` the one to name where there is none.

    >>> analysis_of({"seen": {"calls": 3, "seen": 1}}, {}).calls
    3
    """
    seen = parts.get("seen") or {}
    differing = tuple(RunDifference(**each) for each in parts.get("nondeterministic") or [])
    places = {name: (line.place, line.module or None) for name, line in lines.items()}
    values = merged_values(parts.get("accumulated") or [], parts.get("local") or [], differing, places)
    return Analysis(
        case,
        values,
        _culprit(parts.get("culprit"), lines, called_from),
        outputs=parts.get("outputs") or {},
        calls=seen.get("calls", 0),
        seen=seen.get("seen", 0),
        why_not=seen.get("why_not"),
        nondeterministic=differing,
        fallbacks=parts.get("fallbacks") or {},
        skipped=parts.get("skipped") or {},
        seconds=parts.get("seconds") or {},
    )


def _culprit(
    found: Document | None, lines: Mapping[str, SourceLine], called_from: SourceLine | None
) -> Culprit | None:
    if found is None:
        return None
    line = lines.get(found["node"]) or lines.get(found["seen_at"]) or called_from
    culprit = codec.from_json(Culprit, found)
    if line is None:
        return culprit
    return replace(
        culprit,
        user_line=line.place,
        code=line.code or None,
        function=line.function or None,
        module=line.module or None,
        forward_op=(line.call or None) if line.gradient else None,
    )
