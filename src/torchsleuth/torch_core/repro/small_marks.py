"""How a small script tells the failure it is about from any other: a test on the traceback it prints.

The signature's message is what is left once numbers and names are taken out; the test puts that back into a form that a
person can read, as strict as the text of a real failure allows: the message as it stands, else its words in order.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from torchsleuth.script_runtime.signature import Signature, fails_the_same_way

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
