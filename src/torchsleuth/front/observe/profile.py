"""Compile time of a run: the steps of the compiler as a tree, and its sums by phase, by graph and by user function.

The one idea: a step's *own* time, what is left of it without the steps inside it, is counted exactly once. So phases
add up to the total, and so do graphs and functions. Kernels that a C++ compiler builds on other threads while the
compile waits for them are shown and not added: the wait is. A step whose name is not known belongs to the phase of the
step around it: a release with new steps still adds up. Names are those of 2.11 to 2.15.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path

from torchsleuth.front.observe.events import Event, Facts, ReusedIds, counted, of_events

CAPTURE = "capture"
GUARDS = "guards"
BACKEND = "backend"
AOT = "AOTAutograd"
PASSES = "passes"
LOWERING = "lowering"
SCHEDULING = "scheduling"
CODE = "code generation"
KERNELS = "C++/Triton"
TUNING = "autotuning"
CACHE = "cache"
CUDAGRAPHS = "CUDA graphs"

# In the order in which a compile goes through them; each with what a person has to know of it.
PHASES = {
    CAPTURE: "Dynamo reads the function's bytecode and writes down its tensor operations",
    GUARDS: "the conditions under which the compiled code may be used again",
    BACKEND: "the backend itself, apart from what follows",
    AOT: "forward and backward as one graph, then split",
    PASSES: "the graph is rewritten: patterns, decompositions, propagation of shapes",
    LOWERING: "operators become loops over buffers",
    SCHEDULING: "which loops are fused, and in which order they run",
    CODE: "kernels and the wrapper around them are written as text",
    KERNELS: "that text goes through the C++ compiler or Triton",
    TUNING: "variants of kernels are run and timed",
    CACHE: "keys are computed and caches asked",
    CUDAGRAPHS: "kernels are recorded to be launched at once",
}

# First match wins.
_RULES: tuple[tuple[str, str], ...] = (
    (r"build_guards|guard_collective|precompile_.*guards", GUARDS),
    (
        r".*autotun.*|.*template_precompiling|benchmark_.*|.*coordinate_descent.*|CachingAutotuner\.bench.*"
        r"|collective_compute_do_bench",
        TUNING,
    ),
    (r"inductor_codecache_torch_key|CacheBase\..*|AOTAutogradCache\..*|FxGraphCache\..*|pgo\..*", CACHE),
    (r"pass\..*|_recursive_\w+_passes|additional_fake_tensor_prop|fx\.bucketing.*", PASSES),
    (r"convert_conv_weights_to_channels_last", PASSES),
    (
        r"create_aot_dispatcher_function|aot_.*|min_cut_.*|backward\._backward_impl|entire_backward_compile"
        r"|invoke_subgraph_(trace_joint|fake|proxy).*",
        AOT,
    ),
    (
        r"compile_file|async_compile\..*|PyCodeCache\..*|reload_kernel_in_parent|AotCodeCompiler\..*|aoti_.*"
        r"|CachingAutotuner\..*|TritonBundler\..*|StaticAutotunerFuture\..*|cutlass_utils.*|CUTLASSGemm.*",
        KERNELS,
    ),
    (r"GraphLowering\.run|fx_codegen_and_compile|inductor_compile|compile_fx.*", LOWERING),
    (r"Scheduler\.codegen", CODE),
    (r"Scheduler\..*", SCHEDULING),
    (r"GraphLowering\..*|code_gen|.*Codegen\.generate|CppWrapper.*|generate_kernel_code_from_nodes", CODE),
    (r"backend_compile|OutputGraph\.call_user_compiler|inductor_import", BACKEND),
    (r"cudagraph.*|CUDAGraph.*", CUDAGRAPHS),
    (
        r"dynamo|entire_frame_compile|_compile\.compile_inner|compile_attempt_\d+|bytecode_\w+|gc"
        r"|insert_deferred_runtime_asserts|fullgraph_capture",
        CAPTURE,
    ),
)
_COMPILED = tuple((re.compile(pattern), phase) for pattern, phase in _RULES)


def phase_of(step: str) -> str | None:
    """The phase of a step, by torch's name for it; None where that is the one of the step around it.

    >>> phase_of("GraphLowering.run"), phase_of("compile_file"), phase_of("something_new")
    ('lowering', 'C++/Triton', None)
    """
    return next((phase for pattern, phase in _COMPILED if pattern.fullmatch(step)), None)


# Process, torch's id, and how often that id was used before.
Compile = tuple[int, str, int]
# Deeper than any compile nests; what came from a broken file ends here.
MOST_DEPTH = 200


@dataclass
class Step:
    """One timed step. `graph` is torch's id of the compile, `ended` is False where the process was stopped in it.

    After a reset torch begins its ids anew; `again` tells compiles of the same id apart.
    """

    name: str
    phase: str
    start: float
    graph: str | None
    backward: bool
    pid: int
    thread: int
    function: str | None = None
    again: int = 0
    seconds: float = 0.0
    ended: bool = False
    inside: list[Step] = field(default_factory=list)

    @property
    def own_seconds(self) -> float:
        """Without the steps inside it."""
        return max(0.0, self.seconds - sum(step.seconds for step in self.inside))

    def walk(self) -> Iterable[Step]:
        """This step and all inside it, outermost first."""
        yield self
        for step in self.inside:
            yield from step.walk()


@dataclass(frozen=True)
class Frame:
    """The user's function that a compile was for; `rest` where it is what follows a graph break in it.

    >>> str(Frame("Model.forward", "model.py", 12, rest=True))
    'Model.forward (rest)'
    """

    function: str
    file: str
    line: int
    rest: bool = False

    @property
    def place(self) -> str:
        return f"{Path(self.file).name}:{self.line}"

    def __str__(self) -> str:
        return f"{self.function} (rest)" if self.rest else self.function


@dataclass(frozen=True)
class Row:
    """Seconds of something, with how often it was compiled and what of it was which phase."""

    name: str
    seconds: float
    count: int
    phases: Mapping[str, float] = field(default_factory=dict)
    function: str = ""
    place: str = ""

    def to_json(self) -> dict[str, object]:
        phases = {phase: round(seconds, 6) for phase, seconds in self.phases.items()}
        facts = {"name": self.name, "seconds": round(self.seconds, 6), "count": self.count, "phases": phases}
        return {**facts, "function": self.function, "place": self.place} if self.place else facts


@dataclass(frozen=True)
class Loop:
    """A line whose rounds capture wrote down one by one: `ops` of the `of` operations of a graph.

    `calls` is what the line calls, as (file, line in it, name); `whole` and `once` are the compile seconds of two runs
    in empty caches, as it is and with that function compiled once, where that was tried; else `why_not` may say why
    not.
    """

    file: str
    line: int
    code: str
    rounds: int
    ops: int
    of: int
    calls: tuple[str, int, str] | None = None
    whole: float | None = None
    once: float | None = None
    why_not: str = ""

    @property
    def share(self) -> float:
        return self.ops / max(1, self.of)


@dataclass(frozen=True)
class Profile:
    """The compile time of one run. `parallel` are steps of other threads and processes that a compile waited for."""

    steps: tuple[Step, ...] = ()
    parallel: tuple[Step, ...] = ()
    frames: Mapping[Compile, Frame] = field(default_factory=dict)
    caches: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    loop: Loop | None = None

    @property
    def seconds(self) -> float:
        """All compile time; compiles of several processes are added."""
        return sum(step.seconds for step in self.steps)

    @cached_property
    def by_phase(self) -> tuple[Row, ...]:
        """In the order in which a compile goes through them."""
        own: dict[str, list[float]] = {}
        for step in self._all():
            own.setdefault(step.phase, []).append(step.own_seconds)
        return tuple(Row(phase, sum(own[phase]), len(own[phase])) for phase in PHASES if phase in own)

    @cached_property
    def by_graph(self) -> tuple[Row, ...]:
        """Each compile by torch's id, a backward apart; the longest first."""
        several = len({step.pid for step in self.steps}) > 1

        def name(step: Step) -> str:
            process = f" in process {step.pid}" if several else ""
            again = f" after reset {step.again}" if step.again else ""
            return f"{step.graph}{' backward' if step.backward else ''}{again}{process}"

        return self._rows(name)

    @cached_property
    def by_function(self) -> tuple[Row, ...]:
        """By the function as the user wrote it, the rest after a graph break and recompilations included."""
        return self._rows(self._function)

    @cached_property
    def by_name(self) -> tuple[Row, ...]:
        """By torch's name of each step, own time, the longest first."""
        own: dict[tuple[str, str], list[float]] = {}
        for step in self._all():
            own.setdefault((step.name, step.phase), []).append(step.own_seconds)
        rows = [
            Row(name, sum(times), len(times), {phase: sum(times)}) for (name, phase), times in own.items()
        ]
        return tuple(sorted(rows, key=lambda row: -row.seconds))

    def _all(self) -> Iterable[Step]:
        for step in self.steps:
            yield from step.walk()

    def frame_of(self, step: Step) -> Frame | None:
        """Whose compile the step was part of; None where torch did not say."""
        return self.frames.get((step.pid, step.graph or "", step.again))

    def _function(self, step: Step) -> str:
        frame = self.frame_of(step)
        return f"{frame.function} ({frame.place})" if frame else "not known"

    def _rows(self, name_of: Callable[[Step], str]) -> tuple[Row, ...]:
        roots: dict[str, list[Step]] = {}
        for step in self.steps:
            roots.setdefault(name_of(step), []).append(step)
        rows = []
        for name, steps in roots.items():
            phases: dict[str, float] = {}
            for step in (inner for root in steps for inner in root.walk()):
                phases[step.phase] = phases.get(step.phase, 0.0) + step.own_seconds
            frame = self.frame_of(steps[0])
            facts = (str(frame), frame.place) if frame else ("", "")
            rows.append(Row(name, sum(step.seconds for step in steps), len(steps), phases, *facts))
        return tuple(sorted(rows, key=lambda row: -row.seconds))

    def to_json(self) -> dict[str, object]:
        """The document `times.json`: seconds, rounded to a microsecond."""
        return {
            "seconds": round(self.seconds, 6),
            "by_phase": [row.to_json() for row in self.by_phase],
            "by_graph": [row.to_json() for row in self.by_graph],
            "by_function": [row.to_json() for row in self.by_function],
            "by_step": [row.to_json() for row in self.by_name],
            "parallel_seconds": round(sum(step.seconds for step in self.parallel), 6),
            "caches": {name: dict(answers) for name, answers in self.caches.items()},
            "loop": None if self.loop is None else asdict(self.loop),
            "unfinished": [step.name for step in self._all() if not step.ended],
        }


@of_events
def profile_of(events: Sequence[Event], only_known: bool = False) -> Profile:
    """The profile of a run, from what its collectors `frames` and `times` wrote.

    `only_known` leaves out compiles of frames that were not told, as `--only` asks for.
    """
    frames: dict[Compile, Frame] = {}
    ids = ReusedIds()
    caches: dict[str, dict[str, int]] = {}
    begun: dict[tuple[int, int], list[Step]] = {}
    roots: list[Step] = []
    last: dict[int, float] = {}
    for event in events:
        last[event.pid] = event.at
        ids.see(event)
        given = event.fields
        stack = begun.setdefault((event.pid, _number(given.get("thread"))), [])
        if event.kind in ("frame_begin", "frame"):
            function = str(given.get("function"))
            name = function.rpartition(".")[2]
            rest = str(given.get("code", name)) != name
            graph = str(given.get("id"))
            frames[event.pid, graph, ids.again(event.pid, graph)] = Frame(
                function, str(given.get("file")), _number(given.get("line")), rest
            )
        elif event.kind == "cache":
            name = str(given.get("name")).rpartition("_")[0] or str(given.get("name"))
            answers = caches.setdefault(name, {})
            answers[str(given.get("answer"))] = answers.get(str(given.get("answer")), 0) + 1
        elif event.kind == "step_begin" and len(stack) < MOST_DEPTH:
            stack.append(_begin(event, stack[-1] if stack else None, ids))
        elif event.kind == "step_end" and any(step.name == given.get("name") for step in stack):
            # A step that was left by an error which torch handled has told no end.
            while (step := stack.pop()).name != given.get("name"):
                _end(step, event.at, stack, roots)
            _end(step, event.at, stack, roots)
            step.ended = True
    for (pid, _), stack in begun.items():
        while stack:
            _end(stack.pop(), last[pid], stack, roots)
    roots.sort(key=lambda step: step.start)
    compiles = (step for step in roots if step.graph is not None)
    return Profile(
        tuple(
            step for step in compiles if not only_known or (step.pid, step.graph or "", step.again) in frames
        ),
        tuple(step for step in roots if step.graph is None),
        frames,
        caches,
        max((_loop(e.fields) for e in events if e.kind == "loop"), key=lambda loop: loop.ops, default=None),
    )


def _loop(given: Facts) -> Loop:
    calls = given["calls"]
    of = (str(given["file"]), int(given["line"]), str(given["code"]))
    counts = (int(given["rounds"]), int(given["ops"]), int(given["of"]))
    return Loop(*of, *counts, None if calls is None else (str(calls[0]), int(calls[1]), str(calls[2])))


def _begin(event: Event, outer: Step | None, ids: ReusedIds) -> Step:
    given = event.fields
    name = str(given.get("name"))
    graph = given.get("graph") or (outer.graph if outer else None)
    backward = bool(given.get("backward")) or name == "entire_backward_compile"
    return Step(
        name=name,
        phase=phase_of(name) or (outer.phase if outer else CAPTURE),
        start=event.at,
        graph=None if graph is None else str(graph),
        backward=backward or (outer is not None and outer.backward),
        pid=event.pid,
        thread=_number(given.get("thread")),
        function=str(given["function"]) if given.get("function") else None,
        again=outer.again if outer else ids.again(event.pid, str(graph)),
    )


def _end(step: Step, at: float, stack: list[Step], roots: list[Step]) -> None:
    step.seconds = max(0.0, at - step.start)
    (stack[-1].inside if stack else roots).append(step)


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


@dataclass(frozen=True)
class CudaGraph:
    """A compiled graph under CUDA graphs: how often it was recorded, and why again; or why it runs without."""

    function: str
    recorded: int
    why: tuple[str, ...]


@dataclass(frozen=True)
class CudaGraphs:
    """What of a run was recorded as CUDA graphs, and what was not."""

    graphs: tuple[CudaGraph, ...] = ()

    def to_json(self) -> dict[str, object]:
        return {"cuda_graphs": [asdict(graph) for graph in self.graphs]}


def cuda_graphs_of(events: Sequence[Event]) -> CudaGraphs:
    """The CUDA graphs of a run, from what its collectors `frames` and `cudagraphs` wrote."""
    functions: dict[tuple[int, str], str] = {}
    recorded: Counter[tuple[int, str, object]] = Counter()
    reasons: dict[tuple[int, str, object], dict[str, None]] = {}
    for event in events:
        given, graph = event.fields, str(event.fields.get("id", event.fields.get("graph")))
        if event.kind == "frame":
            place = f"{Path(str(given.get('file'))).name}:{given.get('line')}"
            functions[event.pid, graph] = f"{given.get('function')} ({place})"
        elif event.kind in ("cuda_graph", "cuda_graph_left_out"):
            key = event.pid, graph, given.get("number")
            recorded[key] += event.kind == "cuda_graph"
            why = _in_a_line(str(given.get("why") or ""))
            reasons.setdefault(key, {}).update({why: None} if why else {})
    return CudaGraphs(
        tuple(
            CudaGraph(functions.get(key[:2], f"graph {key[1]}"), recorded[key], tuple(why))
            for key, why in reasons.items()
        )
    )


_WHERE = re.compile(r'File "([^"]+)", line (\d+)')


def _in_a_line(why: str) -> str:
    """A reason of torch's, with the innermost line that it names in place of all, and without addresses.

    >>> _in_a_line('skipping cudagraphs due to cpu device (a). Found from : \\n File "/x/m.py", line 3, in f')
    'cpu device (a) (m.py:3)'
    """
    lines = why.strip().splitlines() or [""]
    places = _WHERE.findall(why)
    said = re.sub(r"^skipping cudagraphs due to |\.? *Found from *: *$", "", lines[0].strip())
    said = " ".join([said, *(line.strip() for line in lines[1:3] if not places)])
    said = re.sub(r"\s*\bfrom 0x[0-9a-f]+ to 0x[0-9a-f]+", "", said)
    return f"{said} ({Path(places[-1][0]).name}:{places[-1][1]})" if places else said


def cuda_graph_lines(found: CudaGraphs) -> Iterator[str]:
    """What a person is told of them; nothing where there are none."""
    if not found.graphs:
        return
    again = sum(max(0, graph.recorded - 1) for graph in found.graphs)
    without = [graph for graph in found.graphs if not graph.recorded]
    recorded = sum(graph.recorded for graph in found.graphs)
    said = f"CUDA graphs: {counted(recorded, 'recording')}"
    said += f", {again} of them once more" if again else ""
    yield said + (f"; {counted(len(without), 'graph')} run without" if without else "")
    for graph in sorted(found.graphs, key=lambda graph: graph.recorded):
        what = f"recorded {graph.recorded} times" if graph.recorded else "runs without a CUDA graph"
        if graph.recorded != 1:
            yield f"   {graph.function} {what}: {'; '.join(graph.why) or 'torch gives no reason'}"
