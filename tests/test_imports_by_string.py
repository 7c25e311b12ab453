"""import-linter sees import statements only: a module that is named in a string must not be a way around it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import torchsleuth

PACKAGE = Path(torchsleuth.__file__).parent
FRONT = ("front", "core")
NAME = re.compile(r"torchsleuth(?:\.\w+)+(?::\w+)?")
# What a front module names and starts as another process; it imports none of them.
STARTED = {
    "core/processes/prepared.py": {"torchsleuth.child.interpreter"},
    "front/supervise/host.py": {"torchsleuth.search.host.main:main"},
    "front/supervise/replay.py": {"torchsleuth.child.program"},
    "front/cli/doctor.py": {
        "torchsleuth.torch_internals.check",
        "torchsleuth.torch_core.compare.verdict.calibrate",
    },
    # The latter for its templates.
    "front/sweep/running.py": {"torchsleuth.search.host.programs_on_ray", "torchsleuth.front.sweep"},
    "core/cases/scrub.py": {"torchsleuth.core.cases"},  # whose shapes of secrets are read
}


def strings_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    values = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return {v for v in values if isinstance(v, str) and NAME.fullmatch(v) and not v.endswith(".json")}


def modules(room: str) -> list[Path]:
    return sorted((PACKAGE / room).rglob("*.py"))


def test_the_front_names_modules_in_strings_only_to_start_them_as_processes():
    for room in FRONT:
        for path in modules(room):
            known = STARTED.get(str(path.relative_to(PACKAGE)), set())
            for name in strings_of(path) - known:
                assert name.startswith("torchsleuth.front.cli."), (
                    path,
                    name,
                )  # its own verbs, loaded when they are used


def test_only_these_import_by_string():
    importing = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if re.search(r"\b(?:import_module|__import__)\(", path.read_text(encoding="utf-8"))
        and path.relative_to(PACKAGE).parts[0] not in ("torch_internals", "script_runtime")
    }
    assert importing == {
        "__init__.py",  # the public names, on first use
        "torch_core/backends/catalog.py",  # the same for backends, which torch finds by entry points
        "front/cli/main.py",  # verbs, on first use
        "child/child.py",  # what a server was told to run
        "child/look.py",  # a part of torch that it waits for
    }
