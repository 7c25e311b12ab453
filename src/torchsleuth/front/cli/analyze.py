"""`analyze`: where a wrong result begins, how the error grows, and what differs from run to run.

Its picture is an SVG; as PNG it is drawn by cairosvg where that is installed (`torchsleuth[png]`): drawing it a second
time by hand would be a second picture.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import click

from torchsleuth.core.cases.analysis import (
    FILE,
    PICTURE,
    Analysis,
    analysis_from_json,
    require_numbers,
    worst,
)
from torchsleuth.core.cases.door import NotRead
from torchsleuth.core.cases.errors import SleuthError
from torchsleuth.core.cases.folder import CaseFolder, open_case
from torchsleuth.core.protocol.steps import Analyzing, Says, Seen
from torchsleuth.front.cli.options import Function, budget_option, cases_option, json_option, workers_option
from torchsleuth.front.cli.output import LiveLine, print_json, say, show
from torchsleuth.front.cli.triage import show_user_line
from torchsleuth.front.cli.wanted import agree_to, known_case, yes_option
from torchsleuth.front.supervise.case_at_work import CaseAtWork, processes_for
from torchsleuth.front.supervise.road import find_divergence
from torchsleuth.front.supervise.whole_program import adopt

# Phase -> what a person reads while it runs.
DOING = {
    "compile": "compiling",
    "accumulated": "comparing a run as it was",
    "local": "comparing each kernel, given eager's values",
    "determinism": "running it once more",
    "inside": "looking into the kernel",
    "substitution": "putting eager's values in its place",
    "gradients": "looking for the call whose gradient is wrong",
}
BAR = 24
PNG_WIDTH = 1920


class NotAnalyzed(SleuthError):
    """There is no saved analysis to look at."""


def _phase_options(function: Function) -> Function:
    """`--no-PHASE` for each phase that can be left out."""
    for phase in reversed([name for name in DOING if name != "compile"]):
        about = f"Leave out: {DOING[phase]}."
        function = click.option(f"--no-{phase}", f"no_{phase}", is_flag=True, help=about)(function)
    return function


@click.command("analyze")
@click.argument("case_or_script", default="last")
@click.option("--save", is_flag=True, help="Keep every value, and eager's, in the case's folder `values`.")
@click.option("--look", is_flag=True, help="Show the analysis that is in the case; runs nothing.")
@click.option(
    "--png", type=click.Path(path_type=Path, dir_okay=False), help="Write the picture as PNG to this file."
)
@_phase_options
@budget_option(300)
@yes_option
@workers_option
@cases_option
@json_option
def analyze_verb(
    case_or_script: str,
    save: bool,
    look: bool,
    png: Path | None,
    budget: float,
    yes: bool,
    workers: str,
    cases_dir: Path,
    as_json: bool,
    **left_out: bool,
) -> int:
    """Where a wrong result begins.

    Every value that the compiled graph keeps is compared with eager's and with float64 while it runs: as it was, and
    with eager's values given to each kernel. The first kernel that is off by itself is looked into, node by node, and
    proven by putting eager's values in its place. Writes analysis.json and analysis.svg into the case. Executes the
    case, and asks once about one that was not made here (--yes). Status 0 with a culprit, 1 without.

    \b
    torchsleuth analyze last
    torchsleuth analyze 3f9a --look --json
    torchsleuth analyze 3f9a --look --png error.png
    torchsleuth analyze original.py
    """
    write_png = png_writer(png) if png is not None else None
    if look:
        folder = open_case(cases_dir, case_or_script)
    else:
        without = tuple(name.removeprefix("no_") for name, left in left_out.items() if left)
        known = known_case(case_or_script, cases_dir)
        if known is not None:
            agree_to(known, yes)
            require_numbers(known.case)
        folder = _analyzed(known or Path(case_or_script), cases_dir, workers, budget, without, save)
    if not folder.has(FILE):
        raise NotAnalyzed(f"case {folder.case.id} has no analysis yet: torchsleuth analyze {folder.case.id}")
    found = analysis_from_json(folder.json(FILE), str(folder.file(FILE)))
    if write_png is not None and folder.has(PICTURE):
        try:
            write_png(folder.text(PICTURE))
        except NotRead as why:
            raise NoPng(str(why)) from None
    if as_json:
        print_json({**found.to_json(), "path": str(folder.path)})
    else:
        show_analysis(found, folder)
    return 0 if found.culprit is not None else 1


def _analyzed(
    what: CaseFolder | Path,
    cases_dir: Path,
    workers: str,
    budget: float,
    without: tuple[str, ...],
    save: bool,
) -> CaseFolder:
    """The case with its analysis; a script becomes a case first."""
    started = time.monotonic()
    line = PhaseLine()
    folder = what if isinstance(what, CaseFolder) else None
    with processes_for(folder, workers) as processes:
        try:
            folder = folder or adopt(processes, Path(str(what)), cases_dir, budget, line.say)
            left = max(1.0, budget - (time.monotonic() - started))
            case = CaseAtWork(folder, processes, time.monotonic() + left, line.say, line.update)
            find_divergence(case, left, without=without, save=save)
            return case.folder
        except KeyboardInterrupt:
            line.end()
            if folder is not None and folder.has(FILE):
                say(f"stopped; what was found so far: torchsleuth analyze {folder.case.id} --look")
            raise
        finally:
            line.end()


class PhaseLine(LiveLine):
    """A bar for each phase, written over in a terminal; elsewhere one line as a phase begins."""

    def __init__(self) -> None:
        super().__init__()
        self.phase = ""

    def update(self, message: Seen) -> None:
        """What the search host tells: `line.update(Analyzing("local", 3, 10))`."""
        if isinstance(message, Says):
            self.say(message.text)
        if not isinstance(message, Analyzing):
            return
        phase, done, of = message.phase, message.done, message.of
        doing = DOING.get(phase, phase)
        if not self.live:
            if phase != self.phase:
                say(doing)
        else:
            full = BAR * done // of if of else 0
            bar = f" {'█' * full}{'░' * (BAR - full)} {done} of {of} values" if of else ""
            self.write(f"{doing}{bar}")
        self.phase = phase

    def end(self, *, leave: bool = True) -> None:
        super().end(leave=leave)
        self.phase = ""


def show_analysis(found: Analysis, folder: CaseFolder) -> None:
    """For a person: the answer in words, how it is known, the values furthest off, and where the picture is."""
    show(found.words)
    culprit = found.culprit
    if culprit is not None:
        show()
        show_user_line(culprit)
        show(f"node        {culprit.node} = {culprit.op}")
        if culprit.seen_at not in ("", culprit.node):
            show(f"seen at     {culprit.seen_at}, which its kernel makes of {len(culprit.calls)} calls")
        show(f"confirmed   {_confirmed(culprit.confirmed, culprit.how)}")
    if "determinism" in found.seconds and not found.nondeterministic:
        show("two compiled runs agree to the bit")
    if found.values:
        show()
        show("furthest off by their own doing      alone      rounding   as it was  line")
        for value in worst(found):
            show(
                f"  {value.node:<24.24} {_number(value.local_off):>12} {_number(value.local_noise):>11} "
                f"{_number(value.off):>11}  {value.line or ''}"
            )
    show()
    show(_coverage(found))
    if folder.has(PICTURE):
        show(f"picture: {folder.file(PICTURE)}")


def _confirmed(confirmed: bool, how: str) -> str:
    if not confirmed:
        return "no: its calls are right where they are compiled by themselves, only the whole graph's code is wrong"
    if how == "beginning":
        return "its calls are right by themselves; compiled with all that comes before them, they are wrong as well"
    inside = {
        "lowered": "; the node is wrong as Inductor lowers it, before any code is generated",
        "compiled": "; the node is wrong in generated code",
        "gradients": ", with eager's kernels, too",
        "beginnings": "; the node is the first at which a kernel that ends there is wrong",
    }
    return f"its calls, compiled by themselves, are wrong as well{inside.get(how, '')}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1e}"


def _coverage(found: Analysis) -> str:
    text = f"the values of {found.seen} of {found.calls} calls were seen; the others stay inside kernels"
    if found.why_not:
        text += f" ({found.why_not})"
    if found.skipped:
        text += f"; {len(found.skipped)} could not be compared ({next(iter(found.skipped.values()))})"
    if found.fallbacks:
        names = ", ".join(list(found.fallbacks)[:4])
        text += f"; without a float64 kernel, so judged by eager alone: {names}"
    return text


class NoPng(SleuthError):
    """There is nothing here that draws an SVG, or it cannot be written; says what to do."""


def png_writer(path: Path) -> Callable[[str], None]:
    """What writes the text of an SVG to `path` as PNG; raises `NoPng` where nothing can: `png_writer(path)(svg)`."""
    try:
        # OSError: the package is there, the library under it is not.
        import cairosvg
    except (ImportError, OSError):
        raise NoPng(
            "a PNG is drawn by cairosvg, which does not work here: pip install 'torchsleuth[png]'; "
            "the picture as SVG is in the case, and any browser shows it"
        ) from None

    def write(svg: str) -> None:
        try:
            drawn = cairosvg.svg2png(bytestring=svg.encode(), output_width=PNG_WIDTH)
        except Exception as error:  # the case may be a stranger's, and its picture anything
            raise NoPng(f"the case's picture cannot be drawn: {type(error).__name__}: {error}") from None
        try:
            path.write_bytes(drawn)
        except OSError as error:
            raise NoPng(f"{path} cannot be written: {error.strerror}") from None

    return write
