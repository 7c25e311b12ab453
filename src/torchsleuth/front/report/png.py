"""The picture of an analysis as PNG, drawn from the SVG by cairosvg where that is installed (`torchsleuth[png]`).

An SVG is drawn by one library with fonts, or not at all: drawing it a second time by hand would be a second picture.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torchsleuth.core.cases.errors import SleuthError

WIDTH = 1920


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
            drawn = cairosvg.svg2png(bytestring=svg.encode(), output_width=WIDTH)
        except Exception as error:  # the case may be a stranger's, and its picture anything
            raise NoPng(f"the case's picture cannot be drawn: {type(error).__name__}: {error}") from None
        try:
            path.write_bytes(drawn)
        except OSError as error:
            raise NoPng(f"{path} cannot be written: {error.strerror}") from None

    return write
