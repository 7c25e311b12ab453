"""The files that a report is: written into the case's folder, or wherever they were wanted."""

from __future__ import annotations

from pathlib import Path

from torchsleuth.core.cases.folder import CaseFolder, put_files
from torchsleuth.front.report.evidence import gather
from torchsleuth.front.report.html import page
from torchsleuth.front.report.issue import issue

PAGE, ISSUE = "report.html", "issue.md"


def write_report(
    folder: CaseFolder, lost: tuple[str, ...] = (), into: Path | None = None
) -> tuple[Path, Path]:
    """Writes page and issue text, and says where: `write_report(open_case("cases", "last"))`.

    `lost` is what of the case could not be read; it stands at the top of the page.
    """
    evidence = gather(folder, lost)
    target = into or folder.path
    put_files(target, {PAGE: page(evidence), ISSUE: issue(evidence)})
    return target / PAGE, target / ISSUE
