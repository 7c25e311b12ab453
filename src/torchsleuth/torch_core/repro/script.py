"""Writes a recorded graph as a script: graph, inputs, settings and expected failure, with a runtime file beside it.
And what all scripts share: templates, and the words by which they know their failure again.

Nothing is executed and torch is not needed to write one: a record is text and JSON. The runtime file is the text of
the very modules that run in torchsleuth, without their imports of each other; script and runtime need nothing else.
"""

from __future__ import annotations

import ast
import functools
import pprint
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from torchsleuth._version import __version__
from torchsleuth.core.cases.record import CompileSettings, GraphRecord
from torchsleuth.core.processes.starting import SANITIZERS, SANITIZING, SANITIZING_CXX
from torchsleuth.core.protocol.codec import Document
from torchsleuth.script_runtime.signature import Signature, fails_the_same_way

if TYPE_CHECKING:
    import jinja2

# In the order in which they use each other. Each imports the standard library, torch and those before it only.
RUNTIME_MODULES = (
    "hiding.py",
    "signature.py",
    "reader.py",
    "inputs.py",
    "symbolic_inputs.py",
    "compiling.py",
    "runner.py",
)
RUNTIME = "torchsleuth_runtime.py"
STANDARD_IMPORTS = ("import math", "import operator", "from math import inf, nan", "import torch")


def script_facts(
    settings: CompileSettings,
    *,
    signature: Document | None,
    placeholders: Sequence[str],
    inputs: Mapping[str, object] | None,
    constants: Mapping[str, object],
    tolerances: Mapping[str, float] | None,
) -> dict[str, object]:
    """The dictionary that the runner of a script reads (`script_runtime/runner.py`); a trial hands it the same.

    `signature` is that of the failure looked for: results are compared with eager's where its kind is "accuracy", and
    gradients where those were wrong.
    """
    return {
        **settings.to_json(),
        "constants": dict(constants),
        "kind": signature["kind"] if signature else None,
        "gradients": any(path.startswith("gradients") for path in (signature or {}).get("outputs", ())),
        "placeholders": list(placeholders),
        "inputs": inputs,
        "tolerances": dict(tolerances or {}),
    }


def script_text(
    record: GraphRecord,
    graph: str,
    signature: Document | None,
    *,
    inputs: Mapping[str, object] | None = None,
    tolerances: Mapping[str, float] | None = None,
    case: str | None = None,
    name: str = "original.py",
    stable: bool = False,
    pasted: bool = False,
    asked: Mapping[str, object] | None = None,
) -> str:
    """The text of a script for `record`, whose graph prints as `graph` and failed with `signature`.

    It needs the file `RUNTIME` beside it, or has the text of that one `pasted` in. Without a signature any failure
    counts. `stable` leaves versions out, so that a test can compare the text; `asked` are the options it has unless it
    is given others.
    """
    facts = script_facts(
        record.settings,
        signature=signature,
        placeholders=record.placeholders,
        inputs=inputs or record.inputs,
        constants=record.constants,
        tolerances=tolerances,
    )
    runtime_imports, runtime = _runtime() if pasted else (("import sys",), "")
    notes = record.embedded.notes
    imports = [*STANDARD_IMPORTS, *record.imports, *record.embedded.imports]
    # The interpreter's own modules first; a set would not keep the text stable.
    sanitizing = sanitizing_lines(record.settings)
    imports += [f"import {name}" for name in ("os", "pathlib", "subprocess") if sanitizing]
    every_import = list(dict.fromkeys([*runtime_imports, *imports]))
    others = "" if pasted else f", {RUNTIME} beside it"
    return template("original.py.jinja").render(
        summary=one_line(signature["summary"]) if signature else "A graph on its way to the compiler.",
        headline=_headline(record),
        version="" if stable else f" {__version__}",
        case=case,
        name=name,
        needs=others or " alone" if not notes else f"{others}, and what the notes below name",
        notes=[one_line(note) for note in notes],
        environment=[] if stable else _environment(record),
        imports=sorted(every_import, key=lambda line: (not line.startswith("import"), line)),
        sanitizing=sanitizing,
        embedded=record.embedded.source.strip(),
        graph=graph.rstrip(),
        facts=_literal({**facts, "asked": dict(asked)} if asked else facts),
        expected=_literal(dict(signature) if signature else None),
        runtime=runtime,
    )


def sanitizing_lines(settings: CompileSettings) -> list[str]:
    """What starts a script again with the sanitizer's library loaded, where its C++ is to be built with it."""
    if not settings.sanitized:
        return []
    return [
        "# The C++ of the graph is built with sanitizers, whose library has to be loaded first.",
        'if "libasan" not in pathlib.Path("/proc/self/maps").read_text():',
        '    compiler = pathlib.Path.home() / ".cache" / "torchsleuth" / "sanitizing" / "c++"',
        "    compiler.parent.mkdir(parents=True, exist_ok=True)",
        f"    compiler.write_text({SANITIZING_CXX!r})",
        "    compiler.chmod(0o755)",
        f"    libraries = [subprocess.getoutput(f'g++ -print-file-name={{name}}.so') for name in {SANITIZERS!r}]",
        '    given = {"CXX": str(compiler), "LD_PRELOAD": " ".join(libraries)}',
        f'    given["ASAN_OPTIONS"] = {SANITIZING!r}',
        "    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **given})",
    ]


def _headline(record: GraphRecord) -> str:
    what = {"aot": "graph after AOTAutograd", "dynamo": "graph as Dynamo captured it"}[record.settings.level]
    lines = record.source_lines
    where = f", from {lines[0]}" + (f" to {lines[-1]}" if len(lines) > 1 else "") if lines else ""
    how = record.settings
    return f"The {how.direction} {what}: {record.calls} calls, backend {how.backend}{where}."


def _environment(record: GraphRecord) -> list[str]:
    versions = record.versions
    lines = [f"torch {versions.get('torch')}, git {versions.get('git')}"]
    if versions.get("cuda"):
        lines.append(
            f"cuda {versions['cuda']}, {', '.join(versions.get('devices') or []) or 'no device used'}"
        )
    return lines


def _literal(value: object) -> str:
    return pprint.pformat(value, width=110, compact=True, sort_dicts=False)


def clock_of_hang(signature: Signature, seconds: float | None) -> list[str]:
    """The lines with which a script of a hang ends by itself, after the clock that it was searched with.

    A wait for a core is no hang, so what counts is what the process computes, or four times that in all. A kernel that
    hangs holds Python's lock: only `faulthandler` can end it, with the same status.

    >>> clock_of_hang(Signature("hang", "run"), 10)[-1]
    'faulthandler.dump_traceback_later(70, exit=True)  # status 1: REPRODUCED'
    """
    if signature.kind != "hang" or not seconds:
        return []
    if signature.phase == "run":  # it has to be compiled first
        in_all = seconds + max(3 * seconds, 60)
        return [f"faulthandler.dump_traceback_later({in_all:.0f}, exit=True)  # status 1: REPRODUCED"]
    return [
        "",
        "def give_up(computed=time.process_time(), began=time.monotonic()):",
        f"    while min(time.process_time() - computed, time.monotonic() - began) < {seconds:.0f}:",
        f"        if time.monotonic() - began > {4 * seconds:.0f}:",
        "            break",
        "        time.sleep(0.1)",
        f"    print({f'REPRODUCED: {signature.summary}'!r}, flush=True)",
        "    os._exit(1)",
        "",
        "threading.Thread(target=give_up, daemon=True).start()",
    ]


def ends_by_itself(script: str) -> bool:
    """Whether a script has the clock of a hang in it: `ends_by_itself("def give_up(): ...")`."""
    return "def give_up(" in script or "faulthandler.dump_traceback_later(" in script


def modules_of_clock(lines: Sequence[str]) -> list[str]:
    """What those lines import: `modules_of_clock([]) == []`."""
    return ["faulthandler"] if len(lines) == 1 else ["os", "threading", "time"] if lines else []


def one_line(text: str) -> str:
    """Text from a failure inside a docstring: no line ends, nothing that could close the docstring."""
    seen = "".join(char if char.isprintable() else " " for char in str(text))
    return " ".join(seen.split()).replace("\\", "/").replace('"""', "'''")


@functools.cache
def template(name: str) -> jinja2.Template:
    """A template of the folder beside this file: `template("original.py.jinja").render(...)`."""
    import jinja2

    folder = Path(__file__).parent / "templates"
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # it writes Python, not HTML
    )
    return environment.get_template(name)


def runtime_text() -> str:
    """The text of the file that scripts of whole graphs have beside them.

    Used as `(folder / RUNTIME).write_text(runtime_text())`.
    """
    imports, body = _runtime()
    return template("runtime.py.jinja").render(version=__version__, imports=sorted(imports), body=body)


@functools.cache
def _runtime() -> tuple[tuple[str, ...], str]:
    """The imports and the text of everything a script carries along."""
    root = Path(__file__).parents[2] / "script_runtime"
    imports: list[str] = []
    bodies: list[str] = []
    for name in RUNTIME_MODULES:
        found, body = split_module((root / name).read_text(encoding="utf-8"))
        imports += found
        bodies.append(body)
    return tuple(dict.fromkeys(imports)), "\n\n".join(bodies)


def split_module(text: str) -> tuple[Sequence[str], str]:
    """The imports of a module, less those of torchsleuth, and its text without imports and docstring.

    >>> split_module('\"\"\"What it is.\"\"\"\\nimport os\\nfrom torchsleuth.x import y\\n\\nA = 1\\n')
    (['import os'], 'A = 1')
    """
    tree = ast.parse(text)
    lines = text.splitlines()
    imports: list[str] = []
    for node in tree.body:
        is_import = isinstance(node, (ast.Import, ast.ImportFrom))
        is_docstring = node is tree.body[0] and isinstance(node, ast.Expr)
        if not (is_import or is_docstring):
            continue
        if isinstance(node, ast.Import):
            imports += [f"import {alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("torchsleuth"):
            imports.append(ast.unparse(node))
        for number in range(node.lineno - 1, node.end_lineno or node.lineno):
            lines[number] = ""
    return imports, "\n".join(lines).strip("\n")


# How a small script tells the failure it is about from any other: a test on the traceback it prints. The signature's
# message is what is left once numbers and names are taken out; the test puts that back into a form that a person can
# read, as strict as the text of a real failure allows: the message as it stands, else its words in order.

# What normalising a message puts in the place of things that change.
_TAKEN_OUT = re.compile(r"\[#\]|\(#\)|#|<\w+>")
# A message is cut at 300 characters; the words before that tell enough, and a person must read them.
MOST_WORDS = 14


@dataclass(frozen=True)
class Marks:
    """A Python expression over `text`, the printed traceback, and the modules it needs."""

    expression: str
    modules: tuple[str, ...] = ()


def marks_of(signature: Signature, text: str = "") -> Marks:
    """The strictest test for `signature` that holds for `text`, the traceback of a real failure.

    >>> marks_of(Signature("compile_error", "compile", ("a.Fault",), "no such op"), "a.Fault: no such op").expression
    "'Fault: no such op' in text"
    """
    kind = "".join(signature.exceptions[-1:]).rpartition(".")[2]
    place = _place(signature)
    tests = _tests(kind, signature.message)
    if text:  # where one error stands for another, that one's type is not in the text
        tests += _tests("", signature.message) if signature.message else []
        tests = [test for test in tests if holds(test.expression, text)]
    # Without a text to check against, the words in order are the strictest test that is sure to hold.
    chosen = (tests if text else tests[-2:]) or [Marks(f"{kind!r} in text")]
    if place and (not text or place in text):
        return replace(chosen[0], expression=f"{chosen[0].expression} and {place!r} in text")
    return chosen[0]


def holds(expression: str, text: str) -> bool:
    """Whether a test of ours is true for a text: `holds("'a' in text", "abc")`."""
    return bool(eval(expression, {"re": re}, {"text": text}))


def _tests(kind: str, message: str) -> list[Marks]:
    """From the strictest to the loosest."""
    head = [f"{kind}:"] if kind else []
    words = message.split()[:MOST_WORDS]
    if not words:
        return [Marks(f"{kind!r} in text")]
    plain = [word for word in words if not _TAKEN_OUT.search(word)]
    literal = f"{kind}: {' '.join(words)}" if kind else " ".join(words)
    longest = sorted({w.strip("'\"`,:;.()") for w in plain if len(w) > 3}, key=lambda w: (-len(w), w))[:2]
    found = []
    if words and plain == words:
        found += [Marks(f"{literal!r} in text")]
    else:
        found += [_pattern(_escaped([*head, *words], " "))]
    found += [_pattern(_escaped([*head, *words], r"\s+")), _pattern(_escaped([*head, *plain], ".*"))]
    return [*found, Marks(" and ".join(f"{word!r} in text" for word in [kind, *longest] if word) or "True")]


def _escaped(words: list[str], between: str) -> str:
    """The words as a pattern: what was taken out may be anything, and any quote is as good as another."""
    parts = []
    for word in words:
        pieces = [re.sub("['\"`]", ".", re.escape(piece)) for piece in _TAKEN_OUT.split(word)]
        parts.append(".*".join(pieces))
    return re.sub(r"(?:\.\*(?:\\s\+| )?)+(?=\.\*)", "", between.join(parts))


def _pattern(pattern: str) -> Marks:
    return Marks(f"re.search({pattern!r}, text, re.S)", ("re",))


def _place(signature: Signature) -> str:
    """The function a failure came from, where its message alone does not tell it from others."""
    elsewhere = replace(signature, frames=("elsewhere/other.py:other",))
    if not signature.frames or fails_the_same_way(signature, elsewhere):
        return ""
    return f"in {signature.frames[0].rpartition(':')[2]}"


def expected_literal(signature: Signature) -> str:
    """What a short script says of the failure it expects, as Python.

    >>> expected_literal(Signature("crash", "compile", signal="SIGSEGV"))
    "{'kind': 'crash', 'phase': 'compile', 'signal': 'SIGSEGV'}"
    """
    doc = {"kind": signature.kind, "phase": signature.phase}
    more = {
        "exceptions": list(signature.exceptions[-1:]),
        "message": signature.message,
        "frames": list(signature.frames[:1]),
        "signal": signature.signal,
    }
    return repr({**doc, **{key: value for key, value in more.items() if value}})
