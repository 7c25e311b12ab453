"""A script becomes a case: one that torchsleuth wrote, one of PyTorch's own minifier, or any program that fails.

A script of ours says what it expects; another is tried once, and how it fails is what is looked for from then on.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import hashlib
import itertools
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

from torchsleuth.core.cases.folder import CaseFolder, now, update_case, write_case
from torchsleuth.core.cases.model import Case, GraphFacts, case_id
from torchsleuth.core.cases.record import WRONG, Embedded, GraphRecord
from torchsleuth.core.change_table import UNCOMPILED
from torchsleuth.core.changes import NOTHING, Change
from torchsleuth.core.criteria import SAME, SAME_BUG
from torchsleuth.core.protocol.codec import Document
from torchsleuth.core.protocol.trials import Outcome, Trial
from torchsleuth.script_runtime.signature import Signature, fingerprint, signature_from_json
from torchsleuth.search.minify.case_state import CannotMinify
from torchsleuth.search.minify.python.oracle import (
    FIRST_RUN,
    LEAST_CLOCK,
    RESULTS,
    SLACK,
    cpu_for,
    run_whole,
)
from torchsleuth.search.minify.python.program import is_name, parsed, replace_each
from torchsleuth.search.minify.states import NoAnswer, Questions
from torchsleuth.search.workers.queue import TrialQueue
from torchsleuth.torch_core.repro.assemble import graph_files
from torchsleuth.torch_core.repro.program import PROGRAM, program_script
from torchsleuth.torch_internals.minifier_scripts import is_foreign


@dataclass(frozen=True)
class FirstRun:
    """How a script is tried to know how it fails: its arguments, and the seconds it may take.

    `timeout` is after what it counts as a hang; without one it may take its share of the `budget` for everything.
    `uncollected` says that Python's garbage collector may be what decides whether it fails.
    """

    arguments: tuple[str, ...] = ()
    timeout: float | None = None
    budget: float = 600.0
    uncollected: bool = False


PLAINLY = FirstRun()


def case_of_script(
    script: Path, cases_dir: Path, questions: Questions, how: FirstRun = PLAINLY
) -> CaseFolder:
    """The case that a script stands for, written into `cases_dir`.

    Of torchsleuth's own, one of PyTorch's, or any program: `case_of_script(Path("train.py"), cases, questions)`.
    """
    try:
        text = script.read_text(encoding="utf-8")
        literals = _literals(text)
    except (OSError, ValueError, SyntaxError) as error:
        # torch before 2.14 writes such of graphs with nested graphs: `self.true_graph_0 = <lambda>()`.
        foreign = isinstance(error, SyntaxError) and is_foreign(text)
        instead = (
            "; PyTorch wrote none, so run the program itself: torchsleuth run train.py" if foreign else ""
        )
        raise CannotMinify(f"{script} cannot be read as a Python program: {error}{instead}") from error
    if is_foreign(text):
        return _adopt_foreign(script, cases_dir, questions)
    if "FACTS" not in literals or "EXPECTED" not in literals:
        return case_of_program(script, cases_dir, questions, how)
    graph, embedded, imports = _parts(text)
    record = replace(
        GraphRecord.from_json(literals["FACTS"]), imports=imports, embedded=embedded, hash="script"
    )
    asked = literals["FACTS"].get("asked", {})
    store = script.parent / asked.get("save_dir", "inputs")
    if literals["EXPECTED"] is not None:
        return _write(cases_dir, record, graph, signature_from_json(literals["EXPECTED"]), store)
    # Of a graph at hand nobody knows how it fails: by itself, or by its results.
    for accuracy in (False, True) if asked.get("accuracy") is None else (asked["accuracy"] != "off",):
        expected = _observed(record, graph, store, questions.workers, accuracy)
        if expected is not None:
            return _write(cases_dir, record, graph, expected, store)
    raise CannotMinify(f"{script} does not fail here, so there is nothing to look for")


def _adopt_foreign(script: Path, cases_dir: Path, questions: Questions) -> CaseFolder:
    with tempfile.TemporaryDirectory() as made:
        store = Path(made)
        try:
            found = questions.foreign_script(script, store)
        except NoAnswer as why:
            raise CannotMinify(f"{script} cannot be read as a script of PyTorch's minifier ({why})") from why
        # Before 2.15 a script does not say whether the graph was compiled for inference; torch runs it as for training.
        said = found["inference"]
        for inference in (False, True) if said is None and found["level"] == "aot" else (bool(said),):
            kwargs = {"is_inference": True} if inference else {}
            how = {"options": {}, "direction": "forward", "compile_kwargs": kwargs}
            record = GraphRecord.from_json({**found, **how})
            expected = _observed(record, found["graph"], store, questions.workers, found["accuracy"])
            if expected is not None:
                return _write(cases_dir, record, found["graph"], expected, store)
        raise CannotMinify(f"{script} does not fail here, so there is nothing to make smaller")


def _observed(
    record: GraphRecord, graph: str, store: Path, workers: TrialQueue, accuracy: bool
) -> Signature | None:
    """How a graph fails, when nothing in particular is expected."""
    trial = Trial(
        graph,
        Signature("accuracy" if accuracy else "runtime_error", "run"),
        record.settings,
        placeholders=record.placeholders,
        inputs=record.inputs or {},
        imports=record.imports,
        store=str(store),
    )
    outcome = workers.run(trial, fresh=True)
    if outcome.error is not None:
        raise CannotMinify(f"the script cannot be tried here: {outcome.error}")
    return outcome.signature


def _write(cases_dir: Path, record: GraphRecord, graph: str, expected: Signature, store: Path) -> CaseFolder:
    calls = record.calls or len(re.findall(r"^\s+\w+ = ", graph, re.MULTILINE))
    how = record.settings
    case = Case(
        id=case_id(fingerprint(expected), record.hash, version("torch"), graph),
        created=now(),
        torch=version("torch"),
        device="cpu",
        kind=expected.kind,
        phase=expected.phase,
        direction=how.direction,
        backend=how.backend,
        after=how.level,
        signature=expected,
        graph=GraphFacts(calls, len(record.placeholders)),
    )
    files = graph_files(case, replace(record, calls=calls), graph, store)
    return write_case(cases_dir, case, files)


def _literals(text: str) -> Document:
    """The values of the literal assignments at the top of a script; nothing is executed."""
    found = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            try:
                found[node.targets[0].id] = ast.literal_eval(node.value)
            except ValueError:
                continue
    return found


def _parts(text: str) -> tuple[str, Embedded, tuple[str, ...]]:
    """The graph, the user's definitions and the imports of a script of ours."""
    pieces = re.split(r"(?m)^# -{20,} ([^\n]+)\n", text)
    sections = dict(zip(pieces[1::2], pieces[2::2]))
    graph = next(body for title, body in sections.items() if title == "the graph")
    embedded = sections.get("from the program that failed", "")
    imports = tuple(line for line in pieces[0].splitlines() if re.match(r"(import|from) ", line))
    return graph.strip() + "\n", Embedded(embedded.strip()), imports


# -- any program


def case_of_program(
    script: Path, cases_dir: Path, questions: Questions, how: FirstRun = PLAINLY
) -> CaseFolder:
    """The case that a failing script is; raises `CannotMinify` where it does not fail, or is no Python."""
    try:
        text = script.read_text(encoding="utf-8")
        text = standing_alone(text, script.absolute(), how.arguments, uncollected=how.uncollected)
    except (SyntaxError, ValueError) as error:
        raise CannotMinify(f"{script} is not a Python program: {error}") from error
    first = run_whole(questions, text, _clock(how))
    seen = first.signature
    if seen is None:
        raise CannotMinify(f"{script} does not fail here, so there is nothing to make smaller")
    text = _as_one_file(text, script, seen, questions, how)
    uncompiled = run_whole(questions, text, _clock(how), UNCOMPILED)
    torch, extra = version("torch"), _what_runs_take(seen, first, uncompiled, how)
    case = Case(
        id=case_id(fingerprint(seen), hashlib.sha256(text.encode()).hexdigest(), torch),
        created=now(),
        torch=torch,
        device="cpu",
        kind=seen.kind,
        phase=seen.phase,
        direction=None,
        backend="none",
        after=None,
        signature=seen,
        script=(str(script), *how.arguments),
        extra=extra,
    )
    original = program_script(parsed(text).text, seen, first.text, torch, case.id, extra["timeout"])
    files = {PROGRAM: text, "original.py": original, "traceback.txt": first.text}
    return write_case(cases_dir, case, files)


def program_of_case(folder: CaseFolder, script: Path, questions: Questions, how: FirstRun) -> CaseFolder:
    """A case whose graph or call does not fail by itself, with the program that it was seen in as what does.

    Raises `CannotMinify` where the program passes when it is run again, or fails uncompiled as well.
    """
    case = folder.case
    wrong = case.kind == "accuracy"
    how_seen = Change(capture_only=True) if wrong else NOTHING
    try:
        text = script.read_text(encoding="utf-8")
        if wrong:
            text = with_results(text, script, case.extra.get("capture", {}), case.signature.outputs)
        text = standing_alone(text, script, how.arguments)
    except (OSError, SyntaxError, ValueError) as error:
        raise CannotMinify(f"{script} cannot be read as a Python program: {error}") from error
    first = run_whole(questions, text, _clock(how), how_seen)
    seen = first.signature
    if seen is not None:
        text = _as_one_file(text, script, seen, questions, how)
    uncompiled = run_whole(questions, text, _clock(how), UNCOMPILED)
    if wrong and seen is None:
        if uncompiled.seen.wrong in (None, first.seen.wrong):
            raise CannotMinify("the program, run again, does not differ from eager")
    elif seen is None or not SAME_BUG.same(case.signature, seen):
        raise CannotMinify(f"the program, run again, {'fails differently' if seen else 'does not fail'}")
    elif uncompiled.signature is not None:
        raise CannotMinify("the program fails without the compiler, too")
    seen = seen or case.signature
    extra = {**_what_runs_take(seen, first, uncompiled, how), "seen_by_program": seen.to_json()}
    extra |= {"timeout": case.extra.get("timeout", extra["timeout"])}
    original = program_script(parsed(text).text, seen, first.text, case.torch, case.id, extra["timeout"])
    sections = {"signature": seen, "phase": seen.phase} if seen.kind in ("crash", "hang") else {}
    files = {PROGRAM: text, "original.py": original}
    return update_case(folder, files, extra=extra, no_repro=None, **sections)


def _clock(how: FirstRun) -> float:
    return how.timeout or FIRST_RUN * how.budget


def _what_runs_take(seen: Signature, first: Outcome, uncompiled: Outcome, how: FirstRun) -> Document:
    """What a case says of its program: whether it passes uncompiled, and what a run of it may take."""
    passes = uncompiled.signature is None
    # A hang takes its clock in each trial that shows it, and nothing else should take much longer than the whole did.
    slowest = uncompiled.seconds if passes or seen.kind == "hang" else max(first.seconds, uncompiled.seconds)
    return {
        "eager_passes": passes,
        "timeout": how.timeout or min(_clock(how), max(LEAST_CLOCK, SLACK * slowest)),
        "cpu": None if seen.kind == "hang" else cpu_for([first, uncompiled]),
    }


def with_results(text: str, script: Path, capture: Document, paths: Sequence[str]) -> str:
    """The program with what each run of one call leaves at these paths: that call was captured wrong.

    >>> print(with_results("print(f(3))", Path("a.py"), {"called_at": ["a.py", 1, 1, 6, 10]}, ["result[0]"]))
    results = []
    def recorded(function, *args, **kwargs):
        result = function(*args, **kwargs)
        results.append(str([result]))
        return result
    print(recorded(f, 3))
    wrong = results
    """
    place = capture.get("called_at") or ["", 0, 0, 0, 0]
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    at = [n for n in calls if [n.lineno, n.end_lineno, n.col_offset, n.end_col_offset] == place[1:]]
    shown = list(dict.fromkeys(filter(None, map(_in_recorded, paths))))
    if (
        not at
        or Path(place[0]).name != script.name
        or not shown
        or capture.get("component", "dynamo") != "dynamo"
    ):
        raise CannotMinify("the program does not show what is wrong by itself")
    plain = ast.Call(ast.Name("recorded"), [at[0].func, *at[0].args], at[0].keywords)
    lines = text.splitlines()
    first, last = lines[place[1] - 1].encode(), lines[place[2] - 1].encode()
    begin, end = first[: place[3]].decode(), last[place[4] :].decode()
    lines[place[1] - 1 : place[2]] = [begin + ast.unparse(plain) + end]
    recorded = [
        f"{RESULTS} = []",
        "def recorded(function, *args, **kwargs):",
        "    result = function(*args, **kwargs)",
        f"    {RESULTS}.append(str([{', '.join(shown)}]))",
        "    return result",
    ]
    heads = (ast.Import, ast.ImportFrom, ast.Expr)
    leading = itertools.takewhile(
        lambda n: isinstance(n, heads) and n.end_lineno < place[1], ast.parse(text).body
    )
    behind = max((node.end_lineno or 0 for node in leading), default=0)
    return "\n".join([*lines[:behind], *recorded, *lines[behind:], f"{WRONG} = {RESULTS}"])


def _in_recorded(path: str) -> str | None:
    """The expression for what differs where the function and its arguments have those names; None where there is none.

    >>> _in_recorded("self.seen"), _in_recorded("args[1].shape"), _in_recorded("count (global)")
    ("getattr(function, '__self__', function).seen", 'args[1]', 'count')
    """
    if path.startswith("self."):
        return f"getattr(function, '__self__', function){path.removeprefix('self')}"
    found = re.match(r"result|args\[\d+\]|kwargs\['\w+'\]|\w+(?= \(global\))", path)
    return found[0] if found else None


def standing_alone(
    text: str, script: Path, arguments: Sequence[str] = (), *, uncollected: bool = False
) -> str:
    """The program with what it gets from where it lies and how it is called written into it, where it needs that.

    >>> print(standing_alone("print(__file__)", Path("/home/me/train.py")))
    __file__ = '/home/me/train.py'
    print(__file__)
    """
    tree = ast.parse(text)
    imported = {name.partition(".")[0] for node in ast.walk(tree) for name in _imported(node)}
    beside = [name for name in imported if _lies_in(script.parent, name) and name != script.stem]
    lines = ["import gc", "gc.disable()"] if uncollected else []
    lines += ["import sys"] if arguments or beside else []
    lines += [f"sys.argv[1:] = {list(arguments)!r}"] if arguments else []
    lines += [f"sys.path.insert(0, {str(script.parent)!r})"] if beside else []
    if any(isinstance(node, ast.Name) and node.id == "__file__" for node in ast.walk(tree)):
        lines.append(f"__file__ = {str(script)!r}")
    return _begun(text, lines)


def _as_one_file(text: str, script: Path, seen: Signature, questions: Questions, how: FirstRun) -> str:
    """The program with what it takes from files beside it written into it, where it then fails as was `seen`."""
    with contextlib.suppress(OSError, SyntaxError, ValueError):
        one = joined(text, script.parent)
        if one is not None:
            again = run_whole(questions, one, _clock(how)).signature
            return one if again is not None and SAME.same(seen, again) else text
    return text


def joined(text: str, folder: Path) -> str | None:
    """A program with the files beside it that it imports from; None where there are none, or names would clash.

    What `from nets import Net` and `import nets` lead to is written where they stand, each file once.
    """
    done: dict[str, set[str]] = {}
    tree = _with_files(ast.parse(text), folder, done)
    if tree is None or not done:
        return None
    # Where the folder itself was made known for that, nothing needs it any more.
    tree.body = [n for n in tree.body if ast.unparse(n) != f"sys.path.insert(0, {str(folder)!r})"]
    futures = [n for n in tree.body if isinstance(n, ast.ImportFrom) and n.module == "__future__"]
    rest = [node for node in tree.body if node not in futures]
    tree.body = [*{ast.unparse(node): node for node in futures}.values(), *rest]
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


def _with_files(tree: ast.Module, folder: Path, done: dict[str, set[str]]) -> ast.Module | None:
    """A file with those it imports in their places; `done` are the names that each of them binds."""
    body: list[ast.stmt] = []
    for node in tree.body:
        names = [name for name in _imported(node) if (folder / f"{name}.py").is_file()]
        if any(_lies_in(folder, name.partition(".")[0]) for name in _imported(node)) and len(names) != 1:
            return None  # a package, or several at once
        if not names:
            body.append(node)
            continue
        if names[0] not in done:
            other = ast.parse((folder / f"{names[0]}.py").read_text(encoding="utf-8"))
            own = {name for each in other.body for name in _bound_by(each)}
            clashes = {name for kept in (*done.values(), *map(_bound_by, tree.body)) for name in kept} & own
            shown = ast.unparse(other)
            if clashes - {names[0]} or own & {*dir(builtins)} or "__file__" in shown or "__name__" in shown:
                return None
            done[names[0]] = own
            inner = _with_files(other, folder, done)
            if inner is None:
                return None
            body += inner.body
        if isinstance(node, ast.Import):
            known = node.names[0].asname or names[0]
            if not _without_module(tree, known, done[names[0]]):
                return None
        elif isinstance(node, ast.ImportFrom):
            renamed = [alias for alias in node.names if alias.asname and alias.asname != alias.name]
            body += [ast.parse(f"{alias.asname} = {alias.name}").body[0] for alias in renamed]
    nested = [
        node
        for node in body
        for inner in ast.walk(node)
        if inner is not node and any(_lies_in(folder, name.partition(".")[0]) for name in _imported(inner))
    ]
    return None if nested else ast.Module(body, [])


def _bound_by(node: ast.stmt) -> set[str]:
    """The names that a top-level statement binds; imports of other packages may be made twice."""
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return set()
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {node.name}
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def _without_module(tree: ast.Module, name: str, own: set[str]) -> bool:
    """Takes `nets.Net` for `Net` everywhere; False where the module is used in another way, or a name would clash."""
    uses = [n for n in ast.walk(tree) if isinstance(n, ast.Attribute) and is_name(n.value, name)]
    taken = {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)}
    taken |= {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    if len(uses) < sum(is_name(n, name) for n in ast.walk(tree)) or any(
        use.attr not in own or use.attr in taken or not isinstance(use.ctx, ast.Load) for use in uses
    ):
        return False
    replace_each(
        tree, lambda n: ast.Name(n.attr, ast.Load()) if n in uses and isinstance(n, ast.Attribute) else n
    )
    return True


def _begun(text: str, lines: Sequence[str]) -> str:
    """The program with these lines before all others that may stand behind something."""
    future = (n for n in ast.parse(text).body if isinstance(n, ast.ImportFrom) and n.module == "__future__")
    place = max((n.end_lineno or 0 for n in future), default=0)
    given = text.splitlines()
    return "\n".join([*given[:place], *lines, *given[place:]]) if lines else text


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []


def _lies_in(folder: Path, name: str) -> bool:
    return (folder / f"{name}.py").is_file() or (folder / name / "__init__.py").is_file()
