"""The contract between whoever searches and whoever runs: one Trial in, one Outcome out, and the messages around them.

A Trial is plain data, so that it can go to another process or machine: a graph as source, its inputs by
description (values lie in a tensor store both sides can read), the settings, and the failure looked for. An
Outcome says how it failed, if it did; a crash, a hang or a kill is an Outcome like any other.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from torchsleuth.core.cases.record import CompileSettings
from torchsleuth.core.changes import NOTHING, Change
from torchsleuth.core.criteria import SAME
from torchsleuth.core.processes.limits import Limits
from torchsleuth.core.protocol.codec import Document, from_json, plain
from torchsleuth.core.protocol.frames import Become, Join, Kill
from torchsleuth.script_runtime.signature import Signature

# The phase of a failure without the compiler.
EAGER = "eager"


class Question(Enum):
    """What a trial asks. All but the first are what a search needs and must not find out in its own process."""

    FAILS = "does it fail, and how"
    RECORD = "what every node yields in eager"
    RECORD_FAKE = "what every node would yield, by shape alone"
    SHAPES = "do shapes and dtypes go together"
    NOISE = "how far rounding alone moves the results"
    DEFINITIONS = "the user's operators that the graph calls"
    EAGER_SECONDS = "how long a run without the compiler takes"
    FOREIGN_SCRIPT = "what a script of PyTorch's minifier holds"
    PROGRAM = "does a whole program fail, and how"
    DIVERGENCE = "where its compiled run leaves eager's way"


@dataclass(frozen=True)
class AnalysisWishes:
    """Of an analysis: a file that is told its parts on the way, a folder for what it compares, phases to leave out."""

    told: str | None = None
    values: str | None = None
    without: tuple[str, ...] = ()


@dataclass(frozen=True)
class Trial:
    """One question: does this graph, on these inputs, under these settings, fail, and how?

    `graph` is the printed graph; `embedded` is source of the user's own definitions; `inputs` and `constants` are
    descriptions, as `tensors.specs` writes them, of tensors whose kept values lie in the folder `store`.
    """

    graph: str
    expected: Signature
    settings: CompileSettings = field(default_factory=CompileSettings)
    placeholders: tuple[str, ...] = ()
    inputs: Document = field(default_factory=dict)
    constants: Document = field(default_factory=dict)
    tolerances: Mapping[str, float] = field(default_factory=dict)
    # Checks as for this kind of failure ("accuracy": against eager); None for the kind that is expected.
    kind: str | None = None
    # What is different in the compiler.
    change: Change = NOTHING
    time_runs: bool = False
    embedded: str = ""
    imports: tuple[str, ...] = ()
    store: str | None = None
    # Once the phase in which the original failed has passed, the rest is not run.
    stop_early: bool = True
    # Results are compared by what rounding noise explains, measured first; `tolerances` go before that.
    measure_noise: bool = False
    # What fails without the compiler as well is not the failure looked for: it is one of phase EAGER.
    must_pass_in_eager: bool = False
    question: Question = Question.FAILS
    analysis: AnalysisWishes = AnalysisWishes()
    # A file for the steps of the compile.
    trace: str | None = None
    # The byte that fresh memory holds, so that what nobody wrote is not the same twice.
    fill: int = 0

    @property
    def key(self) -> str:
        """Equal for trials that ask the same question; the name under which an answer is remembered.

        >>> Trial("", Signature("crash", "run")).key == Trial("", Signature("crash", "run")).key
        True
        """
        asked = {**plain(self), "store": None}  # where the values lie is no part of the question
        return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Seen:
    """What a run has shown beside how it failed; of what was not looked at, the default."""

    # Seconds apart from those in which it stood in line for a core, and bytes of memory at most.
    had: float | None = None
    peak_memory: int = 0
    # Seconds of computing, of a whole program.
    cpu: float = 0.0
    # Why its process was ended by us ("memory", "processes"), or the clock that it outlasted.
    ended_for: str | None = None
    clock: float | None = None
    # It was not run to its end, because it was decided before.
    stopped_early: bool = False
    # The fastest run of what was compiled.
    run_seconds: float | None = None
    # By subsystem, what of it the compiler applied, in order; switches that this torch does not have.
    applied: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    not_interpretable: bool = False
    # Of a run without the compiler: the node at which it failed.
    node: str | None = None
    # How far rounding alone moves the results, where that was measured first (`compare.verdict.tolerances`).
    tolerances: Document | None = None
    # What a program holds as different from eager, as text.
    wrong: str | None = None


_NOTHING_SEEN = plain(Seen())


@dataclass(frozen=True)
class Outcome:
    """What came of a trial. `signature` is None where nothing failed; `error` says why nothing can be told.

    `value` is the answer to a question that is no verdict.
    """

    signature: Signature | None
    seconds: float
    error: str | None = None
    text: str = ""
    cached: bool = False
    seen: Seen = Seen()
    value: Document = field(default_factory=dict)

    @property
    def had(self) -> float:
        """Seconds apart from those in which the trial stood in line for a core, where that was measured."""
        return self.seconds if self.seen.had is None else self.seen.had

    def fails_like(self, expected: Signature) -> bool:
        """Whether this is the failure looked for.

        >>> Outcome(None, 0.1).fails_like(Signature("crash", "run"))
        False
        """
        return self.signature is not None and SAME.same(expected, self.signature)

    def to_json(self) -> dict[str, object]:
        """As messages and logs of trials have it, which hold what was seen as `more`, and no more of it than there is.

        >>> Outcome(None, 0.1, seen=Seen(cpu=2.0)).to_json()["more"]
        {'cpu': 2.0}
        """
        seen = {name: given for name, given in plain(self.seen).items() if given != _NOTHING_SEEN[name]}
        doc = {**plain(self), "seconds": round(self.seconds, 4), "more": seen}
        return {name: doc[name] for name in ("signature", "seconds", "error", "text", "more", "value")}

    @staticmethod
    def from_json(doc: Document) -> Outcome:
        """What `to_json` wrote: `Outcome.from_json(Outcome(None, 0.1).to_json()).seconds == 0.1`."""
        return from_json(Outcome, {**doc, "seen": doc["more"]})


# -- what is asked of the server of trials, and what it says


@dataclass(frozen=True)
class RunTrial:
    """A trial is to be run. It is text on its way, which only the process that runs it reads.

    `serves` is the kind of process for it (`child.process`); `kernels` where it may get as far as the C++ compiler.
    """

    number: int
    trial: str
    limits: Limits
    serves: str
    kernels: bool


@dataclass(frozen=True)
class Cancel:
    """The trial of that number is not wanted any more."""

    number: int


ORDERS = (RunTrial, Cancel, Join, Become, Kill)


@dataclass(frozen=True)
class Hello:
    """The server is ready: how long that took, how many threads it has, and what its warm-up found out."""

    seconds: float = 0.0
    threads: int = 0
    facts: Document = field(default_factory=dict)


@dataclass(frozen=True)
class TrialStarted:
    """The trial of that number has a process."""

    number: int
    pid: int


@dataclass(frozen=True)
class TrialDone:
    """What came of the trial of that number, None where it was cancelled, and the phase it was in at the end."""

    number: int
    outcome: Outcome | None
    phase: str


FROM_SERVER = (Hello, TrialStarted, TrialDone)


# -- what the process that runs a trial says


@dataclass(frozen=True)
class Phase:
    """It enters a phase, whose clock begins."""

    name: str


@dataclass(frozen=True)
class Good:
    """Whether it can run another trial."""

    good: bool


@dataclass(frozen=True)
class Learned:
    """What a process that was sent to find something out came back with."""

    what: object


FROM_CHILD = (Phase, Outcome, Good, Learned)
