"""Text from a case, made safe to show in a terminal.

A case may come from a stranger, and so may its strings: escape sequences that move the cursor, control
characters, marks that turn the reading direction.  Whoever prints a string of a case passes it through here.
"""

import re
import unicodedata

_ESCAPE = re.compile(
    r"(?:\x1b\[|\x9b)[0-9;:<=>?]*[ -/]*[@-~]|(?:\x1b\]|\x9d)[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
)
# Cc control, Cf direction and invisible marks, Cs half a surrogate pair, Co private use, Cn unassigned.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


# What a person reads of one value; a stranger's may be megabytes long.
MOST = 4000


def printable(text: str, lines: bool = False, most: int = MOST) -> str:
    """The text without anything a terminal would obey: `printable("a\\x1b[31mb\\nc") == "ab c"`.

    Newlines and tabs become spaces, unless `lines` keeps them. Of a long text the beginning is kept.
    """
    rest = len(text) - most
    text = text if rest <= 0 else text[:most]
    if not text.isprintable():
        text = _ESCAPE.sub("", text.replace("\r\n", "\n"))
        text = "".join(_shown(char, lines) for char in text)
    return text if rest <= 0 else f"{text} … and {rest} more characters"


def _shown(char: str, lines: bool) -> str:
    if char in "\n\t":
        return char if lines else " "
    return "" if unicodedata.category(char) in _HIDDEN else char
