"""Runs small programs under `torchsleuth run`, as a person would, and bare, for comparison."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HOOK = Path(__file__).parent / "hook"
# What a person types, as this interpreter runs it; the plugin is this tree's, whatever is installed.
TYPED = {
    "python": [],
    "torchsleuth": ["-m", "torchsleuth"],
    "pytest": ["-m", "pytest", "-p", "torchsleuth.pytest_plugin", "-p", "no:torchsleuth", "-p", "no:xdist"],
}


@dataclass(frozen=True)
class Ran:
    """What a program did: exit status, output, and the cases it left."""

    status: int
    stdout: str
    stderr: str
    cases: list[dict[str, Any]]
    folder: Path

    @property
    def case(self) -> dict[str, Any]:
        assert len(self.cases) == 1, (self.cases, self.stderr)
        return self.cases[0]

    def file(self, name: str, case: dict[str, Any] | None = None) -> str:
        return (self.folder / "cases" / (case or self.case)["id"] / name).read_text()

    def ours(self) -> list[str]:
        # A CUDA build of torch may end with a line of nanobind's that has no end.
        lines = self.stderr.replace("refleaks.htmltorchsleuth:", "refleaks.html\ntorchsleuth:").splitlines()
        return [line for line in lines if line.startswith("torchsleuth:")]


def write_program(folder: Path, source: str, name: str = "program.py") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(textwrap.dedent(source))
    return path


def environment(folder: Path, fault: str | None = None, **more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("TORCHSLEUTH_", "TORCHINDUCTOR_"))}
    paths = dict.fromkeys([str(HOOK), *filter(None, kept.get("PYTHONPATH", "").split(os.pathsep))])
    found = {**kept, "PYTHONPATH": os.pathsep.join(paths), "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache")}
    from torchsleuth.core.processes.kernel_caches import hand_probes_to

    hand_probes_to(folder / "cache")
    if fault:
        found["SLEUTH_TEST_FAULT"] = fault
    return {**found, **more}


def sleuth(*arguments: str | Path, cwd: Path, env: dict[str, str] | None = None, timeout: float = 280) -> Ran:
    """`torchsleuth ARGUMENTS` in `cwd`, with the cases in `cwd/cases`."""
    command = [sys.executable, "-m", "torchsleuth", *map(str, arguments)]
    full = {**(env or environment(cwd)), "TORCHSLEUTH_CASES": str(cwd / "cases")}
    ran = subprocess.run(
        command, cwd=cwd, env=full, capture_output=True, text=True, timeout=timeout, errors="replace"
    )
    cases = []
    for path in sorted((cwd / "cases").glob("*/case.json")):
        with contextlib.suppress(ValueError):  # a case damaged on purpose
            cases.append(json.loads(path.read_text()))
    return Ran(ran.returncode, ran.stdout, ran.stderr, cases, cwd)


def run_watched(
    folder: Path,
    source: str,
    *options: str,
    fault: str | None = None,
    arguments: tuple[str, ...] = (),
    **env: str,
) -> Ran:
    """Writes `source` as a program and runs it under watch; makes cases smaller only where `--minify` asks for it."""
    program = write_program(folder, source)
    wants = "--minify" in options
    options = tuple(o for o in options if o != "--minify") if wants else ("--no-minify", *options)
    return sleuth(
        "run", *options, program.name, *arguments, cwd=folder, env=environment(folder, fault, **env)
    )


def run_bare(
    folder: Path, source: str, fault: str | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    """The same program without torchsleuth."""
    program = write_program(folder, source)
    return subprocess.run(
        [sys.executable, program.name],
        cwd=folder,
        env=environment(folder, fault, **env),
        capture_output=True,
        text=True,
        timeout=280,
    )


def run_typed(
    line: str, cwd: Path, env: dict[str, str] | None = None, timeout: float = 280
) -> subprocess.CompletedProcess[str]:
    """Runs a line of the documentation as it stands there: `run_typed("pytest -q test_model.py", tmp_path)`."""
    first, *rest = shlex.split(line)
    return subprocess.run(
        [sys.executable, *TYPED[first], *rest],
        cwd=cwd,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
    )
