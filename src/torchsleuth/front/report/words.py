"""A case in plain words: the same sentences for terminal, page and issue text. No markup, nothing escaped yet."""

from __future__ import annotations

import re
from collections.abc import Sequence

from torchsleuth.core.cases.model import Case, Triage, Workaround

KINDS = {
    "compile_error": "the compiler stopped with an error",
    "runtime_error": "the compiled code raised an error",
    "accuracy": "the compiled code computes wrong numbers",
    "crash": "the process died",
    "hang": "it does not come to an end",
    "capture_error": "the call could not be captured",
}
PHASES = {"capture": "capturing a graph", "compile": "compiling", "run": "running a compiled graph"}
COMPONENTS = {
    "dynamo": "Dynamo, which captures graphs from Python",
    "aot_autograd": "AOTAutograd, which makes gradients and takes writes out of graphs",
    "decompositions": "the decompositions, which write operators in terms of simpler ones",
    "inductor": "Inductor, which generates the code",
    "backend": "the backend",
    "program": "the program itself: it fails without the compiler, too",
}
_MOST_LOOKED_AT, _MOST_SAID = 100_000, 300
_SIGNS = {
    "add": "+",
    "iadd": "+=",
    "sub": "-",
    "isub": "-=",
    "mul": "*",
    "imul": "*=",
    "truediv": "/",
    "div": "/",
    "floordiv": "//",
    "mod": "%",
    "remainder": "%",
    "matmul": "@",
    "mm": "@",
    "bmm": "@",
    "pow": "**",
    "neg": "-",
    "getitem": "[",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "eq": "==",
    "ne": "!=",
}


def is_the_programs(case: Case) -> bool:
    """Whether the failure is the program's own: there is nothing to file with PyTorch."""
    return case.triage is not None and case.triage.component == "program"


def what_happened(case: Case, error: str = "") -> str:
    """One line: `"the process died: SIGSEGV while running a compiled graph"`; `error` is the text of the traceback."""
    rank = f" on rank {case.rank}" if case.rank is not None else ""
    what = _wrong_number(case) or said(case, error)
    happened = "the program fails" if is_the_programs(case) else KINDS.get(case.kind, case.kind)
    return f"{happened}{rank}: {what}"


def whose_bug(case: Case) -> str:
    """Who is at fault: `"Inductor, which generates the code: codegen, at aten.erf.default"`."""
    triage = case.triage
    if triage is None:
        return "not looked into"
    if triage.component is None:
        return f"not known: {one_line(triage.error)}" if triage.error else "not known"
    text = COMPONENTS.get(triage.component, triage.component)
    if triage.component == "program":
        return text
    part = f": {triage.part}" if triage.part and triage.part != triage.component else ""
    ops = min((triage.ops, case.minified.ops if case.minified else ()), key=lambda found: len(found) or 99)
    at = f"{',' if part else ':'} at {some(ops, 3)}" if ops else ""
    return text + part + at


def how_sure(case: Case) -> str:
    """How often the script failed the same way, and what of it was not tried."""
    if case.no_repro is not None:
        return f"there is no script: {one_line(case.no_repro)}"
    verified = case.verified
    if verified is None:
        return "the script was not tried yet"
    if not verified.times or (verified.error and not verified.reproduced):
        return f"the script could not be tried: {one_line(verified.error or 'no run came to an end')}"
    yes = "verified" if verified.reproduced else "not verified"
    text = f"{yes}: failed the same way in {verified.reproduced} of {verified.times} fresh processes"
    if verified.eager_passes is not None:
        text += "; passes without the compiler" if verified.eager_passes else "; fails without it, too"
    return text


def nothing_tried(triage: Triage) -> str:
    """Why no experiment asked who is at fault: `"Nothing: the error itself says where it comes from."`."""
    if triage.error:
        return f"Nothing: {one_line(triage.error)}"
    return "Nothing: the error itself says where it comes from." if triage.component else "Nothing was tried."


def about_workaround(found: Workaround) -> str:
    """What it is, how it was tried, and what it costs: `"setting x; the whole program passes with it"`."""
    tried = "your whole program passes with it" if found.program else "the whole graph passes with it"
    text = f"{found.name}; {tried}"
    if found.disables:
        text += f"; switches off {one_line(found.disables)}"
    if found.cost is not None:
        text += f"; {found.cost:.2f} x the time of a run"
    return text


def no_workaround(case: Case) -> str:
    """Why there is no workaround to show."""
    if case.triage is not None and case.triage.component == "program":
        return "none looked for, as the compiler is not at fault"
    if case.workarounds is None:
        return "none tried"
    return f"none: {len(case.workarounds)} tried, none makes it pass"


def made_small(case: Case) -> str:
    """`"1 call left of 62, 17 trials, 13 s"`, or why not."""
    small = case.minified
    if small is None:
        return "not made smaller"
    if small.calls is not None:
        left = f"{small.calls} {'call' if small.calls == 1 else 'calls'} left"
        left += f" of {case.graph.calls}" if case.graph is not None else ""
    elif small.program_lines is not None:
        left = f"{small.program_lines} lines of program left"
    else:
        return f"not made smaller: {one_line(small.error)}" if small.error else "not made smaller"
    trials = f", {small.queries} trials" if small.queries is not None else ""
    seconds = f", {small.seconds:.0f} s" if small.seconds is not None else ""
    return left + trials + seconds + (f"; stopped: {one_line(small.error)}" if small.error else "")


def underlined(code: str, triage: Triage) -> tuple[int, int]:
    """From where to where in a line of the program the operator at fault stands; the whole line where it is not seen.

    >>> underlined("y = F.interpolate(y, 2)", Triage(ops=("torch.nn.functional.interpolate",)))
    (4, 17)
    >>> underlined("return a @ b + c", Triage(ops=("operator.matmul",)))
    (9, 10)
    """
    code = code[:1000]  # a stranger's line may be endless
    last = len(code.rstrip())
    # The line is that of the last call at fault, if they are on several.
    for op in [*reversed(triage.ops), triage.forward_op or "", triage.module or ""]:
        found = _named(code, op)
        if found is not None:
            return found
    start = len(code) - len(code.lstrip())
    return (min(start, last), last)


def _named(code: str, op: str) -> tuple[int, int] | None:
    parts = [part for part in op.split(".") if part not in ("default", "Tensor", "Scalar")]
    for name in reversed(parts[1:] or parts):
        bare = name.strip("_")
        match = re.search(rf"(?:\b\w+\.)*\b_?{re.escape(bare)}_?(?=\()", code) if bare else None
        if match is None and bare.isidentifier() and len(bare) > 1 and bare not in _SIGNS:
            match = re.search(rf"(?:\b\w+\.)*\b{re.escape(bare)}\b", code)
        if match is not None:
            return match.span()
        sign = _SIGNS.get(bare)
        if sign is not None:
            match = re.search(rf"(?<![-+*/@%<>=!]){re.escape(sign)}(?![-+*/@%<>=!])", code)
            if match is not None:
                return match.span()
    return None


def one_line(text: str) -> str:
    """Without line ends: `one_line("a\\n  b") == "a b"`."""
    return " ".join(text.split())


def some(names: Sequence[str], at_most: int) -> str:
    """The first of many: `some(["a", "b", "c"], 2) == "a, b and 1 more"`."""
    rest = len(names) - at_most
    return ", ".join(names[:at_most]) + (f" and {rest} more" if rest > 0 else "")


def one_of(lines: Sequence[str], at_most: int) -> str:
    """`one_of(["m.py:3", "m.py:4"], 6) == "one of m.py:3, m.py:4"`; the line itself where there is just one."""
    if not lines:
        return "not known"
    return lines[0] if len(lines) == 1 else f"one of {some(lines, at_most)}"


def said(case: Case, error: str) -> str:
    """The message of the error with the names and numbers that it had in `error`, of which a signature knows nothing.

    `said(case, traceback) == "IndexError: index 7 is out of bounds"`.
    """
    signature = case.signature
    if not signature.message or not signature.exceptions:
        return one_line(signature.summary)
    known = "".join(f"{re.escape(part)}.*?" for part in signature.message.split("#")).removesuffix(".*?")
    name = signature.exceptions[-1].rpartition(".")[2]
    found = re.findall(
        rf"^(?:[\w.]*\.)?{re.escape(name)}: ({known}.*)$", error[-_MOST_LOOKED_AT:], re.MULTILINE
    )
    return f"{name}: {one_line(found[-1])}"[:_MOST_SAID] if found else one_line(signature.summary)


def _wrong_number(case: Case) -> str | None:
    """Of a wrong result, its most telling element; None where no numbers are kept."""
    accuracy = case.extra.get("accuracy")
    verdict = accuracy.get("verdict") if isinstance(accuracy, dict) else None
    leaves = verdict.get("leaves") if isinstance(verdict, dict) else None
    for leaf in leaves if isinstance(leaves, list) else ():
        if not isinstance(leaf, dict) or leaf.get("kind") != "DIVERGED":
            continue
        got, wanted = leaf.get("compiled"), leaf.get("truth")
        if all(isinstance(value, (int, float)) for value in (got, wanted)):
            where = f"element {leaf['index']} of " if isinstance(leaf.get("index"), list) else ""
            return f"{where}{one_line(str(leaf.get('path')))} is {got:.6g} and should be {wanted:.6g}"
    return None
