"""A case in plain words: the same sentences for terminal, page and issue text. No markup, nothing escaped yet."""

from __future__ import annotations

import re
from collections.abc import Sequence

from torchsleuth.core.cases.model import Case, Triage, Workaround
from torchsleuth.core.protocol.failures import KEPT_RESULT

KINDS = {
    "compile_error": "the compiler stopped with an error",
    "runtime_error": "the compiled code raised an error",
    "accuracy": "the compiled code computes wrong numbers",
    "crash": "the process died",
    "hang": "it never finishes",
    "capture_error": "the call could not be captured",
}
PHASES = {"capture": "capturing a graph", "compile": "compiling", "run": "running a compiled graph"}
COMPONENTS = {
    "dynamo": "Dynamo, which captures graphs from Python",
    "aot_autograd": "AOTAutograd, which derives gradients and removes in-place writes",
    "decompositions": "the decompositions, which rewrite operators as simpler ones",
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
    what = _wrong_number(case) or said(case, error)
    happened = "the program fails" if is_the_programs(case) else KINDS.get(case.kind, case.kind)
    kernel = case.extra.get("kernel")
    return f"{happened}{case.on_ranks}: {what}{f' ({kernel})' if kernel else ''}"


def whose_bug(case: Case) -> str:
    """Who is at fault: `"Inductor, which generates the code: codegen, at aten.erf.default"`."""
    triage = case.triage
    if triage is None:
        return "not looked into"
    if triage.component is None:
        return f"not known: {one_line(triage.error)}" if triage.error else "not known"
    text = COMPONENTS.get(triage.component, triage.component)
    if triage.component == "program":
        return f"the program itself: {KEPT_RESULT}" if triage.part == KEPT_RESULT else text
    part = f": {triage.part}" if triage.part and triage.part != triage.component else ""
    ops = min((triage.ops, case.minified.ops if case.minified else ()), key=lambda found: len(found) or 99)
    at = f"{',' if part else ':'} at {some(ops, 3)}" if ops else ""
    return text + part + at


# Of the compiler's innermost frames, the first that lies in one of these; what all parts share says nothing.
_FRAMES = (
    ("torch/_inductor/fx_passes/", "inductor", "graph patterns"),
    ("torch/_inductor/pattern_matcher", "inductor", "graph patterns"),
    ("torch/_inductor/decomposition", "decompositions", ""),
    ("torch/_inductor/lowering", "inductor", "lowering"),
    ("torch/_inductor/graph", "inductor", "lowering"),
    ("torch/_inductor/kernel/", "inductor", "lowering"),
    ("torch/_inductor/scheduler", "inductor", "scheduling"),
    ("torch/_inductor/codegen/", "inductor", "code generation"),
    ("torch/_inductor/cpp_builder", "inductor", "code generation"),
    ("torch/_inductor/codecache", "inductor", "code generation"),
    ("torch/_inductor/", "inductor", ""),
    ("torch/_decomp/", "decompositions", ""),
    ("torch/_refs/", "decompositions", ""),
    ("torch/_functorch/", "aot_autograd", ""),
    ("torch/_dynamo/", "dynamo", ""),
)
# Torch raises these for what the program itself does, compiled or not.
_MAYBE_THE_PROGRAMS = ("TorchRuntimeError", "ObservedException", "ObservedUserStopIteration")


def likely_part(case: Case) -> str:
    """Where the failure came up, before anything was tried: a first guess, and said to be one.

    `"Inductor, which generates the code: lowering (where it surfaced; nothing was tried yet)"`.
    """
    signature = case.signature
    if any(name.rpartition(".")[2] in _MAYBE_THE_PROGRAMS for name in signature.exceptions):
        return "your program itself, or Dynamo: whether it fails without the compiler, too, is tried next"
    if case.kind in ("crash", "hang") and not signature.frames:
        doing = "the compiler" if case.phase == "compile" else "the compiled code"
        return f"{doing}; which part of it is being found out"
    if case.kind == "accuracy":
        return COMPONENTS["dynamo"] if case.graph is None else "not known yet: parts are left out one by one"
    if case.kind == "runtime_error":
        return "it was raised in compiled code; which part of the compiler caused it is being found out"
    for frame in signature.frames:
        for start, component, part in _FRAMES:
            if frame.startswith(start):
                where = COMPONENTS[component] + (f": {part}" if part else "")
                return f"{where} (where it surfaced; nothing was tried yet)"
    return COMPONENTS["dynamo"] if case.kind == "capture_error" else "not known yet"


_FRAME_OF_TRACEBACK = re.compile(r'File "([^"\n]{1,400})", line (\d{1,7})[^\n]*(?:\n\s*([^\n]{1,400}))?')
_LIBRARIES = re.compile(r"/(?:site|dist)-packages/|/lib/python3|<")


def likely_line(case: Case, error: str) -> tuple[str, str] | None:
    """The user's line that an error names, with its code, before anything was tried.

    >>> from types import SimpleNamespace
    >>> error = 'from user code:\\n  File "/home/me/model.py", line 7, in forward\\n    return self.b(h)\\n'
    >>> likely_line(SimpleNamespace(graph=None), error)
    ('model.py:7', 'return self.b(h)')
    """
    _, mark, after = error[-_MOST_LOOKED_AT:].rpartition("from user code:")
    named = _FRAME_OF_TRACEBACK.findall(after if mark else error[-_MOST_LOOKED_AT:])
    places = [
        (f"{path.replace(chr(92), '/').rpartition('/')[2]}:{line}", code.strip())
        for path, line, code in named
        if not _LIBRARIES.search(path)
    ]
    if case.graph is not None:
        places = [each for each in places if each[0] in case.graph.source_lines]
    elif not mark:
        return None
    return places[-1] if places else None


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
    number = case.extra.get("wrong_from_call")
    return f"{text}; wrong from call {number} on" if isinstance(number, int) and number > 1 else text


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
    if is_the_programs(case) and not case.workarounds:
        return "none is needed: the compiler is not at fault"
    if not case.workarounds:
        return "none was tried"
    return f"none: {len(case.workarounds)} tried, none makes it pass"


def made_small(case: Case) -> str:
    """`"reduced from 62 calls to 1, 17 trials, 13 s"`, or why not."""
    small = case.minified
    if small is None:
        return "not made smaller"
    if small.calls is not None:
        calls = "call" if small.calls == 1 else "calls"
        left = f"reduced to {small.calls} {calls}"
        left = f"reduced from {case.graph.calls} calls to {small.calls}" if case.graph is not None else left
    elif small.program_lines is not None:
        left = f"reduced to {small.program_lines} lines of program"
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
    name = re.escape(signature.exceptions[-1].rpartition(".")[2])
    text = error[-_MOST_LOOKED_AT:]
    # As the error it was, as one that another carried, or quoted in the message of another.
    for pattern in (
        rf"^(?:[\w.]*\.)?{name}: ({known}.*)$",
        rf"\b{name}: ({known}.*)$",
        rf"({known}[^'\"\n]*)",
    ):
        if found := re.findall(pattern, text, re.MULTILINE):
            return f"{signature.exceptions[-1].rpartition('.')[2]}: {one_line(found[-1])}"[:_MOST_SAID]
    return one_line(signature.summary)


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
