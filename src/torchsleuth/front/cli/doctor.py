"""`doctor`, `backends`, `calibrate`: what of this machine torchsleuth can use, and what it measures here.

Each line of `doctor` is something that was tried. What torch itself says, and the graphs that `calibrate` compiles, run
in processes of their own: a broken torch must not take the front down.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import click

import torchsleuth
from torchsleuth._version import __version__
from torchsleuth.core.cases.errors import SleuthError
from torchsleuth.core.processes.child import Child, scratch
from torchsleuth.core.processes.starting import python_command
from torchsleuth.core.protocol.codec import Document, from_json
from torchsleuth.front.cli.options import cases_option, json_option
from torchsleuth.front.cli.output import LiveLine, print_json, say, show
from torchsleuth.torch_core.backends.catalog import CATALOG

# As Inductor's kernels: shared, with OpenMP.
_KERNEL = """
#include <omp.h>
extern "C" int f() { return omp_get_max_threads(); }
"""


@dataclass(frozen=True)
class Check:
    """One thing that was looked at: `good` is False where something is missing, with the remedy in `text`.

    Without what is not `needed`, torchsleuth does everything but what the text names.
    """

    name: str
    good: bool
    text: str
    needed: bool = True

    @property
    def word(self) -> str:
        """What stands before it.

        >>> Check("uv", False, "not found", needed=False).word
        'without'
        """
        return "ok" if self.good else "MISSING" if self.needed else "without"


@click.command("doctor")
@click.option(
    "--torch-names",
    is_flag=True,
    help="Instead: which private names of torch are missing here, and what in torchsleuth depends on them.",
)
@click.option(
    "--python",
    default=sys.executable,
    metavar="PATH",
    show_default="this one",
    help="With --torch-names: the Python whose torch is asked, such as that of another environment.",
)
@cases_option
@json_option
def doctor_verb(torch_names: bool, python: str, cases_dir: Path, as_json: bool) -> int:
    """What of this machine torchsleuth can use, and what is missing, each with the fix.

    Status 1 where something is missing that is needed; what is only useful is listed as `without`.

    \b
    torchsleuth doctor
    torchsleuth doctor --json
    torchsleuth doctor --torch-names    # with a new release of torch
    """
    if torch_names:
        return _show_torch_names(python, as_json)
    checks = [
        Check("torchsleuth", True, f"{__version__}, in {Path(torchsleuth.__file__).resolve().parent}"),
        _python(),
        *_torch(),
        _compiler(),
        _headers(),
        _ray(),
        _uv(),
        _folder(cases_dir),
        _stacks(),
    ]
    if as_json:
        print_json([asdict(check) for check in checks])
    else:
        for check in checks:
            show(f"{check.word:<7}  {check.name}: {check.text}")
    return 0 if all(check.good for check in checks if check.needed) else 1


def _show_torch_names(python: str, as_json: bool) -> int:
    """Status 1 where this torch lacks a name."""
    try:
        answer = ask_torch_names(python)
    except TorchUnfit as why:
        raise TorchUnfit(f"torch: {why}") from None
    missing = answer["missing"]
    if as_json:
        print_json(answer)
        return 1 if missing else 0
    for each in missing:
        show(f"MISSING  {each['name']}")
        for use in each["used_by"]:
            show(f"         {use['file']}:{use['line']}: {use['purpose']}")
            if use.get("instead"):
                show(f"         instead: {use['instead']}")
    count = f"{answer['names']} private names of torch that torchsleuth rests on"
    if missing:
        show(f"torch {answer['torch']} lacks {len(missing)} of the {count}; what is named above may not work")
    else:
        show(f"torch {answer['torch']} has all {count}")
    return 1 if missing else 0


def _python() -> Check:
    version = sys.version.split()[0]
    return Check("python", sys.version_info >= (3, 11), f"{version} (3.11 or later is needed)")


def _torch() -> list[Check]:
    try:
        torch = ask_torch()
    except TorchUnfit as why:
        return [Check("torch", False, str(why))]
    release = tuple(int(part) for part in torch.torch.split("+")[0].split(".")[:2] if part.isdigit())
    fits = release >= (2, 11)
    remedy = "its compiler can be watched" if fits else "pip install --upgrade 'torch>=2.11'"
    newer = f", newer than {NEWEST[0]}.{NEWEST[1]}, the last that was tried" if release > NEWEST else ""
    found = [Check("torch", fits, f"{torch.torch} (2.11 or later is needed{newer}); {remedy}")]
    asks = "; what it lacks: torchsleuth doctor --torch-names; newer: pip install --upgrade torchsleuth"
    found += [Check("torch", False, why + asks, needed=False) for why in torch.unwatched]
    found.append(_accelerator(torch))
    if torch.device:
        fix = "not found; Inductor cannot compile for the GPU: pip install triton"
        broken = not torch.triton or torch.triton.startswith("broken")
        found.append(Check("triton", not broken, torch.triton or fix))
        from torchsleuth.front.supervise.settle import compute_sanitizer

        tool = compute_sanitizer()
        says = "not found: of an illegal access the kernel is not named (it comes with the CUDA toolkit)"
        found.append(Check("compute-sanitizer", tool is not None, tool or says, needed=False))
    return found


def _accelerator(torch: TorchHere) -> Check:
    if torch.device:
        return Check("accelerator", True, f"{torch.device}; a kernel ran on it")
    if torch.device_error:
        text = f"there is one, but no kernel runs on it ({torch.device_error}): check the driver"
        return Check("accelerator", False, text)
    text = "no CUDA device; CPU failures only"
    if torch.built_for is None and shutil.which("nvidia-smi"):
        text += ". This torch is built without CUDA: see pytorch.org for the one that fits your driver"
    return Check("accelerator", False, text, needed=False)


def _compiler() -> Check:
    """Whether a C++ compiler makes a kernel such as Inductor writes."""
    tried = dict.fromkeys(name for name in (os.environ.get("CXX"), "g++", "clang++") if name)
    why = "none found"
    for name in filter(shutil.which, tried):
        with tempfile.TemporaryDirectory(dir=scratch()) as folder:
            source = Path(folder, "kernel.cpp")
            source.write_text(_KERNEL, encoding="utf-8")
            command = [
                name,
                "-shared",
                "-fPIC",
                "-fopenmp",
                str(source),
                "-o",
                str(source.with_suffix(".so")),
            ]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=120, errors="replace")
            except (OSError, subprocess.TimeoutExpired) as error:
                why = f"{name} does not run ({error})"
                continue
        if done.returncode == 0:
            return Check("C++ compiler", True, f"{name} compiles a kernel; Inductor needs one for the CPU")
        why = f"{name} compiles no kernel ({(done.stderr.strip().splitlines() or ['no message'])[0]})"
    return Check(
        "C++ compiler", False, f"{why}; Inductor cannot compile for the CPU: install g++ with OpenMP"
    )


def _headers() -> Check:
    header = Path(sysconfig.get_path("include"), "Python.h")
    if header.is_file():
        return Check("Python headers", True, f"{header}; Inductor compiles against them")
    return Check(
        "Python headers", False, f"no {header}; Inductor cannot compile for the CPU: install python3-dev"
    )


def _ray() -> Check:
    if importlib.util.find_spec("ray") is None:
        return Check("ray", False, "no --workers ray: pip install 'torchsleuth[ray]'", needed=False)
    return Check("ray", True, f"{importlib.metadata.version('ray')}, for --workers ray")


def _uv() -> Check:
    path = shutil.which("uv")
    if path is None:
        text = "`bisect` builds environments with venv and pip, which is slower: pip install uv"
        return Check("uv", False, text, needed=False)
    return Check("uv", True, f"{path}, for the environments of `bisect`")


def _folder(cases_dir: Path) -> Check:
    existing = next(p for p in [cases_dir.absolute(), *cases_dir.absolute().parents] if p.exists())
    if not os.access(existing, os.W_OK):
        return Check("cases", False, f"{cases_dir} cannot be written; name another folder with --cases DIR")
    free = shutil.disk_usage(existing).free / 2**30
    remedy = "" if free > 0.5 else "; make room, or name another folder with --cases DIR"
    return Check("cases", free > 0.5, f"{cases_dir}, {free:.1f} GiB free on its disk{remedy}")


def _stacks() -> Check:
    known = hasattr(signal, "SIGRTMAX")
    return Check("stacks of hanging processes", True, "by a real-time signal" if known else "by SIGUSR2")


_CHECK = "torchsleuth.torch_internals.check"
# The last release of torch that the tests were run with.
NEWEST = (2, 15)
SECONDS = 300


class TorchUnfit(SleuthError):
    """There is no torch here whose compiler can be watched."""


@dataclass(frozen=True)
class TorchHere:
    """What torch says of itself: `unwatched` is what of its compiler cannot be, `built_for` a CUDA version, and
    `device_error` why no kernel runs on the device."""

    torch: str
    unwatched: tuple[str, ...] = ()
    built_for: str | None = None
    device: str | None = None
    device_error: str | None = None
    triton: str | None = None
    backends: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()


def ask_torch() -> TorchHere:
    """Version, device, Triton, backends and modes, once every hook was put in: `ask_torch().torch`."""
    return from_json(TorchHere, _ask())


def ask_torch_names(python: str = sys.executable) -> Document:
    """How many private names of torch we rest on, and which are missing here: `ask_torch_names()["missing"]`."""
    return _ask("names", python=python)


def _ask(*arguments: str, python: str = sys.executable) -> dict[str, object]:
    command = [sys.executable, "-P", "-m", _CHECK, *arguments]
    if python != sys.executable:
        command = python_command(python, _CHECK, *arguments)
    elif importlib.util.find_spec("torch") is None:
        raise TorchUnfit("not installed here: pip install 'torch>=2.11'")
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except OSError as why:
        raise TorchUnfit(f"{python} cannot be started ({why})") from why
    except subprocess.TimeoutExpired:
        raise TorchUnfit(f"its compiler cannot be watched here: no answer in {SECONDS} s") from None
    try:
        return dict(json.loads(asked.stdout.strip().splitlines()[-1]))
    except (ValueError, IndexError, TypeError):
        reason = " ".join(asked.stderr.strip().splitlines()[-1:]) or f"status {asked.returncode}"
        raise TorchUnfit(f"its compiler cannot be watched here: {reason}; install it anew") from None


@click.command("backends")
@cases_option
@json_option
def backends_verb(cases_dir: Path, as_json: bool) -> int:
    """The debugging backends: torch.compile(f, backend=NAME), no import of torchsleuth needed.

    \b
    torchsleuth backends
    torchsleuth backends --json
    """
    if as_json:
        print_json(
            [
                {
                    "name": each.name,
                    "description": each.line,
                    "options": [{"name": option.name, "description": option.line} for option in each.options],
                }
                for each in CATALOG
            ]
        )
        return 0
    width = max(len(each.name) for each in CATALOG)
    for each in CATALOG:
        show(f"{each.name:{width}}  {each.line}")
        for option in each.options:
            show(f'{"":{width}}    options={{"{option.name}": …}}: {option.line}')
    return 0


_MEASURE = ("-P", "-m", "torchsleuth.torch_core.compare.verdict.calibrate")


class NotMeasured(SleuthError):
    """The process that compiles the healthy graphs did not come to its end."""


@click.command("calibrate")
@click.option("--device", default="cpu", show_default=True, help="cpu or cuda.")
@click.option(
    "--graphs", type=click.IntRange(1), default=20, show_default=True, help="Healthy graphs per dtype."
)
@click.option("--dry-run", is_flag=True, help="Measure and show, but keep nothing.")
@json_option
def calibrate_verb(device: str, graphs: int, dry_run: bool, as_json: bool) -> int:
    """Measure false alarms and rounding noise over healthy graphs, compiled on this machine.

    The numbers are kept in your cache folder, and every later verdict (`run --check-accuracy`) goes by them. Ctrl-C
    ends it and keeps nothing. A graph takes some seconds to compile.

    \b
    torchsleuth calibrate
    torchsleuth calibrate --device cuda --graphs 60
    """
    started = time.monotonic()
    line = LiveLine()

    def progress(done: int, total: int) -> None:
        left = (time.monotonic() - started) / done * (total - done)
        said = f"{done} of {total} graphs, about {left:.0f} s left"
        if line.live:
            line.write(said)
        elif done == 1:
            say(said)

    try:
        found = _measured([*_MEASURE, device, str(graphs), "try" if dry_run else "keep"], progress)
    finally:
        line.end()
    if as_json:
        print_json(found)
        return 0
    for name, quantiles in found["measured"].items():
        show(f"{name}: {', '.join(f'{key} {value:.4g}' for key, value in quantiles.items())}")
    show(f"kept in {found['path']}" if found["path"] else "nothing kept")
    return 0


def _measured(arguments: list[str], progress: Callable[[int, int], None]) -> Document:
    """The last line of the measuring process; each line before it goes to `progress`."""
    message: Document = {}
    with tempfile.TemporaryFile() as err:
        with Child([sys.executable, *arguments], stdout=subprocess.PIPE, stderr=err) as child:
            for line in child.output or ():
                message = json.loads(line)
                if "done" in message:
                    progress(message["done"], message["total"])
            code = child.wait()
        if code or "measured" not in message:
            err.seek(0)
            raise NotMeasured(_why(code, message, err.read().decode("utf-8", errors="replace")))
    return message


def _why(code: int, message: Document, wrote: str) -> str:
    how = f"was ended by signal {-code}" if code < 0 else f"ended with status {code}"
    where = (
        f"after {message['done']} of {message['total']} graphs"
        if "done" in message
        else "before the first graph"
    )
    last = (wrote.strip().splitlines() or ["it said nothing"])[-1]
    return f"The process that compiles the healthy graphs {how} {where} ({last}), so nothing was kept."
