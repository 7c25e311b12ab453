"""A number and what it counts, as one writes it."""

from __future__ import annotations


def counted(number: int, thing: str) -> str:
    """The number with the word in its singular or plural.

    >>> counted(1, "graph"), counted(0, "graph")
    ('1 graph', '0 graphs')
    """
    return f"{number} {thing}{'' if number == 1 else 's'}"
