"""Workarounds that only the whole program can try: a line written another way, a function that stays eager.

They are for failures of capture and of tracing, where no graph can be run with something changed, and for a graph that
nothing smaller than another backend makes pass. Each is put into the program from outside and counts only if the
program then ends as a healthy run would.
"""

from __future__ import annotations

import ast
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

from torchsleuth.core.cases.folder import CaseFolder, update_case
from torchsleuth.core.cases.model import Workaround
from torchsleuth.core.cases.record import read_record
from torchsleuth.core.changes import DYNAMO, Change, Place
from torchsleuth.core.criteria import why_not_cured
from torchsleuth.front.program.attempt import Attempt
from torchsleuth.front.program.python_twins import python_twin
from torchsleuth.front.program.rewrites import Rewrite, rewrites_of
from torchsleuth.front.program.runs import CannotRunProgram, program_of, watch_program
from torchsleuth.front.program.workarounds import watch_options

# Runs of the whole program, each with one workaround.
MOST_RUNS = 6
# A run is not begun with less than this left.
LEAST_SECONDS = 15.0
# For a program whose functions are compiled too often.
MORE_COMPILES = 64
# Of the functions around a fault, how many are tried as one step of the graph; rewrites that are tried.
MOST_TRACED = 2
MOST_REWRITTEN = 2
CHECKED = "--check-accuracy"
TRACEBACK = "traceback.txt"
_LIMIT = "LimitHit"
# "Set `torch._dynamo.config.capture_scalar_outputs = True`"; a value that is only told of is the present one.
_HINT = re.compile(
    r"(?i:set|try|enabl\w+|use|using)\b[^.\n]{0,40}?(torch\._\w+\.config)\.(\w+) ?= ?(True|False|\d+)\b"
)
_PRINTS = re.compile(
    r"logging function \(e\.g\. `([\w.]+)`\), you can try adding it to `torch\._dynamo\.config\.reorderable"
)
# "module: scaling, qualname: twice, skip reason: ... (likely a C extension or builtin)"
_IN_C = re.compile(r"module: ([A-Za-z_][\w.]*), qualname: (\w+), skip reason: .*C extension")
_AND_BREAKS = "  # and no fullgraph=True"


def gives_up(found: Sequence[Workaround]) -> bool:
    """Whether nothing that works is smaller than another backend.

    >>> gives_up([Workaround("backend eager", "torch.compile(model, backend='eager')", True)])
    True
    """
    return not any(each.verified and not each.name.startswith("backend ") for each in found)


def try_on_program(folder: CaseFolder, deadline: float, say: Callable[[str], None]) -> CaseFolder:
    """The case with the first workaround that makes its program pass put before the others, and those that did not."""
    try:
        program = program_of(folder)
    except CannotRunProgram as error:
        say(f"case {folder.case.id}: {error}")
        return folder
    tried: list[Workaround] = []
    for attempt in list(program_attempts(folder))[:MOST_RUNS]:
        left = deadline - time.monotonic()
        if left < LEAST_SECONDS or attempt.change is None:
            break
        say(f"case {folder.case.id}: running the program with: {attempt.workaround.name}")
        # What is not looked into may become a constant, what is rewritten another thing: a comparison shows that.
        compared = attempt.change.traced or attempt.change.rewritten or attempt.change.snippet
        options = [CHECKED] if compared else watch_options(folder.case)
        run = watch_program(program, attempt.change, options=options, timeout=left)
        why = why_not_cured(folder.case.signature, run)
        passed = why is None
        tried.append(
            replace(attempt.workaround, verified=passed, program=passed, error=why, seconds=run.seconds)
        )
        if passed:
            break
    good = [each for each in tried if each.verified]
    bad = [each for each in tried if not each.verified]
    return update_case(folder, workarounds=(*good, *(folder.case.workarounds or ()), *bad))


def program_attempts(folder: CaseFolder) -> Iterator[Attempt]:
    """What is worth a run of the program, the least harmful first: `next(program_attempts(folder)).workaround.how`."""
    case = folder.case
    whole = bool(case.extra.get("fullgraph"))
    if any(_LIMIT in name for name in case.signature.exceptions):
        yield from _fewer_compiles()
    told = folder.text(TRACEBACK) if folder.has(TRACEBACK) else ""
    yield from _hinted_settings(told)
    yield from _hinted_calls(told)
    places = places_at_fault(folder)
    own = [place for place in places if not _is_installed(place[0])] or places
    if case.phase == "capture" and case.kind == "capture_error":
        yield from _rewritten(own)
    if whole:  # what is compiled itself cannot be a step of its own graph
        for place in own[:-1][:MOST_TRACED]:
            yield _traced_whole(*place)
    if whole:  # nothing can stay eager in the midst of a graph that must not break
        yield _attempt(
            "fullgraph=False",
            "torch.compile(model)  # without fullgraph=True",
            "one graph for the whole function: it breaks at the line that cannot be captured",
            Change(graph_breaks=True),
        )
    for file, function, line in own:
        yield _left_eager(file, function, line, whole)
    if case.kind in ("capture_error", "compile_error"):
        flag = f"{DYNAMO}.suppress_errors"
        yield _attempt(
            "setting suppress_errors",
            f"{flag} = True" + (_AND_BREAKS if whole else ""),
            "compilation of every function that fails, with a warning each; not with fullgraph=True",
            Change(config={DYNAMO: {"suppress_errors": "True"}}, graph_breaks=whole),
        )


def _fewer_compiles() -> Iterator[Attempt]:
    """For a function that is compiled too often: for all sizes at once, or more often still."""
    yield _attempt(
        "dynamic=True",
        "torch.compile(model, dynamic=True)",
        "code that is made for one size: a little slower, compiled once for all",
        Change(dynamic=True),
    )
    flag = f"{DYNAMO}.recompile_limit"
    yield _attempt(
        "setting recompile_limit",
        f"{flag} = {MORE_COMPILES}",
        "nothing, but each compile takes its time",
        Change(config={DYNAMO: {"recompile_limit": str(MORE_COMPILES)}}),
    )


def _hinted_settings(text: str) -> Iterator[Attempt]:
    """The settings that torch's own message advises."""
    for module, name, value in dict.fromkeys(_HINT.findall(text)):
        yield _attempt(
            f"setting {name}",
            f"{module}.{name} = {value}",
            "nothing else: torch's message names this setting",
            Change(config={module: {name: value}}),
        )


def _hinted_calls(text: str) -> Iterator[Attempt]:
    """What torch's own message advises for a function that Dynamo cannot look into."""
    for name in dict.fromkeys(_PRINTS.findall(text)):
        shown = name.lstrip("_")
        how = f"torch._dynamo.config.reorderable_logging_functions.add({shown})"
        module = shown.rpartition(".")[0]
        yield _attempt(
            "setting reorderable_logging_functions",
            f"import {module}\n{how}" if module else how,
            f"the order: what {shown} shows comes once the graph around it has run",
            Change(snippet=f"import {module}\n{how}" if module else how),
        )
    for module, function in dict.fromkeys(_IN_C.findall(text)):
        if twin := python_twin(module, function):
            yield _attempt(
                f"function {module.removeprefix('_')}.{function} captured from its Python text",
                twin,
                f"nothing: the standard library has {function} in C and in Python, and Dynamo looks into the second",
                Change(snippet=twin),
            )
            continue
        if module.startswith("_"):  # not a name that a program would write
            continue
        how = f"import {module}\ntorch.compiler.allow_in_graph({module}.{function})"
        yield _attempt(
            f"function {module}.{function} in the graph",
            how,
            f"Dynamo's checks of {function}: it becomes one step of the graph, run with tensors without numbers first",
            Change(snippet=how),
        )


def _rewritten(places: Sequence[Place]) -> Iterator[Attempt]:
    """The line at fault written another way, in the innermost function for which there is one."""
    for file, function, line in places[:MOST_REWRITTEN]:
        try:
            found = rewrites_of(Path(file).read_text(encoding="utf-8"), function, line)
        except (OSError, ValueError):
            continue
        for each in found[:MOST_REWRITTEN]:
            yield _attempt(
                each.name,
                _instead_of(Path(file).name, each),
                each.gives_up,
                Change(rewritten=((file, each.first, each.last, each.after),)),
            )
        if found:
            return


def _instead_of(file: str, rewrite: Rewrite) -> str:
    """The lines to paste, below those they take the place of."""
    lines = f"{rewrite.first}" + (f"-{rewrite.last}" if rewrite.last > rewrite.first else "")
    before, after = (dedent(text).splitlines() for text in (rewrite.before, rewrite.after))
    return "\n".join([f"# {file}:{lines}, in place of", *(f"#     {line}" for line in before), *after])


def _traced_whole(file: str, function: str, line: int) -> Attempt:
    owner, define = _around(file, function, line)
    return _attempt(
        f"function {owner + '.' if owner else ''}{function} traced as a whole",
        f"@torch._dynamo.nonstrict_trace  # above `def {function}` in {Path(file).name}:{define or line}",
        f"Dynamo's checks inside of {function}: what it reads besides its arguments is taken as it was the first time",
        Change(traced=((file, function, line),)),
    )


def _is_installed(file: str) -> bool:
    parts = Path(file).parts
    return bool({"site-packages", "dist-packages"} & {*parts}) or f"python{sys.version_info[0]}." in file


def places_at_fault(folder: CaseFolder) -> list[Place]:
    """The functions around the fault, the innermost first: those Dynamo was in, or those of the nodes at fault."""
    frames = folder.case.extra.get("frames")
    if frames:
        return list(dict.fromkeys((str(file), str(name), int(line)) for file, line, name in reversed(frames)))
    try:
        known = read_record(folder.file("record.json")).lines
    except (OSError, ValueError):
        return []
    nodes = folder.case.triage.nodes if folder.case.triage else ()
    lines = [known[name] for name in reversed(nodes) if name in known]
    by_function = {
        (line.file, line.function): (line.file, line.function, line.line) for line in reversed(lines)
    }
    wanted = dict.fromkeys((line.file, line.function) for line in lines)
    return [by_function[key] for key in wanted if key[1].isidentifier()]


def _left_eager(file: str, function: str, line: int, whole: bool = False) -> Attempt:
    owner, define = _around(file, function, line)
    if _is_installed(file) and "-packages" in file:
        module = ".".join(Path(file).with_suffix("").parts).rpartition("-packages.")[2]
        target = ".".join(filter(None, [module, owner, function]))
        how = f"{target} = torch.compiler.disable({target})"
    else:
        how = f"@torch.compiler.disable  # above `def {function}` in {Path(file).name}:{define or line}"
    how += _AND_BREAKS if whole else ""
    return _attempt(
        f"function {owner + '.' if owner else ''}{function} eager",
        how,
        f"compilation of {function} and all it calls, with a graph break at each call; a function that has to be "
        "captured as a whole (a loop, torch.func) stays eager with it",
        Change(functions=((file, function, line),), graph_breaks=whole),
    )


def _around(file: str, function: str, line: int) -> tuple[str, int | None]:
    """The class that holds a function, and the line of its `def`, where the file can be read."""
    try:
        tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return "", None
    scopes = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    named = [node for node in ast.walk(tree) if isinstance(node, scopes)]
    holds = [node for node in named if node.lineno <= line <= (node.end_lineno or 0)]
    classes = [node.name for node in holds if isinstance(node, ast.ClassDef)]
    defines = [node.lineno for node in holds if not isinstance(node, ast.ClassDef) and node.name == function]
    return (classes[-1] if classes else ""), max(defines, default=None)


def _attempt(name: str, how: str, disables: str, change: Change) -> Attempt:
    return Attempt(Workaround(name, how, False, disables=disables), change)
