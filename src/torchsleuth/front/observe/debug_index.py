"""What lies in the debug folder of a run: the stages of each graph in the order in which it went through them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

# Stage -> (ending of the file, what it is); in the order of the compile. `{}` is forward, backward or inference.
_STAGES = {
    "bytecode": ("txt", "the frame's bytecode"),
    "captured": ("py", "the graph as Dynamo captured it, readable"),
    "captured-runnable": ("py", "the same, as a script that runs by itself"),
    "captured-diagram": ("svg", "the same, as a drawing"),
    "joint": ("py", "forward and backward as one graph"),
    "{}-graph": ("py", "the {} graph after AOTAutograd, readable"),
    "{}-runnable": ("py", "the {} graph, as a script that runs by itself"),
    "{}-diagram": ("svg", "the {} graph, as a drawing"),
    "{}-transformed": ("py", "the {} graph after Inductor's passes"),
    "{}-ir-before-fusion": ("txt", "its loops before they are fused"),
    "{}-ir-after-fusion": ("txt", "its loops after they were fused"),
    "{}-code": ("py", "the code that was generated"),
    "{}-compile-profile": ("txt", "where Python spent the time while it was compiled"),
    "new-bytecode": ("txt", "the bytecode that runs instead"),
}
DIRECTIONS = ("inference", "forward", "backward")
_ORDER = [
    name.format(direction)
    for position, direction in enumerate(DIRECTIONS)
    for name in _STAGES
    if "{}" in name or position == 0
]


# Process, torch's id of the compile, how often that id was used before.
Compile = tuple[int, str, int]


@dataclass(frozen=True)
class Artefact:
    """One file of the debug folder. `stage` is a name of `stage_of`; `text` what is in it."""

    compile: Compile
    stage: str
    text: str

    @property
    def graph(self) -> str:
        return self.compile[1]


def stage_of(what: str, direction: str | None) -> str:
    """The stage of something a collector kept while a graph of that direction was in Inductor's hands.

    >>> stage_of("code", "backward"), stage_of("captured", None), stage_of("forward-graph", None)
    ('backward-code', 'captured', 'forward-graph')
    """
    return f"{direction or 'forward'}-{what}" if f"{{}}-{what}" in _STAGES else what


def about(stage: str) -> tuple[str, str]:
    """(ending, description) of a stage.

    >>> about("backward-code")
    ('py', 'the code that was generated')
    """
    direction = next((each for each in DIRECTIONS if stage.startswith(f"{each}-")), None)
    name = stage if direction is None else "{}" + stage.removeprefix(direction)
    ending, words = _STAGES.get(name, ("txt", stage))
    return ending, words.format(direction)


@dataclass(frozen=True)
class Placed:
    """An artefact and where it goes: `folder/name`."""

    folder: str
    name: str
    artefact: Artefact

    @property
    def path(self) -> str:
        return f"{self.folder}/{self.name}"


def placed(artefacts: Iterable[Artefact], functions: Mapping[Compile, str]) -> list[Placed]:
    """Numbered names, a folder for each compile; `functions` says which function each was for."""
    groups: dict[Compile, list[Artefact]] = {}
    for each in artefacts:
        groups.setdefault(each.compile, []).append(each)
    several = len({pid for pid, _, _ in groups}) > 1
    found = []
    for (pid, graph, again), members in groups.items():
        function = re.sub(r"[^\w.]+", "_", functions.get((pid, graph, again), ""))[:60].strip("._")
        words = [graph.replace("/", "_").replace("!", "a"), function, f"reset{again}" if again else ""]
        words.append(f"process{pid}" if several else "")
        folder = "-".join(word for word in words if word)
        ranked = sorted(members, key=lambda each: _rank(each.stage))
        found += [
            Placed(folder, f"{number:02d}-{each.stage}.{about(each.stage)[0]}", each)
            for number, each in enumerate(ranked, 1)
        ]
    return found


def _rank(stage: str) -> int:
    # The bytecode that runs in the end comes after everything.
    if stage == "new-bytecode" or stage not in _ORDER:
        return len(_ORDER)
    return _ORDER.index(stage)


def index_markdown(
    title: str, files: Sequence[Placed], functions: Mapping[Compile, str], notes: Sequence[str]
) -> str:
    """The index of the folder, for a person."""
    lines = [f"# {title}", ""]
    if not files:
        lines += ["Nothing was compiled, or nothing was asked for.", ""]
    folders = dict.fromkeys(each.folder for each in files)
    for folder in folders:
        members = [each for each in files if each.folder == folder]
        first = members[0].artefact
        function = functions.get(first.compile, "")
        lines += [f"## {first.graph} {_plain(function)}".rstrip(), "", "| file | what it is |", "|---|---|"]
        lines += [f"| [{each.name}]({each.path}) | {about(each.artefact.stage)[1]} |" for each in members]
        lines.append("")
    return "\n".join([*lines, *(f"- {note}" for note in notes), ""])


def _plain(text: str) -> str:
    return "".join(char if char.isalnum() or char in "._ " else " " for char in text)
