"""The watch itself: what happens at each seam when a frame is captured, a graph compiled, a graph handed on.

At each seam: record, mark as under way, let torch do what it was going to do, unmark; a failure is reported
and then goes its way unchanged. What goes wrong in our own code is logged, and the program goes on as if we
were not there.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from torchsleuth.core.cases.record import CompileSettings
from torchsleuth.core.processes.starting import is_sanitized
from torchsleuth.core.protocol.failures import Overwritten
from torchsleuth.core.watching import CheckBudget, Settings
from torchsleuth.script_runtime.compiling import draw_eager_random_numbers, lazy_backward
from torchsleuth.torch_core.compare.reference.cloning import KeptCopies, Snapshot
from torchsleuth.torch_core.compare.reference.rng import Draw
from torchsleuth.torch_internals import hooks as seams
from torchsleuth.torch_internals.compiled_calls import CompiledCall, call_under_way
from torchsleuth.torch_internals.frames import FrameCompile
from torchsleuth.torch_internals.modes import outside_all_modes, tracing_under_way
from torchsleuth.torch_internals.saved_code import (
    SavedCode,
    forget_cached_graphs,
    keeps_state,
    names_of,
    runnable_copy,
)
from torchsleuth.watched import call_failures, failures, shadow, whole_calls
from torchsleuth.watched.call_source import EarlierCalls
from torchsleuth.watched.checker import Checker
from torchsleuth.watched.flight import CAPTURE, Flight
from torchsleuth.watched.graph_record import (
    GraphOrigin,
    RecordedGraph,
    as_source,
    record_graph,
    record_without_graph,
    state_now,
)
from torchsleuth.watched.guard import GuardedGraph, HeldTensors, guard_boxed, guard_unboxed
from torchsleuth.watched.observe.events import silence_this_process
from torchsleuth.watched.startup import is_installed, unwarned
from torchsleuth.watched.whole_calls import WholeCalls

# Keyword arguments of the inner compile that change its result and can be given to it again. The others are
# callbacks and counters of the process that compiles.
RESULT_KWARGS = (
    "is_inference",
    "is_backward",
    "static_input_idxs",
    "cpp_wrapper",
    "fx_wrapper",
    "layout_opt",
)


class Watch:
    """What one watched process knows: its settings, its flight recorder, and which frame is being captured."""

    def __init__(
        self,
        settings: Settings,
        *,
        finish: Callable[[Flight], object] = lambda flight: None,
        everything: bool = True,
    ) -> None:
        """`everything` is False where only graphs of one backend object are watched; `finish` makes cases at once."""
        self.settings = settings
        self.finish = finish
        self.everything = everything
        self._flight: Flight | None = None
        self._broken = False
        self._function: str | None = None
        self._capture = call_failures.Capture()
        self._function_of: dict[str, str] = {}
        self._outer_of: dict[str, int] = {}
        self._captured: dict[str, RecordedGraph] = {}
        self.saved: dict[str, GuardedGraph] = {}
        self.latest: GuardedGraph | None = None
        self.budget = CheckBudget.of(settings)
        self.looked_at: set[tuple[str, ...]] = set()  # graphs whose result was compared, however that ended
        self.said: set[tuple[int, str]] = set()  # of what was not looked at
        self.awaiting_backward: dict[int, shadow.AwaitingBackward] = {}
        self.copies = KeptCopies(Snapshot((), ()))  # of what the checked calls under way were given
        self.gradients_checked: set[int] = set()
        self.wrong_inside: set[str] = set()  # compiles of which the forward that Inductor got is wrong
        self.drawn: list[Draw] = []  # by graphs that Inductor compiled, in the call that is being checked
        self.whole_calls = WholeCalls()
        self.earlier_calls = EarlierCalls()
        self.forks_itself = False
        self.judging = self.suspended = settings.again is not None
        self.checker = Checker()
        self.rerunning = False  # a call that the program made, to look at its gradients
        os.register_at_fork(after_in_child=self._after_fork)
        self.overwritten: list[tuple[Overwritten, str]] = []  # when memory of CUDA graphs was last taken
        failures.attend_uncaught_errors(lambda: self._flight, self.overwritten_of)
        seams.hook_backward_runs(self.on_backward)
        forget_cached_graphs()
        if settings.checks_accuracy:
            draw_eager_random_numbers()

    @property
    def flight(self) -> Flight | None:
        """This process's recorder; None where its folder cannot be written (said once, on stderr)."""
        if self._flight is None and not self._broken:
            try:
                self._flight = Flight(self.settings.spool, self.finish)
                atexit.register(self._look_at_device)
            except OSError as error:
                self._broken = True
                with contextlib.suppress(
                    OSError, ValueError, AttributeError
                ):  # nobody may be there to read it
                    sys.stderr.write(f"torchsleuth: cannot record, the program goes on unwatched: {error}\n")
        return self._flight

    def judges_captures(self) -> None:
        """In a fork that compares a call: nothing is recorded, and every graph is run by eager's kernels."""
        self.judging = self.suspended = True
        self.is_silent()

    def is_silent(self) -> None:
        """In a fork that must not be seen: nothing is recorded."""
        if self._flight is not None:
            self._flight.silent = True
        silence_this_process()

    def _look_at_device(self) -> None:
        """An error of a kernel shows when somebody waits for the device, and the program may not have noticed."""
        flight = self._flight
        if flight is None or flight.pid != os.getpid() or not torch.cuda.is_initialized():
            return
        try:
            torch.cuda.synchronize()
        except Exception as error:
            flight.device_failed(failures.describe(error))

    def _after_fork(self) -> None:
        if self._flight is not None and not self.forks_itself:
            with self.our_own_work():
                self._flight.continue_in_child(self.settings.spool)

    @contextlib.contextmanager
    def our_own_work(self) -> Iterator[None]:
        """Our code in the user's process: what fails in here is logged, and what it compiles is not watched."""
        before, self.suspended = self.suspended, True
        try:
            with outside_all_modes(), torch.no_grad(), unwarned():
                yield
        except Exception as error:
            if self._flight is not None:
                if isinstance(error, torch.AcceleratorError) or seams.OVERWRITTEN in str(error):
                    self._flight.log(failures.describe(error))  # the program's own
                else:
                    self._flight.went_wrong(error, failures.describe(error))
        finally:
            self.suspended = before

    # ---- calls of compiled functions

    def on_call(self, call: CompiledCall) -> Callable[[tuple[Any, ...]], None] | None:
        """A compiled function is about to run: where that is due, it is compared with eager as a whole."""
        flight = self.flight
        if flight is None or (self.suspended and not self.settings.again):
            return None
        try:
            # Not as our own work: what is forked here goes on in the modes of the user's call.
            end = (whole_calls.begin_again if self.settings.again else whole_calls.begin)(self, flight, call)
        except Exception as error:
            flight.went_wrong(error, failures.describe(error))
            return None
        if end is None:
            return None

        def ended(returned: tuple[Any, ...]) -> None:
            with self.our_own_work():
                end(returned)

        return ended

    # ---- graph capture

    def on_frame(self, frame: seams.FrameCapture) -> Any:
        """Dynamo looks at one frame: its function's name is remembered for the graphs that come of it."""
        flight = self.flight
        if flight is None or self.suspended:
            return frame.as_without_us()
        before, self._function = self._function, frame.function
        flight.counters[CAPTURE] += 1
        state = state_now()
        outer, capture = self._capture, call_failures.Capture()
        self._capture = capture
        try:
            with self.budget.first_call(), capture.kept():
                captured = frame.as_without_us()
            with self.our_own_work():
                given_up = capture.given_up()
                if given_up is not None and (given_up.left or not is_installed(given_up.file)):
                    flight.given_up(given_up)
                call = call_under_way()
                if call is not None:
                    self.earlier_calls.note(call)
            return captured
        except Exception as error:
            if self._wanted() and not failures.already_reported(error):
                with self.our_own_work():
                    call_failures.report_capture_error(self, flight, frame, error, state)
            failures.hide_our_frames(error)
            raise
        finally:
            flight.counters[CAPTURE] += 1
            self._function, self._capture = before, outer

    def on_frame_compile(self, compile: FrameCompile) -> Any:
        """Dynamo compiles a frame: what it cannot be compiled for is remembered, and goes its way."""
        try:
            return compile.compile()
        except Exception as error:
            self._capture.failed(compile.code, error)
            raise

    def _wanted(self, compile_id: str | None = None) -> bool:
        only = self.settings.only
        if only is None:
            return True
        function = self._function or self._function_of.get(compile_id or "")
        # After a graph break the rest of `forward` is traced as `torch_dynamo_resume_in_forward_at_12`.
        return function is not None and (function == only or f"_resume_in_{only}_at_" in function)

    # ---- the three places where a graph is handed to a compiler, and what they have in common

    def on_backend(self, call: seams.BackendCall) -> Callable[..., Any]:
        """After Dynamo: one captured graph goes to its backend."""
        if self.judging:
            return call.graph
        return self._attend(call, lambda: self._origin_of_captured(call), guard_unboxed)

    def _origin_of_captured(self, call: seams.BackendCall) -> GraphOrigin | None:
        compile_id = seams.current_compile_id()
        if compile_id is not None and self._function is not None:
            self._function_of[compile_id] = self._function
        if self.suspended or not self._wanted(compile_id):
            return None
        return GraphOrigin(
            _settings("dynamo", call.name, options=as_source(call.options)[0]),
            compile_id=compile_id,
            function=self._function,
            custom_backend=None if seams.ships_with_torch(call.backend) else call.backend,
        )

    def on_inner(self, call: seams.InnerCompile) -> Any:
        """After AOTAutograd: one aten graph goes to Inductor, forward, backward or inference."""
        return self._attend(call, lambda: self._origin_of_inner(call), _guard_inner)

    def _origin_of_inner(self, call: seams.InnerCompile) -> GraphOrigin | None:
        compile_id = seams.current_compile_id()
        foreign = not self.everything and compile_id not in self._outer_of
        if self.suspended or foreign or self.settings.after == "dynamo" or not self._wanted(compile_id):
            return None
        kwargs = {k: call.kwargs[k] for k in RESULT_KWARGS if call.kwargs.get(k)}
        kwargs["static_input_idxs"] = list(kwargs.get("static_input_idxs", ()))
        kwargs["cudagraphs"] = bool(getattr(call.kwargs.get("cudagraphs"), "value", False))
        settings = _settings("aot", "inductor", compile_kwargs=kwargs)
        if kwargs.get("is_backward"):
            settings = replace(settings, direction="backward")
        return GraphOrigin(
            settings,
            compile_id=compile_id,
            function=self._function or self._function_of.get(compile_id or ""),
            outer=self._outer_of.get(compile_id or ""),
        )

    def on_compiler(self, call: seams.BackendCall, kwargs: dict[str, Any]) -> Any:
        """After AOTAutograd: one aten graph goes to a compiler that someone else wrote."""
        return self._attend(call, lambda: self._origin_of_foreign(call, kwargs), _guard_by_flag)

    def _origin_of_foreign(self, call: seams.BackendCall, kwargs: dict[str, Any]) -> GraphOrigin | None:
        if self.suspended:
            return None
        kept = {k: v for k, v in kwargs.items() if isinstance(v, (bool, int, float, str))}
        return GraphOrigin(
            _settings("aot", call.name, compile_kwargs=kept),
            compile_id=seams.current_compile_id(),
            custom_backend=None if seams.is_inner_compile(call.backend) else call.backend,
        )

    def _attend(
        self,
        call: seams.BackendCall | seams.InnerCompile,
        origin_of: Callable[[], GraphOrigin | None],
        guard: Callable[[Any, GuardedGraph], Any],
    ) -> Any:
        """Record the graph, let it be compiled, and put a guard around what comes of it; `origin_of` says None where it
        is none of ours."""
        origin, record = None, None
        eager: torch.fx.GraphModule | None = None
        held = HeldTensors()
        try:
            origin = origin_of()  # in the caller's own modes, which it looks at
        except Exception as error:
            if self.flight is not None:
                self.flight.went_wrong(error, failures.describe(error))
        if origin is None or (flight := self.flight) is None:
            return call.as_without_us()
        with self.our_own_work():
            number, folder = flight.new_graph()
            record = record_graph(folder, number, call.graph, call.inputs, origin)
            wants_eager = self.settings.checks_accuracy or self.settings.keep_going
            if wants_eager and not keeps_state(call.graph):
                eager = runnable_copy(call.graph)  # the compiler takes the graph over and changes it
            if eager is not None and self.settings.checks_accuracy:
                self.checker.get_ready(flight.folder)
            if eager is not None and origin.settings.level == "dynamo":
                held = HeldTensors.between(eager, call.graph)
        if record is None:
            return call.as_without_us()
        if origin.settings.level == "dynamo" and origin.compile_id is not None:
            self._outer_of[origin.compile_id] = record.facts.number
            self._captured[origin.compile_id] = record
        compiled = self._compile(flight, record, call, eager)
        return guard(compiled, GuardedGraph(self, flight, record, eager, held))

    def _compile(
        self,
        flight: Flight,
        record: RecordedGraph,
        call: seams.BackendCall | seams.InnerCompile,
        eager: torch.fx.GraphModule | None,
    ) -> Any:
        slot = flight.compile_slot(record.facts.number)
        flight.counters[slot] += 1
        try:
            with self.budget.first_call():
                return call.as_without_us()
        except Exception as error:
            if seams.is_control_flow(error):
                raise
            if not failures.already_reported(error):
                with self.our_own_work():
                    failures.report_failure(self, flight, record, error, "compile")
            elif failures.is_repeated(error):
                failures.forget(record, "compile")
            if self.settings.keep_going and eager is not None:
                return eager
            raise
        finally:
            flight.counters[slot] += 1

    def overwritten_of(self, error: BaseException) -> Overwritten | None:
        """What an error is about that tells of a result of a CUDA graph whose memory was taken; None for any other."""
        if seams.OVERWRITTEN not in str(error) or not self.overwritten:
            return None
        named = [found for found, trace in self.overwritten if trace and trace.strip() in str(error)]
        return (named or [found for found, _ in self.overwritten])[0]

    # ---- code that was compiled before, and what backends run by themselves

    def on_saved_code(self, code: SavedCode) -> Any:
        """Code that was compiled before, here or elsewhere, is loaded."""
        flight = self.flight
        if flight is None or self.suspended or not self.everything:
            return code.as_without_us()
        loaded = code.as_without_us()
        with self.our_own_work():
            graph = next((self.saved[name] for name in code.names if name in self.saved), None)
            if graph is None:  # it was compiled elsewhere; what fails in there is a case all the same
                number, folder = flight.new_graph()
                graph = GuardedGraph(self, flight, record_without_graph(folder, number, code), None)
            known = graph
            return code.around(loaded, lambda run: guard_boxed(run, known))
        return loaded

    def on_backward(self, run: Callable[[], Any]) -> Any:
        """The autograd engine runs: what fails in there and was seen at no other seam is a backend's own backward."""
        try:
            result = run()
            # AOTAutograd runs the engine, too, while it traces what forward and backward do: that is no backward.
            if self.awaiting_backward and not self.suspended and not tracing_under_way():
                shadow.check_gradients(self)
            return result
        except Exception as error:
            if self.latest is not None and not self.suspended and not failures.already_reported(error):
                with self.our_own_work():
                    self._report_backward(self.latest, error)
            raise

    def _report_backward(self, latest: GuardedGraph, error: Exception) -> None:
        found = lazy_backward(error)
        if found is None:
            return
        compiling, compile_id = found
        record = self._captured.get(compile_id or "", latest.record)
        record.update(settings=replace(record.facts.settings, direction="backward"))
        failures.report_failure(self, latest.flight, record, error, "compile" if compiling else "run")

    def on_cuda_graph(self, run: seams.CudaGraphRun) -> Any:
        """A recorded CUDA graph runs, or takes the memory of results that are still held: who made those is noted."""
        if run.ends:
            with self.our_own_work():
                by = call_failures.compiled_call_place()
                held = run.held() if by is not None else []
                self.overwritten = [(Overwritten(made, by), trace) for made, trace in held if by is not None]
            return run.as_without_us()
        result = run.as_without_us()
        with contextlib.suppress(Exception):
            run.made_by(call_failures.compiled_call_place())
        return result

    def with_outer(self, record: RecordedGraph) -> list[RecordedGraph]:
        """A graph, and the one that Dynamo captured and that it is part of."""
        outer = self._captured.get(record.facts.compile_id or "")
        return [record] if outer is None or outer is record else [record, outer]


def _guard_inner(compiled: Any, graph: GuardedGraph) -> Any:
    if compiled is graph.eager:
        return _boxed(compiled)
    graph.watch.saved.update(dict.fromkeys(names_of(compiled), graph))
    return seams.replace_callable(compiled, lambda inner: guard_boxed(inner, graph))


def _guard_by_flag(compiled: Any, graph: GuardedGraph) -> Any:
    # At this seam AOTAutograd itself goes by the flag.
    if getattr(compiled, "_boxed_call", False):
        return _guard_inner(compiled, graph)
    return guard_unboxed(compiled, graph)


def _settings(level: str, backend: str, **more: Any) -> CompileSettings:
    """How a graph is being compiled right now, in this process."""
    state = state_now()
    direction = "inference" if state.inference_mode else "forward"
    return CompileSettings(level, backend, direction, state=state, sanitized=is_sanitized(os.environ), **more)


def _boxed(graph: torch.fx.GraphModule) -> Callable[[list[Any]], Any]:
    def call(args: list[Any]) -> Any:
        values = list(args)
        args.clear()
        return graph(*values)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call
