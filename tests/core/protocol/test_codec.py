"""Dataclasses come back from JSON as they were; what another version wrote is read, and what is no such document is not."""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from torchsleuth.core.protocol.codec import WrongShape, from_json, to_json
from torchsleuth.core.protocol.files import growing, write_whole


class Colour(Enum):
    RED = "like a rose"


@dataclass(frozen=True)
class Inner:
    x: int
    pair: tuple[str, int] = ("a", 1)


@dataclass(frozen=True)
class Outer:
    inner: Inner
    many: tuple[Inner, ...] = ()
    named: Mapping[str, Inner] = field(default_factory=dict)
    anything: Mapping[str, Any] = field(default_factory=dict)
    colour: Colour = Colour.RED
    place: Path | None = None
    seconds: float = 0.0


FULL = Outer(
    Inner(1), (Inner(2), Inner(3, ("b", 2))), {"n": Inner(4)}, {"k": [1, {}]}, Colour.RED, Path("a/b"), 2.5
)


def test_a_dataclass_comes_back_as_it_was():
    assert from_json(Outer, json.loads(json.dumps(to_json(FULL)))) == FULL
    assert to_json(FULL)["colour"] == "RED" and to_json(FULL)["place"] == "a/b"


def test_an_unknown_key_is_left_out_and_a_missing_one_has_its_default():
    assert from_json(Outer, {"inner": {"x": 1, "later": 2}, "later": {}}) == Outer(Inner(1))


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ([], "it is not an object"),
        ({}, "'inner' is missing"),
        ({"inner": {}}, "'inner.x' is missing"),
        ({"inner": {"x": True}}, "'inner.x' is bool, not int"),
        ({"inner": {"x": 1}, "many": [{"x": "1"}]}, "'many[0].x' is str, not int"),
        ({"inner": {"x": 1, "pair": ["a"]}}, "'inner.pair' has 1 items, not 2"),
        ({"inner": {"x": 1}, "named": {"n": 1}}, "'named.n' is not an object"),
        ({"inner": {"x": 1}, "colour": "BLUE"}, "'colour' is none of RED"),
        ({"inner": {"x": 1}, "seconds": None}, "'seconds' is NoneType, not float"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(document, why):
    with pytest.raises(WrongShape) as caught:
        from_json(Outer, document)
    assert str(caught.value) == why


def test_a_file_is_whole_or_as_it_was(tmp_path):
    file = tmp_path / "a.json"
    write_whole(file, "old")

    def fails(out):
        out.write(b"ne")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError):
        write_whole(file, fails)
    with pytest.raises(KeyError), growing(file) as part:
        part.write_text("new")
        raise KeyError
    assert [f.name for f in tmp_path.iterdir()] == ["a.json"] and file.read_text() == "old"
    write_whole(file, b"new", mode=0o600)
    assert file.read_text() == "new" and file.stat().st_mode & 0o777 == 0o600
