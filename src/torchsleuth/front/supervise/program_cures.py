"""Workarounds that the whole program tries: a line written another way, a function that stays eager, what a graph took.

The first are for failures of capture and of tracing, where no graph can be run with something changed, and for a graph
that nothing smaller than another backend makes pass. Each is put into the program from outside and counts only if the
program then ends as a healthy run would: status 0, and under watch no failure at all; where the failure was wrong
numbers, or something could become wrong, every graph is compared with eager while the program runs.
"""

from __future__ import annotations

import ast
import dataclasses
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

from torchsleuth.core.cases.folder import CaseFolder, update_case
from torchsleuth.core.cases.model import Triage, Workaround, best_workaround
from torchsleuth.core.cases.record import record_at
from torchsleuth.core.change_table import (
    BREAKS_ALLOWED,
    DYNAMIC,
    ERRORS_SUPPRESSED,
    MORE_COMPILES,
    NO_CUDAGRAPHS,
    setting,
)
from torchsleuth.core.changes import Change, Place, with_lines
from torchsleuth.core.criteria import Answer, answer_of_watched_run, why_not_cured
from torchsleuth.core.protocol.codec import from_json
from torchsleuth.core.protocol.failures import CallPlace, Overwritten
from torchsleuth.front.supervise.case_at_work import CaseAtWork
from torchsleuth.front.supervise.program_runs import (
    CannotRunProgram,
    Watch,
    run_program,
    watch_for,
)
from torchsleuth.front.supervise.rewrites import Rewrite, rewrites_of

# Runs of the whole program, each with one workaround.
MOST_RUNS = 6
# A run is not begun with less than this left.
LEAST_SECONDS = 15.0
# Of the functions around a fault, how many are tried as one step of the graph; rewrites that are tried.
MOST_TRACED = 2
MOST_REWRITTEN = 2
# Of a library's functions around a fault, the innermost that are tried eager before those of the program.
MOST_IN_LIBRARIES = 2
TRACEBACK = "traceback.txt"
_LIMIT = "LimitHit"
# "Set `torch._dynamo.config.capture_scalar_outputs = True`"; a value that is only told of is the present one.
_HINT = re.compile(
    r"(?i:set|try|enabl\w+|use|using)\b[^.\n]{0,40}?(torch\._\w+\.config)\.([\w.]+) ?= ?(True|False|\d+|'\w+')(?!\w)"
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
    good = [each for each in found if each.verified and each.program is not False]
    return not any(not each.name.startswith("backend ") for each in good)


def try_on_program(work: CaseAtWork) -> None:
    """Puts the first workaround that makes the program pass before the others, and those that did not after them."""
    try:
        program = work.program()
    except CannotRunProgram as error:
        work.say(str(error))
        return
    tried: list[Workaround] = []
    for change in list(changes_of_program(work.folder))[:MOST_RUNS]:
        if work.left < LEAST_SECONDS:
            break
        work.say(f"running the program with: {change.name}")
        # What is not looked into may become a constant, what is rewritten another thing: a comparison shows that.
        compared = change.traced or change.rewritten or change.snippet
        watch = Watch(compares=True) if compared else watch_for(work.case)
        run = run_program(program, change, watch=watch, timeout=work.left)
        why = why_not_cured(work.case.signature, run)
        passed = why is None
        tried.append(Workaround.of(change, why, program=passed, seconds=run.seconds))
        if passed:
            break
    good = [each for each in tried if each.verified]
    bad = [each for each in tried if not each.verified]
    work.write(workarounds=(*good, *(work.case.workarounds or ()), *bad))


def try_found_on_program(work: CaseAtWork, changes: Sequence[Change], everything: bool = False) -> None:
    """Runs the program with each verified workaround, best first, until one passes (`everything`: with each).

    `changes` are what was changed for each workaround of the case. Lines to paste are run as they are printed. Another
    failure than that of the case says nothing about the workaround.
    """
    program = work.program()
    done: list[Workaround] = []
    passed = False
    for tried, change in zip(work.case.workarounds or (), changes):
        wanted = tried.verified and work.left > 0 and (everything or not passed)
        if wanted and change.for_programs:
            work.note(f"running the program with: {tried.name}")
            run = run_program(program, change.as_printed, watch=watch_for(work.case), timeout=work.left)
            why = why_not_cured(work.case.signature, run)
            work.note(f"{tried.name}: {why or 'the program passes'} ({run.seconds:.0f} s)")
            passed = passed or why is None
            # A run that did not end as a healthy one may leave open what became of the failure of the case.
            other = run.signatures and answer_of_watched_run(work.case.signature, run) is Answer.OTHER
            told = why is None or not (run.timed_out or other)
            tried = replace(tried, program=why is None, error=why or tried.error) if told else tried
        done.append(tried)
    work.write(workarounds=tuple(done))


# -- what is worth a run of the program


def changes_of_program(folder: CaseFolder) -> Iterator[Change]:
    """What is worth a run of the program, the least harmful first: `next(changes_of_program(folder)).how`."""
    case = folder.case
    if (kept := case.extra.get("overwritten")) is not None:
        yield from _not_overwritten(from_json(Overwritten, kept))
        return
    whole = bool(case.extra.get("fullgraph"))
    if any(_LIMIT in name for name in case.signature.exceptions):
        # It is compiled too often: for all sizes at once, or more often still.
        yield from (DYNAMIC, MORE_COMPILES)
    text = folder.text(TRACEBACK) if folder.has(TRACEBACK) else ""
    for module, name, value in dict.fromkeys(_HINT.findall(text)):
        yield setting(name, value, "nothing else: torch's message names this setting", module)
    yield from _hinted_calls(text)
    # A lambda has no `def` above which anything could be written.
    places = [place for place in places_at_fault(folder) if place[1].isidentifier()]
    own = [place for place in places if not _is_installed(place[0])] or places
    if case.phase == "capture" and case.kind == "capture_error":
        yield from _rewritten(own)
    if whole:  # what is compiled itself cannot be a step of its own graph
        for place in own[:-1][:MOST_TRACED]:
            yield _traced_whole(*place)
    if whole:  # nothing can stay eager in the midst of a graph that must not break
        yield BREAKS_ALLOWED
    # A function of a library that cannot be captured leaves the program's own compiled; torch's are of no use eager.
    of_libraries = [place for place in places if "-packages" in place[0] and "/torch/" not in place[0]]
    for file, function, line in dict.fromkeys((*of_libraries[:MOST_IN_LIBRARIES], *own)):
        yield _left_eager(file, function, line, whole)
    if case.kind in ("capture_error", "compile_error"):
        how = ERRORS_SUPPRESSED.how + (_AND_BREAKS if whole else "")
        yield replace(ERRORS_SUPPRESSED, how=how, graph_breaks=whole)


def _not_overwritten(found: Overwritten) -> Iterator[Change]:
    """What keeps a result of a CUDA graph: a copy of it, a mark between the calls, no CUDA graphs."""
    where = f"# {found.made.place}, in place of\n#     {found.made.code}\n"
    means = "nothing: the copy costs the memory and the time of one"
    every = "torch.utils._pytree.tree_map_only(torch.Tensor, torch.clone, {})"
    for name, text in (("clone() of what is kept", "{}.clone()"), ("clone() of every tensor", every)):
        if (lines := _around_call(found.made, text)) is not None:
            yield Change(name=name, how=where + dedent(lines[-1]), disables=means, edited=(lines,))
    if (lines := _before_statement(found.by, "torch.compiler.cudagraph_mark_step_begin()")) is not None:
        yield Change(
            name="cudagraph_mark_step_begin() before the call",
            how=f"# {found.by.place}, in place of\n#     {found.by.code}\n{dedent(lines[-1])}",
            disables="nothing: results of the step before are not used any more, says that line",
            edited=(lines,),
        )
    yield Change(
        name="another mode",
        how="torch.compile(..., mode='default')  # in place of mode='reduce-overhead'",
        disables="CUDA graphs: each kernel is launched by itself again",
        mode="default",
    )
    yield replace(NO_CUDAGRAPHS, what="")


def _around_call(call: CallPlace, text: str) -> tuple[str, int, int, str] | None:
    """The lines of a call with something written around the call; None where they are not known, or no Python then."""
    try:
        lines = Path(call.file).read_text(encoding="utf-8").splitlines()
        first, last, begin, end = call.span or (0, 0, 0, 0)
        rows = [line.encode() for line in lines[first - 1 : last]]
        before, after = rows[0][:begin].decode(), rows[-1][end:].decode()
        rows[-1] = rows[-1][:end]
        rows[0] = rows[0][begin:]
        called = "\n".join(row.decode() for row in rows)
        made = f"{before}{text.format(called)}{after}"
        ast.parse(with_lines("\n".join(lines), first, last, made))
    except (OSError, ValueError, SyntaxError, IndexError):
        return None
    return call.file, first, last, made


def _before_statement(call: CallPlace, text: str) -> tuple[str, int, int, str] | None:
    """The lines of the statement that makes a call, below another one."""
    try:
        source = Path(call.file).read_text(encoding="utf-8")
        holding = [
            node
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.stmt) and node.lineno <= call.line <= (node.end_lineno or 0)
        ]
    except (OSError, ValueError, SyntaxError):
        return None
    inner = max(holding, key=lambda node: node.lineno, default=None)
    if inner is None or isinstance(inner, (ast.FunctionDef, ast.ClassDef)):
        return None
    last = inner.end_lineno if not hasattr(inner, "body") else inner.lineno
    lines = source.splitlines()[inner.lineno - 1 : last]
    return call.file, inner.lineno, last or inner.lineno, "\n".join([" " * inner.col_offset + text, *lines])


def _hinted_calls(text: str) -> Iterator[Change]:
    """What torch's own message advises for a function that Dynamo cannot look into."""
    for name in dict.fromkeys(_PRINTS.findall(text)):
        shown = name.lstrip("_")
        how = f"torch._dynamo.config.reorderable_logging_functions.add({shown})"
        module = shown.rpartition(".")[0]
        yield _pasted(
            "setting reorderable_logging_functions",
            f"import {module}\n{how}" if module else how,
            f"the order: what {shown} shows comes once the graph around it has run",
        )
    for module, function in dict.fromkeys(_IN_C.findall(text)):
        if not module.startswith("_"):  # that is not a name that a program would write
            yield _pasted(
                f"function {module}.{function} in the graph",
                f"import {module}\ntorch.compiler.allow_in_graph({module}.{function})",
                f"Dynamo's checks of {function}: it becomes one step of the graph, run with tensors without numbers "
                "first",
            )


def _pasted(name: str, lines: str, disables: str) -> Change:
    return Change(name=name, how=lines, disables=disables, snippet=lines)


def _rewritten(places: Sequence[Place]) -> Iterator[Change]:
    """The line at fault written another way, in the innermost function for which there is one."""
    for file, function, line in places[:MOST_REWRITTEN]:
        try:
            found = rewrites_of(Path(file).read_text(encoding="utf-8"), function, line)
        except (OSError, ValueError):
            continue
        for each in found[:MOST_REWRITTEN]:
            yield Change(
                name=each.name,
                how=_instead_of(Path(file).name, each),
                disables=each.gives_up,
                rewritten=((file, each.first, each.last, each.after),),
            )
        if found:
            return


def _instead_of(file: str, rewrite: Rewrite) -> str:
    """The lines to paste, below those they take the place of."""
    lines = f"{rewrite.first}" + (f"-{rewrite.last}" if rewrite.last > rewrite.first else "")
    before, after = (dedent(text).splitlines() for text in (rewrite.before, rewrite.after))
    return "\n".join([f"# {file}:{lines}, in place of", *(f"#     {line}" for line in before), *after])


def _traced_whole(file: str, function: str, line: int) -> Change:
    owner, define = _around(file, function, line)
    return Change(
        name=f"function {owner + '.' if owner else ''}{function} traced as a whole",
        how=f"@torch._dynamo.nonstrict_trace  # above `def {function}` in {Path(file).name}:{define or line}",
        disables=f"Dynamo's checks inside of {function}: what it reads besides its arguments is taken as it was the "
        "first time",
        traced=((file, function, line),),
    )


def _is_installed(file: str) -> bool:
    parts = Path(file).parts
    return bool({"site-packages", "dist-packages"} & {*parts}) or f"python{sys.version_info[0]}." in file


def places_at_fault(folder: CaseFolder) -> list[Place]:
    """The functions around the fault, the innermost first: those Dynamo was in, or those of the nodes at fault."""
    frames = folder.case.extra.get("frames")
    if frames:
        return list(dict.fromkeys((str(file), str(name), int(line)) for file, line, name in reversed(frames)))
    record = record_at(folder.path)
    known = {} if record is None else record.lines
    nodes = folder.case.triage.nodes if folder.case.triage else ()
    lines = [known[name] for name in reversed(nodes) if name in known]
    by_function = {
        (line.file, line.function): (line.file, line.function, line.line) for line in reversed(lines)
    }
    wanted = dict.fromkeys((line.file, line.function) for line in lines)
    return [by_function[key] for key in wanted if key[1].isidentifier()]


def _left_eager(file: str, function: str, line: int, whole: bool = False) -> Change:
    owner, define = _around(file, function, line)
    if _is_installed(file) and "-packages" in file:
        module = ".".join(Path(file).with_suffix("").parts).rpartition("-packages.")[2]
        target = ".".join(filter(None, [module, owner, function]))
        how = f"{target} = torch.compiler.disable({target})"
    else:
        how = f"@torch.compiler.disable  # above `def {function}` in {Path(file).name}:{define or line}"
    how += _AND_BREAKS if whole else ""
    return Change(
        name=f"function {owner + '.' if owner else ''}{function} eager",
        how=how,
        disables=f"compilation of {function} and all it calls, with a graph break at each call; a function that "
        "has to be captured as a whole (a loop, torch.func) stays eager with it",
        functions=((file, function, line),),
        graph_breaks=whole,
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


def one_cause(folder: CaseFolder, before: Sequence[CaseFolder]) -> CaseFolder | None:
    """The case with what is known of another one of the same run, where that is the forward or backward of the same
    compile, fails in the same kind of way, and has a workaround with which the whole program passed; else None.

    The program was watched while it ran so, and nothing of it failed any more.
    """
    record = record_at(folder.path)
    for other in before:
        there = record_at(other.path)
        if record is None or there is None or record.compile_id is None:
            continue
        works = best_workaround(other.case.workarounds or ())
        same = (there.compile_id, there.function, other.case.kind, other.case.rank)
        if same != (record.compile_id, record.function, folder.case.kind, folder.case.rank):
            continue
        if there.settings.direction == record.settings.direction:
            continue
        if works is None or not works.program or gives_up(other.case.workarounds or ()):
            continue
        found = other.case.triage or Triage()
        why = f"it goes away with what helps case {other.case.id}, another graph of the same function"
        triage = dataclasses.replace(found, detail=why, nodes=(), rungs=(), trials=None, seconds=None)
        same_cause = {"same_cause": other.case.id}
        return update_case(folder, triage=triage, workarounds=(works,), extra=same_cause)
    return None
