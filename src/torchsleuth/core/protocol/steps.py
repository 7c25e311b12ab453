"""What the front and its search host say to each other: an order for one step, and what is seen while it is done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torchsleuth.core.changes import Change
from torchsleuth.core.protocol.codec import Document

# In a case: the script that shows the failure, and the folder of those that may become it.
REPRO = "repro.py"
CHECKPOINTS = "checkpoints"


@dataclass(frozen=True, kw_only=True)
class Order:
    """One step of the host's (see `search.host.steps`), and the seconds it may take.

    `leave_out` is what hosts before this one were doing when they ended.
    """

    budget: float = 0.0
    leave_out: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        """Where it may write: that of its case, or of all cases.

        >>> MinifyOrder("cases/3f9a0000").folder
        'cases/3f9a0000'
        """
        raise NotImplementedError


@dataclass(frozen=True)
class AdoptOrder(Order):
    """A script becomes one of the `cases`: it gets `arguments`, and is given up after `timeout` seconds.

    `uncollected` says that Python's garbage collector may be what decides whether it fails. With `known` it becomes no
    case of its own but the program of that one, of which no graph and no call fails by itself.
    """

    script: str
    cases: str
    arguments: tuple[str, ...] = ()
    timeout: float | None = None
    uncollected: bool = False
    known: str = ""

    @property
    def folder(self) -> str:
        return self.known or self.cases


@dataclass(frozen=True)
class CaseOrder(Order):
    """A step that is about a case, by its folder."""

    case: str

    @property
    def folder(self) -> str:
        return self.case


@dataclass(frozen=True)
class TriageOrder(CaseOrder):
    """Who is at fault; what takes many compiles is put off where the graph is about to become small."""

    before_minify: bool = False


@dataclass(frozen=True)
class MinifyOrder(CaseOrder):
    """The smallest that fails the same way."""


@dataclass(frozen=True)
class AnalyzeOrder(CaseOrder):
    """Where a wrong result begins: phases to leave out, and whether every value is kept."""

    without: tuple[str, ...] = ()
    save: bool = False


@dataclass(frozen=True)
class WorkaroundOrder(CaseOrder):
    """What makes the graph pass."""


@dataclass(frozen=True)
class CheckOrder(Order):
    """A program made small for as long as a person's `command` fails on it, whatever that means; written to `out`.

    Each candidate lies in a file: `{}` in the command, or its last word. It fails where `fails_with` is found in what
    the command prints; without that where the command ends as it does for the whole program. It runs where the person
    is, in their environment.
    """

    script: str
    command: tuple[str, ...]
    out: str
    cwd: str
    environment: Mapping[str, str]
    fails_with: str | None = None
    timeout: float | None = None

    @property
    def folder(self) -> str:
        return str(Path(self.out).parent)


TO_HOST = (AdoptOrder, TriageOrder, MinifyOrder, AnalyzeOrder, WorkaroundOrder, CheckOrder)


@dataclass(frozen=True)
class HostStarted:
    """The host's process, by its number."""

    pid: int


@dataclass(frozen=True)
class Begins:
    """What the host is about to do: should it end in that, the next one leaves it out."""

    doing: str


@dataclass(frozen=True)
class Says:
    """A sentence for the person."""

    text: str


@dataclass(frozen=True)
class SearchBegins:
    """How large the failing graph (in "calls") or program (in "lines") is before the search."""

    size: int
    unit: str


@dataclass(frozen=True)
class Asked:
    """A reducer has asked so many trials."""

    reducer: str
    trials: int


@dataclass(frozen=True)
class Smaller:
    """A reducer has made it smaller."""

    reducer: str
    size: int


@dataclass(frozen=True)
class Analyzing:
    """How far a phase of the analysis has come, in values."""

    phase: str
    done: int
    of: int


@dataclass(frozen=True)
class ScriptToVerify:
    """A script under checkpoints/: its form (function, ..., exact), the data files beside it, the bytes in them.

    One that `needs_inputs` finds the case's kept values only in its final place; one of `random` inputs is for where
    eager refuses the plain ones.
    """

    form: str
    files: tuple[str, ...] = ()
    input_bytes: int | None = None
    needs_inputs: bool = False
    random: bool = False

    @property
    def name(self) -> str:
        return f"{CHECKPOINTS}/{self.form}{'_random' if self.random else ''}.py"


@dataclass(frozen=True)
class Verification:
    """The scripts of a search, the most readable first, and how they are to be run: how often, how many at once.

    A failure that does not come `always` holds where it came at all and nothing else did. With `in_eager` a script has
    to pass without the compiler.
    """

    scripts: tuple[ScriptToVerify, ...]
    times: int = 3
    at_once: int = 3
    always: bool = True
    in_eager: bool = True


@dataclass(frozen=True)
class Refused:
    """Why the step cannot be done, in a sentence, and the exit status that goes with it."""

    sentence: str
    status: int


@dataclass(frozen=True)
class Done:
    """The step is done: what the front needs of it at once and cannot read from the case.

    `case` is where an adopted script became one. Of a search: a row for each reducer, seconds by what took them, what
    may vary, what else was seen. `changes` are what was changed for each workaround that the case then has.
    """

    case: str = ""
    reducers: tuple[Document, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    explanation: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()


Seen = Begins | Says | SearchBegins | Asked | Smaller | Analyzing | Verification
FROM_HOST = (
    *(HostStarted, Begins, Says, SearchBegins, Asked, Smaller, Analyzing, Verification),
    *(Refused, Done),
)
