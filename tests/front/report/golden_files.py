"""Texts as they were agreed on. After a change that is meant: `TORCHSLEUTH_WRITE_GOLDEN=1 pytest tests/front/report`."""

import os
from pathlib import Path

from torchsleuth._version import __version__

FOLDER = Path(__file__).parent / "golden"


def agreed(name: str, text: str) -> tuple[str, str]:
    """The text, and the one that was agreed on."""
    text = text.replace(__version__, "VERSION")
    if os.environ.get("TORCHSLEUTH_WRITE_GOLDEN"):
        (FOLDER / name).write_text(text, encoding="utf-8")
    return text, (FOLDER / name).read_text(encoding="utf-8")
