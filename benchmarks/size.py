"""How large the source is, the walk through it, and what each capability costs: the tables of docs/design.md.

    python benchmarks/size.py --write               # puts them into docs/design.md, between its marks
    python benchmarks/size.py --follow PROGRAM      # runs it under watch: what of ours its failure goes through

The walk is the table "The way of one failing graph": its files, their lines, their folders. --follow notes every
function of ours that any process of the run calls, which takes about twice as long, and keeps them in walk.json: of
the files on the walk, a reader needs these functions. What a capability costs is what nothing would reach any more
without it: a graph of imports (those inside functions and the modules that are named in strings as well), walked from
every module that a person, torch, pytest or another process starts with. What stays and serves it beside others is not
counted, so the sum is less than what dropping several at once would free.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import grimp

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parent / "src" / "torchsleuth"
PAGE = HERE.parent / "docs" / "design.md"
WALKED = HERE / "walk.json"
BLOCK = re.compile(r"(<!-- (?!end )(\S+) -->\n).*?(?=<!-- end -->)", re.DOTALL)
NAMED = re.compile(r"torchsleuth(?:\.\w+)+")

# On PYTHONPATH of every process of the run: each function of ours, once, in one write.
NOTES_FUNCTIONS = """
import os, sys, threading
seen = set()
def note(frame, event, _):
    code = frame.f_code
    if event == "call" and code not in seen:
        seen.add(code)
        _, ours, name = code.co_filename.partition("/src/torchsleuth/")
        if ours and name.endswith(".py") and code.co_name != "<module>":
            out = os.open(os.environ["WALKED"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.write(out, f"{name} {code.co_firstlineno}\\n".encode())
            os.close(out)
sys.setprofile(note)
threading.setprofile(note)
"""

# What is started by itself; the rest is there for these.
STARTED = [
    *("front.cli.main", "api", "assertions", "explained", "notebook", "pytest_plugin", "unsupervised"),
    *("search.host.main", "child.server", "child.interpreter", "child.child", "child.answers"),
    *("watched.install", "watched.startup", "watched.inject.sitecustomize", "torch_core.backends.catalog"),
    *("script_runtime.runner", "__init__", "__main__"),
]
# Capability -> the modules it begins with.
CAPABILITIES: dict[str, tuple[str, ...]] = {
    "`analyze`: where a wrong result begins": (
        *("front.cli.analyze", "search.analyze", "child.divergence", "torch_core.compare.divergence"),
        "core.cases.analysis",
    ),
    "`compare_models`, `same_two_models`": ("search.analyze.models", "torch_core.compare.two_models"),
    "`torch._dynamo.utils.same`'s place": ("torch_core.compare.same",),
    "`calibrate`": ("torch_core.compare.verdict.calibrate",),
    "wrong results, a second opinion": (
        *("torch_core.compare.reference.other_ways", "torch_core.compare.verdict.textbook"),
    ),
    "whole calls compared with eager": (
        *("watched.whole_calls", "watched.call_judge", "watched.call_state"),
        "watched.shadow",
    ),
    "calls that cannot be captured, as programs": (
        *("watched.call_source", "watched.embed_paste", "watched.embed_slice", "watched.value_source"),
        "torch_core.repro.program",
    ),
    "programs made small (`minify` of Python text)": ("search.minify.python", "search.minify.minify_program"),
    "an error of the program's own (whole programs)": ("front.supervise.whole_program",),
    "rewrites that are tried on a program": ("front.supervise.rewrites",),
    "who is at fault, asked of a program": ("front.supervise.program_blame",),
    "`triage`, blame of a graph": ("front.cli.triage", "search.blame"),
    "lowering or code generation? (interpretation)": ("torch_internals.inductor_ir",),
    "workarounds of a graph": ("search.cure",),
    "what may vary (`explain` of a search)": ("search.minify.explain",),
    "a repeated body as a loop": ("torch_core.repro.loops",),
    "small scripts": (
        "torch_core.repro.small",
        "torch_core.repro.small_graph",
        "torch_core.repro.small_body",
    ),
    "scripts of PyTorch's minifier": ("torch_internals.minifier_scripts",),
    "`explain`, graph breaks": ("front.observe.breaks", "front.observe.break_reasons"),
    "`recompiles`": ("front.observe.recompiles", "front.supervise.cures"),
    "`profile`": ("front.observe.profile", "front.observe.profile_text"),
    "`trace`": ("front.cli.trace", "front.observe.trace", "watched.observe.texts"),
    "`explain`, `recompiles`, `profile` and `trace`": (
        *("front.cli.explain", "front.cli.trace", "front.observe", "watched.observe", "explained"),
        *("front.cli.observed", "front.supervise.cures"),
    ),
    "`explain(fn)` in Python": ("explained",),
    "`sweep`": ("front.cli.sweep", "front.sweep"),
    "`bisect`": ("front.cli.bisect", "front.bisect"),
    "Ray": ("search.workers.cluster", "search.host.programs_on_ray"),
    "pytest plugin, assertions": ("pytest_plugin", "assertions"),
    "page of a case": ("front.report.html", "front.report.drawing", "front.report.graph_reading"),
    "issue text": ("front.report.issue",),
    "`pack`, secrets hidden": ("core.cases.packing", "core.cases.scrub"),
    "`replay` of a recorded frame": ("front.supervise.replay",),
    "debugging backends": ("torch_core.backends",),
    "`doctor`": ("front.cli.doctor",),
    "for editors, agents and notebooks": ("front.cli.agent", "notebook"),
    "looks at graphs in a process beside the program": ("watched.checker", "child.look"),
    "cases without a front": ("unsupervised",),
    "releases of torch that differ": ("core.cases.releases",),
}

# Who would miss it: a verb or line of README, a name of the Python interface, or the number that decided (notes/what-parts-earn.md).
RESTS_ON_IT: dict[str, str] = {
    "`analyze`: where a wrong result begins": "verb `analyze`",
    "`compare_models`, `same_two_models`": "Python interface",
    "`torch._dynamo.utils.same`'s place": "Python interface",
    "`calibrate`": "verb `calibrate`",
    "wrong results, a second opinion": "no false alarm in 1,588 healthy models; 1 in 20 before",
    "whole calls compared with eager": "README: wrong numbers though every graph is right",
    "calls that cannot be captured, as programs": "README: Dynamo raises before there is a graph",
    "programs made small (`minify` of Python text)": "verb `minify script.py`",
    "an error of the program's own (whole programs)": "README: the program's own bug",
    "rewrites that are tried on a program": "README: lines to paste that were tried",
    "who is at fault, asked of a program": "verb `triage train.py`",
    "`triage`, blame of a graph": "verb `triage`",
    "lowering or code generation? (interpretation)": "part of 11 of 39 programs, wrong for 3 without it",
    "workarounds of a graph": "verb `workaround`",
    "what may vary (`explain` of a search)": "docs/minify.md: what may vary",
    "a repeated body as a loop": "2 of 41 scripts: 51 and 53 lines",
    "small scripts": "README: `repro.py`",
    "scripts of PyTorch's minifier": "docs/coming-from.md",
    "`explain`, graph breaks": "verb `explain`",
    "`recompiles`": "verb `recompiles`",
    "`profile`": "verb `profile`",
    "`trace`": "verb `trace`",
    "`explain`, `recompiles`, `profile` and `trace`": "four verbs",
    "`explain(fn)` in Python": "Python interface",
    "`sweep`": "verb `sweep`",
    "`bisect`": "verb `bisect`",
    "Ray": "option `--workers ray`",
    "pytest plugin, assertions": "README: a test fails under `torch.compile`",
    "page of a case": "verb `report`",
    "issue text": "verb `report`",
    "`pack`, secrets hidden": "verb `pack`",
    "`replay` of a recorded frame": "verb `replay`",
    "debugging backends": "verb `backends`",
    "`doctor`": "verb `doctor`",
    "for editors, agents and notebooks": "verb `mcp`",
    "looks at graphs in a process beside the program": "`--check-accuracy` on a GPU",
    "cases without a front": "Python interface: `save_repro`",
    "releases of torch that differ": "docs/bisect.md",
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="into docs/design.md")
    parser.add_argument("--follow", type=Path, metavar="PROGRAM", help="a program that fails")
    options = parser.parse_args()
    if options.follow:
        follow(options.follow.resolve())
    page = PAGE.read_text()
    tables = {"walk": walk_table(page), "source": source_table(), "capabilities": capability_table()}
    for name, table in tables.items():
        print(f"{name}\n{table}")
    if options.write:
        PAGE.write_text(BLOCK.sub(lambda block: block[1] + tables[block[2]], page))


def lines_of(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def files_of_walk(page: str) -> list[Path]:
    """The files that the walk names, each once; a name that is not there is a mistake."""
    _, _, rest = page.partition("## The way of one failing graph")
    table = [line for line in rest.partition("\n## ")[0].splitlines() if line.startswith("| ")]
    names = dict.fromkeys(re.findall(r"`(\w+/[\w/]+\.py)`", "\n".join(table)))
    for name in names:
        assert (SOURCE / name).is_file(), f"docs/design.md names {name}, which is not there"
    return [SOURCE / name for name in names]


def follow(program: Path) -> None:
    """Runs a program to the end of its case, and keeps the lines of the functions that were called, by file."""
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "sitecustomize.py").write_text(NOTES_FUNCTIONS)
        environment = {**os.environ, "PYTHONPATH": place, "WALKED": f"{place}/walked"}
        command = [sys.executable, "-m", "torchsleuth", "run", "--workers", "1", "--cases", f"{place}/cases"]
        subprocess.run([*command, program], env=environment, cwd=place, check=False)
        called: dict[str, set[int]] = {}
        for line in (Path(place) / "walked").read_text().splitlines():
            name, number = line.split()
            called.setdefault(name, set()).add(int(number))
    lines = {
        name: len(_lines_of_functions(SOURCE / name, numbers)) for name, numbers in sorted(called.items())
    }
    WALKED.write_text(json.dumps({"program": program.name, "lines": lines}, indent=1) + "\n")


def _lines_of_functions(path: Path, first_lines: set[int]) -> set[int]:
    found: set[int] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            if first in first_lines:
                found |= set(range(first, (node.end_lineno or first) + 1))
    return found


def walk_table(page: str) -> str:
    files = files_of_walk(page)
    folders = {path.parent for path in files}
    rooms = {path.relative_to(SOURCE).parts[0] for path in files}
    total = sum(map(lines_of, files))
    walked = json.loads(WALKED.read_text())["lines"]
    called = sum(walked.get(str(path.relative_to(SOURCE)), 0) for path in files)
    return (
        f"They are {len(files)} files of {total:,} lines, in {len(rooms)} rooms ({len(folders)} folders). The "
        f"functions of them that this failure goes through have {called:,} lines; of all {len(walked)} files "
        f"that it goes through, {sum(walked.values()):,} (measured by `benchmarks/size.py --follow`).\n"
    )


def source_table() -> str:
    files = list(SOURCE.rglob("*.py"))
    largest = max(map(lines_of, files))
    return f"{sum(map(lines_of, files)):,} lines in {len(files)} files, the largest of {largest}.\n"


def imports_of_package() -> dict[str, set[str]]:
    """Module -> what it imports, names in a string, or lies in."""
    graph = grimp.build_graph("torchsleuth", exclude_type_checking_imports=True, cache_dir=None)
    names = {_short(name) for name in graph.modules}
    found: dict[str, set[str]] = {}
    for name in graph.modules:
        path = _path(_short(name))
        strings = {
            _short(named)
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
            for named in NAMED.findall(node.value)
        }
        below = {_short(each) for each in graph.find_modules_directly_imported_by(name)}
        found[_short(name)] = (below | strings) & names
    # Verbs are named by their module alone.
    found["front.cli.main"] |= {name for name in names if name.startswith("front.cli.")}
    return found


def _short(name: str) -> str:
    return name.removeprefix("torchsleuth").removeprefix(".") or "__init__"


def _path(name: str) -> Path:
    if name == "__init__":
        return SOURCE / "__init__.py"
    path = SOURCE.joinpath(*name.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def reached(imports: dict[str, set[str]], without: set[str]) -> set[str]:
    """The modules that are there for something, with some taken out."""
    found: set[str] = set()
    waiting = [name for name in STARTED if name in imports]
    while waiting:
        name = waiting.pop()
        if name not in found and name not in without:
            found.add(name)
            waiting += imports[name]
            if "." in name:
                waiting.append(name.rpartition(".")[0])
    return found


def capability_table() -> str:
    imports = imports_of_package()
    everything = reached(imports, set())
    rows = []
    for capability, begins in CAPABILITIES.items():
        seeds = {
            name for name in imports if any(name == each or name.startswith(f"{each}.") for each in begins)
        }
        assert seeds, capability
        gone = (everything - reached(imports, seeds)) | seeds
        own = sum(lines_of(_path(name)) for name in seeds)
        rows.append((sum(lines_of(_path(name)) for name in gone), len(gone), own, capability))
    lines = [
        "| dropped | lines that go | files | of them where it begins | who would miss it |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {what} | {total:,} | {files} | {own:,} | {RESTS_ON_IT[what]} |"
        for total, files, own, what in sorted(rows, reverse=True)
    ]
    unreached = sorted(set(imports) - everything)
    print("reached by nothing:", unreached)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
