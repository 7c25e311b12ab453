"""Makes cases of what watched processes left behind: one failure, one folder, with a script that stands alone.

No torch and no user code here: everything was written as text and JSON by the process that knew it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from torchsleuth.core.cases.door import text_inside
from torchsleuth.core.cases.folder import CaseFolder, write_case
from torchsleuth.core.cases.model import Case, GraphFacts, Triage, case_id
from torchsleuth.core.cases.record import GraphRecord, read_record
from torchsleuth.core.cases.scrub import environment_of
from torchsleuth.core.cases.spool import WatchedProcess
from torchsleuth.core.protocol.codec import Document, to_json
from torchsleuth.core.protocol.failures import KEPT_RESULT, Failure, Overwritten, RecordedCall
from torchsleuth.script_runtime.signature import fingerprint
from torchsleuth.torch_core.repro.program import PROGRAM, program_of_call, program_script
from torchsleuth.torch_core.repro.script import RUNTIME, runtime_text, script_text

_LEVELS = {"aot": "AOTAutograd", "dynamo": "Dynamo"}
# In a case: the forms of a recorded call.
CALL = "call.json"
NO_CALL = (
    "the failure came before there was a graph, and the call that failed could not be written as a script"
)
WRONG_CAPTURE = (
    "every graph agrees with eager; what differs is how the function was captured, and its call could not be "
    "written as a script"
)


def make_case(
    cases_dir: Path, process: WatchedProcess, failure: Failure, environment: Mapping[str, str]
) -> CaseFolder:
    """Writes the case of one failure, or counts it where the same failure of the same graph is there already."""
    record_folder = Path(failure.record) if failure.record else None
    record = read_record(record_folder / "record.json") if record_folder else None
    case = _case(process, failure, record)
    files: dict[str, str | Path] = {
        "traceback.txt": "\n".join(filter(None, [failure.traceback, generated_lines(failure.traceback)])),
        "log.txt": _log(process, failure, record),
        "environment.txt": _environment(process, record, environment),
    }
    if logged := process.compiler_log():
        files["compiler.log"] = logged
    if record is not None and record_folder is not None:
        graph = text_inside(record_folder, "graph.py")
        wrong = failure.accuracy
        files.update(graph_files(case, record, graph, record_folder / "inputs", failure.inputs, wrong))
    elif case.no_repro is None:
        files.update(call_files(case, failure.call, failure.traceback))
    return write_case(cases_dir, case, files)


@dataclass(frozen=True)
class LevelScript:
    """The script of a graph at some level, and what of the case becomes different where that one is taken."""

    script: str
    files: dict[str, str | Path]
    sections: Document


def scripts_of_levels(
    case: Case, record_folder: Path, process: WatchedProcess
) -> list[tuple[str, LevelScript]]:
    """The scripts of a graph and of the one around it, each with what it is; the one after AOTAutograd first.

    Only graphs that can be written are among them.
    """
    number = read_record(record_folder / "record.json").outer
    outer = [p for p in process.graph_folders() if number is not None and p.name == f"g{number}"]
    found = [(where, _script_of_level(case, where)) for where in (record_folder, *outer)]
    return [(f"the graph after {_LEVELS[script.sections['after']]}", script) for _, script in found if script]


def _script_of_level(case: Case, where: Path) -> LevelScript | None:
    record = read_record(where / "record.json")
    if record.no_repro is not None:
        return None
    graph = text_inside(where, "graph.py")
    files = graph_files(case, record, graph, where / "inputs", record.inputs, case.extra.get("accuracy"))
    sections = {"after": "dynamo", "graph": _graph_facts(record), "backend": record.settings.backend}
    return LevelScript(str(files["original.py"]), files, {**sections, "kept": _kept(record.inputs)})


def call_files(case: Case, call: RecordedCall, traceback: str, form: int = 0) -> dict[str, str | Path]:
    """The files of a case whose call was recorded, in one of its forms: the program, and the script that tells."""
    program = program_of_call(call.forms[form])
    return {
        PROGRAM: program,
        CALL: json.dumps(to_json(call), indent=1),
        "original.py": program_script(program, case.signature, traceback, case.torch, case.id),
    }


def user_line_of_node(folder: CaseFolder, node: str) -> tuple[str | None, str | None]:
    """The user's line (`model.py:84`) a node of the case's graph comes from, and the operator it calls."""
    line = read_record(folder.file("record.json")).nodes.get(node)
    graph = folder.text("graph.py")
    call = re.search(rf"^\s+{re.escape(node)} = (?:torch\.ops\.)?([\w.]+)\(", graph, re.MULTILINE)
    return (line.place if line else None), call[1] if call else None


def _case(process: WatchedProcess, failure: Failure, record: GraphRecord | None) -> Case:
    signature = failure.signature
    now = datetime.fromtimestamp(failure.time, UTC).isoformat(timespec="microseconds")
    now = now.replace("+00:00", "Z")
    rank = None if process.rank is None else str(process.rank)
    graph_hash = record.hash if record else _frame_of(failure)
    torch_version = (record.versions.get("torch") if record else None) or failure.torch or "unknown"
    inputs = failure.inputs or (record.inputs if record else None)
    case = Case(
        id=case_id(fingerprint(signature), graph_hash, torch_version),
        created=now,
        last_seen=now,
        torch=torch_version,
        device=_device(inputs),
        kind=signature.kind,
        phase=signature.phase,
        direction=record.settings.direction if record else None,
        backend=record.settings.backend if record else "none",
        after=record.settings.level if record else None,
        signature=signature,
        seen=failure.count,
        rank=rank,
        script=tuple(process.facts["argv"]),
        no_repro=record.no_repro if record else _no_call(failure),
    )
    doc = to_json(failure)
    if record:
        extra = {k: doc[k] for k in ("timeout", "accuracy", "calls") if doc[k]}
        return replace(case, graph=_graph_facts(record), kept=_kept(inputs), extra=extra)
    extra = {k: doc[k] for k in ("frames", "program", "capture", "overwritten") if doc[k] is not None}
    if failure.call.fullgraph:
        extra["fullgraph"] = True
    return replace(case, triage=_capture_triage(failure), extra=extra)


def _frame_of(failure: Failure) -> str:
    """What tells frames without a graph apart."""
    if failure.capture is None:
        return f"{failure.function} {_place(failure)}"
    file, function, _ = failure.capture.place
    return " ".join([Path(file).name, function, *failure.signature.outputs])


def _graph_facts(record: GraphRecord) -> GraphFacts:
    return GraphFacts(record.calls, len(record.placeholders), record.source_lines)


def _place(failure: Failure) -> str | None:
    place = failure.user_line
    return f"{Path(place[0]).name}:{place[1]}" if place else None


def _no_call(failure: Failure) -> str | None:
    """Why a failure without a graph has no script; None where its call was recorded."""
    if failure.call.forms:
        return None
    why = failure.call.why_none or "it was not found on the stack"
    if failure.overwritten is not None:
        return why
    return f"{NO_CALL if failure.capture is None else WRONG_CAPTURE}: {why}"


def _capture_triage(failure: Failure) -> Triage | None:
    """An operator that fails on real tensors of the same shapes is the program's own bug."""
    ops = (failure.op,) if failure.op else ()
    code = failure.user_line[2] or None if failure.user_line else None
    if failure.overwritten is not None:
        return _overwritten(failure.overwritten)
    found = Triage(component="dynamo", part="capture", ops=ops, user_line=_place(failure), code=code)
    if failure.fails_in_eager:
        return replace(found, component="program", part="operator")
    found = replace(found, labels=("oncall: pt2", "module: dynamo"))
    if failure.capture is not None:
        sentences = "; ".join(failure.capture.sentences[:3])
        detail = f"the function differs from eager though each of its graphs does not: {sentences}"
        found = replace(found, detail=detail, pinned=True, function=failure.function)
        return _merging(found, failure.capture.component)
    return found


def _overwritten(found: Overwritten) -> Triage:
    """CUDA graphs give the same memory at each run: who keeps a result has to copy it."""
    same = found.made.place == found.by.place
    taken = "the next call there" if same else f"the call in {found.by.place} ({found.by.code})"
    used = f", and it was used in {found.used} after that" if found.used else ""
    why = (
        f"with CUDA graphs (mode='reduce-overhead') every call writes its results into the same memory: {taken} "
        f"overwrote what the call in {found.made.place} gave, which was still held{used}; "
        "results that are kept have to be copied, which is how CUDA graphs are meant to be used"
    )
    return Triage(
        "program", KEPT_RESULT, user_line=found.made.place, code=found.made.code, detail=why, pinned=True
    )


def _merging(found: Triage, component: str) -> Triage:
    """Where capture is right, one tensor was given for several results of a graph."""
    if component == "dynamo":
        return found
    labels = ("oncall: pt2", f"module: {component}") if component != "backend" else found.labels[:1]
    why = f"one tensor is given where eager gives several, and what is done to one is done to all; {found.detail}"
    return replace(found, component=component, part="aliases among results", detail=why, labels=labels)


def graph_files(
    case: Case,
    record: GraphRecord,
    graph: str,
    store: Path,
    inputs: Mapping[str, object] | None = None,
    accuracy: Document | None = None,
) -> dict[str, str | Path]:
    """The files of a case that has a graph: the text of it, its record and inputs, and the script that stands alone."""
    inputs = inputs or record.inputs
    files: dict[str, str | Path] = {
        "graph.py": graph,
        "inputs.json": json.dumps(inputs, indent=1),
        "record.json": json.dumps(replace(record, inputs=None).to_json(), indent=1),
    }
    if store.is_dir() and not store.is_symlink():
        files["inputs"] = store
    if record.no_repro is None:
        files[RUNTIME] = runtime_text()
        files["original.py"] = script_text(
            record,
            graph,
            case.signature.to_json(),
            inputs=inputs,
            tolerances=(accuracy or {}).get("tolerances"),
            case=case.id,
        )
    return files


def _kept(inputs: Document | None) -> dict[str, object]:
    """Which input values are in the case: by value, by spec."""
    tensors = [i for i in (inputs or {}).get("inputs", []) if i.get("kind") == "tensor"]
    by_value = sum(1 for t in tensors if t.get("storage"))
    return {
        "by_value": by_value,
        "by_spec": len(tensors) - by_value,
        "why": "integers and small inputs are kept before a first call, all that was still there after a failed run; "
        "parameters only after a failed run; nothing beyond 256 MB",
    }


def _device(inputs: Document | None) -> str:
    devices = {str(i["device"]).partition(":")[0] for i in (inputs or {}).get("inputs", []) if "device" in i}
    return next(iter(sorted(devices - {"cpu"})), "cpu")


def _log(process: WatchedProcess, failure: Failure, record: GraphRecord | None) -> str:
    lines = [f"process {process.pid}" + (f", rank {process.rank}" if process.rank is not None else "")]
    lines.append("program: " + " ".join(process.facts["argv"]))
    for folder in process.graph_folders():
        try:
            each = read_record(folder / "record.json")
        except ValueError:
            continue
        mark = " <- failed" if record is not None and each.number == record.number else ""
        how = each.settings
        lines.append(
            f"graph {each.number}: {how.level} {how.direction}, {each.calls} calls, "
            f"backend {how.backend}, compile {each.compile_id}, function {each.function}{mark}"
        )
    lines.append(f"failed: {failure.signature.summary}")
    return "\n".join([*lines, process.log()])


def _environment(process: WatchedProcess, record: GraphRecord | None, environment: Mapping[str, str]) -> str:
    versions = record.versions if record else {}
    lines = [f"python {process.facts['python']}", f"platform {process.facts.get('platform', '')}"]
    lines += [f"{name} {value}" for name, value in versions.items() if value]
    kept = environment_of({k: v for k, v in environment.items() if not k.startswith("TORCHSLEUTH_")})
    lines += [f"{name}={value}" for name, value in sorted(kept.items())]
    return "\n".join(lines) + "\n"


# The line of Inductor's generated code that a failure stood at goes into the case, with what the code says of itself
# around it: a kernel that dies or hangs raises nothing, but the stack names the file and line of its call, and the
# wrapper that Inductor writes names operators there: in a comment before the call, in the kernel's name, in the checks
# after it. The file is in a cache that may be gone tomorrow; its name is a `c` and 51 digits of base 32.
_GENERATED = re.compile(r'File "([^"]*[/\\]c[a-z2-7]{51}\.py)", line (\d+),? in ')
# What follows a call and belongs to it: its result under another name, and the checks of its form.
_BELONGS = re.compile(r"\s*(?:buf\d+ = buf\d+$|assert_)")
TITLE = "Generated code:"


def generated_lines(traceback: str) -> str:
    """The generated lines that a traceback or a dump of stacks stood at; empty where there are none to be read.

    For `File "/tmp/x/cab...z.py", line 181 in call` the title and `buf5 = torch.ops.aten.sort.default(buf4)`.
    """
    place = _generated_frame(traceback)
    if place is None:
        return ""
    path, number = place
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    if not 0 < number <= len(lines):
        return ""
    first = number - 1
    while first and lines[first - 1].lstrip().startswith("# Topologically Sorted Source Nodes"):
        first -= 1
    last = number
    while last < len(lines) and _BELONGS.match(lines[last]):
        last += 1
    return "\n".join([TITLE, *lines[first:last]])


def _generated_frame(traceback: str) -> tuple[Path, int] | None:
    """The innermost generated frame: the first of a dump, which begins with it, and the last of a traceback."""
    dumped = traceback.rpartition("Current thread ")[2] if "Current thread " in traceback else None
    found = _GENERATED.findall(traceback if dumped is None else dumped)
    if not found:
        return None
    path, line = found[-1 if dumped is None else 0]
    return Path(path), int(line)
