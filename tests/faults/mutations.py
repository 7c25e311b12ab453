"""Cases as they come out of a bad disk, a bad transfer or a bad hand: a real one with a few things in it changed.

A mutation is data - which file, what is done there, with what - so that Hypothesis can make a
failing one small and print it, and a loop can try it by the thousand.
"""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

# What a document may hold where something else is expected.
ODD: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63), 10**18, 0.5, -1e300, 1e-320, "", "x", "\0", "\ud800", "\u202e", "\x1b[2J",
    "[/bold]", "<script>", "%s{}", "../../etc/passwd", "/etc/passwd", "-1", "1e999", "nan", "float32", "sym", "tensor", "torch.",
    "cuda:99", "a\nb\nc", "é" * 40, "x" * 5000, [], [None], [[]], [1, "x", None], [[[[]]]], {}, {"": None}, {"kind": "x"},
    {"x": {"y": {"z": []}}}, [0] * 200, list("abc"), [-1, 2**62],
]  # fmt: skip
RAW = [b"", b"\0", b"\xff\xfe", b"NaN", b"1e999", b"[" * 3000, b'{"a":' * 2000, b"\xed\xa0\x80", b"\r", b"\n\n", b"'", b'"""', b"\\",
       b"(" * 300, b"def ", b"class A(", b"lambda: " * 200, b"1" * 5000, b"-" * 3000 + b"1", b"0x", b"\t \t", b"\xc3"]  # fmt: skip


@dataclass(frozen=True)
class Mutation:
    """One change: the file by its place in the list of files, where in it, what, and what with."""

    file: int
    how: str
    where: int
    what: int

    def of(self, data: bytes, is_json: bool) -> bytes | None:
        """The content as it is afterwards; None where the file goes."""
        if is_json and self.how in _OF_DOCUMENTS:
            try:
                doc = json.loads(data)
            except (ValueError, RecursionError):
                return data
            holders = list(_places(doc))
            if holders:
                holder, key = holders[self.where % len(holders)]
                _OF_DOCUMENTS[self.how](holder, key, ODD[self.what % len(ODD)])
            elif self.how == "replace":
                doc = ODD[self.what % len(ODD)]
            return json.dumps(doc).encode("utf-8", "surrogatepass")
        at = self.where % (len(data) + 1)
        match self.how:
            case "gone":
                return None
            case "cut":
                return data[:at]
            case "flip":
                return (
                    data[:at] + bytes([data[at] ^ (1 << self.what % 8)]) + data[at + 1 :]
                    if at < len(data)
                    else data
                )
            case "twice":
                return data[:at] + data[max(0, at - 40) :]
        return data[:at] + RAW[self.what % len(RAW)] + data[at + self.what % 7 :]


def _rename(holder: Any, key: Any, value: Any) -> None:
    if isinstance(holder, dict):
        holder[str(value)] = holder.pop(key)


def _replace(holder: Any, key: Any, value: Any) -> None:
    holder[key] = value


def _delete(holder: Any, key: Any, _: Any) -> None:
    del holder[key]


def _wrap(holder: Any, key: Any, value: Any) -> None:
    holder[key] = [holder[key]] if value is None else {"x": holder[key]}


def _copy(holder: Any, key: Any, _: Any) -> None:
    if isinstance(holder, list):
        holder[key:key] = [holder[key]] * 3
    else:
        holder[key] = next(iter(holder.values()))


_OF_DOCUMENTS = {"replace": _replace, "delete": _delete, "rename": _rename, "wrap": _wrap, "copy": _copy}
HOW = [*_OF_DOCUMENTS, *_OF_DOCUMENTS, "replace", "insert", "cut", "flip", "twice", "gone"]
MUTATIONS = st.lists(
    st.builds(Mutation, st.integers(0, 63), st.sampled_from(HOW), st.integers(0, 4095), st.integers(0, 255)),
    min_size=1,
    max_size=3,
)


def _places(doc: Any) -> Any:
    """Every place of a document that holds something: (dictionary or list, key or number)."""
    keys = doc.keys() if isinstance(doc, dict) else range(len(doc)) if isinstance(doc, list) else ()
    for key in keys:
        yield doc, key
        yield from _places(doc[key])


def read_tree(folder: Path) -> dict[str, bytes]:
    """The files of a folder: `read_tree(case)["case.json"]`."""
    files = sorted(
        p for p in folder.rglob("*") if p.is_file() and not p.is_symlink() and p.name != ".made-here"
    )
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in files if p.stat().st_size < 1 << 18}


def mutated(files: dict[str, bytes], mutations: list[Mutation], only: str = "") -> dict[str, bytes]:
    """The files after the mutations, of those whose name begins with `only`."""
    names = sorted(name for name in files if name.startswith(only))
    found = dict(files)
    for mutation in mutations:
        name = names[mutation.file % len(names)]
        if name in found:
            changed = mutation.of(found.pop(name), name.endswith((".json", ".jsonl")))
            found |= {} if changed is None else {name: changed}
    return found


def write_tree(folder: Path, files: dict[str, bytes]) -> None:
    """Puts the files there: `write_tree(case, {"case.json": b"{}"})`."""
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def packed(case_id: str, files: dict[str, bytes]) -> bytes:
    """A case as `torchsleuth pack` writes it, without what that one takes out."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(f"{case_id}/{name}", data)
    return out.getvalue()
