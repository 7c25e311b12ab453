"""Where a compile is, written down step by step, so that whatever ends it - an error, a signal, a clock - has a place.

Each step is a line when it begins and one when it ends; the steps that never ended are where it failed. Lines go
straight to a descriptor: nothing is lost when the process dies.

Versions: a function that a version lacks is not traced; the steps around it still are.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchsleuth.torch_internals.compiler_switches import asking_instead, pattern_name
from torchsleuth.torch_internals.places import replaced


@dataclass(frozen=True)
class Step:
    """One step of a compile: what kind, its name, and the graph nodes it works on."""

    kind: str
    name: str = ""
    nodes: tuple[str, ...] = ()


def unfinished(path: Path) -> tuple[Step, ...]:
    """The steps that had begun and not ended when the traced process stopped, outermost first.

    >>> _ = Path("trace.txt").write_text(">\\t0\\tlowering\\n>\\t1\\tlower\\taten.relu.default\\trelu\\n")
    >>> unfinished(Path("trace.txt"))[1]
    Step(kind='lower', name='aten.relu.default', nodes=('relu',))
    """
    open_steps: list[Step] = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else ():
        mark, depth, *parts = line.split("\t")
        if mark not in "><" or not depth.isdecimal():
            continue  # the last line of a killed process may be torn
        # A step that ended with an error which the compiler then handled has left no line of its own.
        del open_steps[int(depth) :]
        if mark == ">":
            kind, name, nodes = [*parts, "", "", ""][:3]
            open_steps.append(Step(kind, name, tuple(nodes.split())))
    return tuple(open_steps)


@contextlib.contextmanager
def traced(path: str) -> Iterator[None]:
    """Writes the steps of every compile in this process to the file `path`.

    A step that ends with an error stays open, so that an error, too, has a place.

    Use: `with traced("trace.txt"): compile_it()`.
    """
    out = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    depth = 0
    kernels: list[tuple[str, Step]] = []

    def begin(at: int, step: Step) -> None:
        os.write(out, f">\t{at}\t{step.kind}\t{step.name}\t{' '.join(step.nodes)}\n".encode())

    def around(original: Callable[..., Any], step: Callable[..., Step | None]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal depth
            now = step(*args, **kwargs)
            if now is None:
                return original(*args, **kwargs)
            at = depth
            begin(at, now)
            depth += 1
            try:
                result = original(*args, **kwargs)
            except Exception as error:
                refused = _refused(str(error), kernels) if now.kind == "compiler" else None
                if refused is not None:
                    begin(at + 1, refused)
                raise
            finally:
                depth = at
            os.write(out, f"<\t{at}\n".encode())
            return result

        return call

    with contextlib.ExitStack() as stack:
        stack.callback(os.close, out)
        for module, owner, name, step in _STEPS:
            stack.enter_context(replaced(module, owner, name, functools.partial(around, step=step)))
        # A pattern traces its replacement while it is asked whether a match is used: that is a step, too.
        asked = asking_instead(lambda entry, own: around(own, functools.partial(_pattern, entry)))
        stack.enter_context(replaced(_MATCHER, "PatternMatcherPass", "apply", asked))
        noting = functools.partial(_noting, kernels)
        stack.enter_context(replaced("torch._inductor.codegen.cpp", "CppScheduling", "define_kernel", noting))
        yield


def _noting(kernels: list[tuple[str, Step]], original: Callable[..., Any]) -> Callable[..., Any]:
    """Keeps the text of each C++ kernel, and what it was made of: they are compiled when all have been written."""

    def define_kernel(self: Any, src_code: str, nodes: Any, *args: Any, **kwargs: Any) -> Any:
        name = original(self, src_code, nodes, *args, **kwargs)
        kernels.append((src_code, Step("kernel", str(name), _origins(nodes))))
        return name

    return define_kernel


def _refused(message: str, kernels: list[tuple[str, Step]]) -> Step | None:
    """The kernel that a C++ compiler refused: its message names the file, and the file holds the kernel's text."""
    found = re.search(r"(\S+\.cpp):\d+:\d+: (?:fatal )?error", message)
    try:
        text = Path(found[1]).read_text(encoding="utf-8") if found else ""
    except OSError:
        return None
    bodies = (
        (source.replace("#pragma CMT", "//").partition("{")[2].strip(), step) for source, step in kernels
    )
    return next((step for body, step in bodies if body and body in text), None)


def _plain(kind: str) -> Callable[..., Step]:
    return lambda *_args, **_kwargs: Step(kind)


def _pass(observer: Any, *_: Any) -> Step:
    names = [n.name for n in observer.gm.graph.nodes if n.op.startswith("call")]
    where = observer.subsystem or ""
    return Step("pass", f"{where}:{observer.passname}", tuple(names[:64]))


def _pattern(entry: Any, match: Any, *_: Any) -> Step:
    return Step("pattern", pattern_name(entry), tuple(node.name for node in match.nodes))


def _decomposition(_mode: Any, op: Any, *_: Any) -> Step:
    return Step("decomposition", str(op))


def _lower(_graph: Any, node: Any) -> Step | None:
    # To take one of several results is no operator: it goes under the name of the one that made them.
    while node.target is operator.getitem and hasattr(node.args[0], "target"):
        node = node.args[0]
    return Step("lower", str(node.target), (node.name,)) if node.op == "call_function" else None


def _kernel(_scheduling: Any, node: Any, *_args: Any, **_kwargs: Any) -> Step:
    return Step("kernel", node.get_name(), _origins(node.get_nodes()))


def _origins(nodes: Any) -> tuple[str, ...]:
    """The names of the graph's nodes that nodes of the scheduler were made of."""
    made = [getattr(each.node, "origins", ()) for each in nodes if each.node is not None]
    return tuple(sorted({origin.name for origins in made for origin in origins}))


_MATCHER = "torch._inductor.pattern_matcher"
_OBSERVER = "torch.fx.passes.graph_transform_observer"
_AOT = "torch._functorch._aot_autograd.graph_compile"
_STEPS: tuple[tuple[str, str, str, Callable[..., Step | None]], ...] = (
    (_AOT, "", "aot_dispatch_base_graph", _plain("aot")),
    (_AOT, "", "aot_dispatch_autograd_graph", _plain("aot")),
    ("torch.fx.experimental.proxy_tensor", "", "maybe_handle_decomp", _decomposition),
    ("torch._inductor.compile_fx", "", "_recursive_pre_grad_passes", _plain("pre_grad_passes")),
    ("torch._inductor.compile_fx", "", "_recursive_joint_graph_passes", _plain("joint_graph_passes")),
    ("torch._inductor.compile_fx", "", "_recursive_post_grad_passes", _plain("post_grad_passes")),
    ("torch._inductor.compile_fx", "", "compile_fx_inner", _plain("inner")),
    (_OBSERVER, "GraphTransformObserver", "apply_gm_pass", _pass),
    (_OBSERVER, "GraphTransformObserver", "apply_graph_pass", _pass),
    (_MATCHER, "GraphPatternEntry", "apply", _pattern),
    (_MATCHER, "ReplacementPatternEntry", "apply", _pattern),
    (_MATCHER, "LoweringPatternEntry", "apply", _pattern),
    ("torch._inductor.graph", "GraphLowering", "run", _plain("lowering")),
    ("torch._inductor.graph", "GraphLowering", "run_node", _lower),
    ("torch._inductor.graph", "GraphLowering", "codegen", _plain("codegen")),
    ("torch._inductor.graph", "GraphLowering", "codegen_with_cpp_wrapper", _plain("codegen")),
    ("torch._inductor.scheduler", "Scheduler", "fuse_nodes", _plain("fusion")),
    ("torch._inductor.codegen.cpp", "CppScheduling", "codegen_node", _kernel),
    ("torch._inductor.codegen.simd", "SIMDScheduling", "codegen_node", _kernel),
    ("torch._inductor.graph", "GraphLowering", "_compile_to_module_lines", _plain("compiler")),
    ("torch._inductor.output_code", "", "cudagraph_post_compile", _plain("cudagraphs")),
)
