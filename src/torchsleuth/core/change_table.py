"""The table of changes: what can be different in the compiler, what each row blames, and what a person pastes.

Blame asks with which rows the failure stays or vanishes, cure takes the cheapest that passes, minify a quicker way to
see the same. One more setting, rung or workaround is one more row here. Rows for an operator, a pass or a module unfold
from what a run has shown: `kept_eager(["aten.sin.default"])`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from torchsleuth.core.changes import DYNAMO, INDUCTOR, OWN_BACKEND, Change, Place, merged
from torchsleuth.core.criteria import Answer

# How much of the compiler a workaround gives up, least first.
PART, SETTING, OPERATOR, CALL, MODULE, FUNCTION, BREAK, MODE, BACKEND = range(9)


def few(names: Sequence[str]) -> str:
    """Names in a sentence, however many there are.

    >>> few(["a", "b"]), few(["a", "b", "c", "d"])
    ('a, b', 'a and 3 others')
    """
    return ", ".join(names) if len(names) < 4 else f"{names[0]} and {len(names) - 1} others"


def several(count: int, noun: str) -> str:
    """A number of things: `several(2, "call") == "2 calls"`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


# How the rows are read: of rungs that hold more and more of the compiler the least that fails names the component; of
# switches that leave something out the first with which it passes names the part.


def least_that_fails(
    rungs: Iterable[Change], ask: Callable[[Change], Answer], counts: Sequence[Answer] = (Answer.FAILS,)
) -> tuple[Change, Answer] | None:
    """The first rung, the least of the compiler first, whose answer counts; None where none does.

    >>> least_that_fails(RUNGS, {CAPTURED: Answer.PASSES, AOT: Answer.FAILS}.get)[0].component
    'aot_autograd'
    """
    return next(((rung, answer) for rung in rungs if (answer := ask(rung)) in counts), None)


def first_that_passes(changes: Iterable[Change], ask: Callable[[Change], Answer]) -> Change | None:
    """The first change with which it passes: `first_that_passes(SETTINGS, ask)`."""
    return next((change for change in changes if ask(change) is Answer.PASSES), None)


# How much of the compiler.

UNCOMPILED = Change("nothing compiled", "program", uncompiled=True)


def _rung(what: str, component: str, part: str | None, backend: str) -> Change:
    """The compiler up to some point, as one of our backends stops there."""
    name = backend.removeprefix(OWN_BACKEND)
    how = f'torch.compile(model, backend="{name}")'
    return Change(
        what, component, part, f"backend {name}", how, "the rest of the compiler", BACKEND, backend=backend
    )


CAPTURED = _rung("captured by Dynamo and run as it is", "dynamo", "capture", "sleuth_eager")
AOT = _rung("AOTAutograd with eager kernels", "aot_autograd", None, "sleuth_aot_eager")
DECOMPOSED = _rung(
    "AOTAutograd, decompositions and partitioner, with eager kernels",
    "decompositions",
    None,
    "sleuth_aot_eager_decomp_partition",
)
# Each holds the ones before it: where the last passes, the others need not be run.
RUNGS = (CAPTURED, AOT, DECOMPOSED)
# What Inductor compiles, looked at without code generated from it, the quickest first.
WITHOUT_CODE = (
    Change(passes_alone=True),
    Change("lowered, but interpreted instead of generated code", "inductor", "codegen", interpret=True),
)
INTERPRETED = WITHOUT_CODE[1]
# Checks of operators against what they say of themselves.
FAKE_KERNELS = Change(
    "fake kernels checked against real ones",
    "aot_autograd",
    "fake kernel",
    backend="sleuth_aot_eager_decomp_partition_crossref",
)
SCHEMAS = Change(
    "operators checked against their schemas", "aot_autograd", "operator schema", backend="sleuth_eager_debug"
)
# The caches: every other run of a program begins with an empty one.
EMPTY_CACHE = Change("the program as it is, with an empty compile cache", "inductor", "compile cache")
OWN_CACHE = Change("the program as it is, with its compile cache", "inductor", own_cache=True)


def setting(
    key: str, value: str, disables: str, module: str = INDUCTOR, *, what: str = "", part: str | None = None
) -> Change:
    """A setting of torch and a value of it, as Python text; `disables` is what that value switches off.

    >>> setting("fallback_random", "True", "own random numbers").how
    'torch._inductor.config.fallback_random = True'
    """
    return Change(
        what,
        "inductor",
        part,
        f"setting {key}",
        f"{module}.{key} = {value}",
        disables,
        SETTING,
        config={module: {key: value}},
    )


def together(settings: Sequence[Change], what: str = "", part: str | None = None) -> Change:
    """Several settings as one change: `together([setting("a", "1", "one"), setting("b", "2", "two")]).name`."""
    return Change(
        what,
        "inductor",
        part,
        "setting " + ", ".join(key for each in settings for key in each.keys),
        "\n".join(each.how for each in settings),
        " and ".join(each.disables for each in settings),
        max((each.reach for each in settings), default=SETTING),
        config=merged(*(each.config for each in settings)),
    )


RANDOM = setting(
    "fallback_random",
    "True",
    "Inductor's own random numbers",
    what="full, with eager's random numbers",
    part="random numbers",
)
PRECISION_CASTS = setting(
    "emulate_precision_casts",
    "True",
    "keeping intermediate results in a higher precision than eager does",
    what="full, with precision casts emulated",
    part="precision casts",
)
NO_FUSION = setting("max_fusion_size", "1", "fusion of kernels", part="fusion")
NO_EPILOGUES = setting("epilogue_fusion", "False", "fusion into matrix products", part="epilogue")
NO_PATTERNS = setting("pattern_matcher", "False", "pattern matching on graphs", part="pattern matcher")
NO_CUDAGRAPHS = setting("triton.cudagraphs", "False", "CUDA graphs")
# An operator whose result is used more than once is computed once; long chains of operators end sooner.
LESS_INLINING = (
    setting("realize_reads_threshold", "0", "inlining of operators whose result is used more than once"),
    setting("realize_opcount_threshold", "5", "inlining of long chains of operators"),
)
# Optimisations of Inductor that only make things faster, each with the value that leaves it out.
CAUTIOUS = (
    PRECISION_CASTS,
    # 2.14 and later; it implies the casts, and divisions and denormal numbers as eager has them.
    setting("numerics", "'strict'", "rounding and orders of reduction that are not eager's"),
    setting("cpp.simdlen", "1", "vectorised C++ code"),
    setting("cpp.threads", "1", "parallel loops in C++ code"),
    setting("cpp.enable_floating_point_contract_flag", "'off'", "contraction of multiply and add"),
    setting("cpp.enable_tiling_heuristics", "False", "tiling of C++ loops"),
    setting("cpp.enable_loop_tail_vec", "False", "vectorised loop tails"),
    NO_FUSION,
    *LESS_INLINING,
    NO_EPILOGUES,
    NO_PATTERNS,
    setting("joint_graph_constant_folding", "False", "constant folding"),
    setting("layout_optimization", "False", "other memory layouts for convolutions"),
    setting("comprehensive_padding", "False", "padding of strides"),
    setting("shape_padding", "False", "padding of matrix products"),
    setting("split_reductions", "False", "reductions in two steps"),
    setting("allow_buffer_reuse", "False", "reuse of buffers"),
    setting("inplace_buffers", "False", "writing results over inputs of a kernel"),
    setting("reorder_for_locality", "False", "reordering for locality"),
    setting("reorder_for_peak_memory", "False", "reordering for memory"),
    setting("max_autotune", "False", "autotuning"),
    setting("max_autotune_gemm", "False", "autotuning of matrix products"),
    setting("freezing", "False", "freezing of weights"),
    NO_CUDAGRAPHS,
    setting("triton.persistent_reductions", "False", "persistent reductions"),
    setting("triton.nested_reduction", "False", "reductions inside of reductions"),
    setting("triton.scalar_accumulators", "False", "one accumulator for each row of an online softmax"),
    setting("aten_distributed_optimizations.enable_simple_overlap", "False", "moving collectives ahead"),
    setting("triton.multi_kernel", "0", "choosing between kernels at run time"),
    setting("use_fast_math", "False", "fast mathematics"),
)
STATIC = Change(
    "full, with fixed sizes",
    "inductor",
    "dynamic shapes",
    "dynamic=False",
    "torch.compile(model, dynamic=False)  # and without mark_dynamic",
    "dynamic shapes",
    MODE,
    dynamic=False,
)
# What a whole program is run with to learn which part of Inductor makes its numbers wrong.
SETTINGS = (
    RANDOM,
    PRECISION_CASTS,
    together([NO_FUSION, NO_EPILOGUES], "full, without fusion", "fusion"),
    setting(
        "deterministic", "True", "choices by measurement", what="full, deterministic", part="determinism"
    ),
)
# Inductor's decompositions draw random numbers of their own.
SAME_NUMBERS = replace(RANDOM, what="the same, with eager's random numbers", backend=DECOMPOSED.backend)
FAKE_KERNELS_OF_PROGRAM = replace(FAKE_KERNELS, what="the same, fake kernels checked")


# Parts of Inductor left out of the compile of a graph; windows as `torch_internals.compiler_switches` has them.

GRAPH_PASSES = ("pre_grad_passes", "joint_graph_passes", "post_grad_passes")
# Without these passes a graph with custom or mutating operators cannot be lowered at all.
NEEDED_PASSES = (
    "decompose_auto_functionalized",
    "decompose_map_to_while_loop",
    "decompose_scan_to_while_loop",
    "decompose_triton_kernel_wrapper_functional",
    "fix_auto_functionalized_dtype_views",
    "move_constructors_to_cuda",
    "reinplace_fsdp_all_gather",
    "reinplace_inplaceable_ops",
    "respecialize_current_device",
    "stable_sort",
)


def _without(what: str, part: str | None, off: Mapping[str, Mapping[str, object]]) -> Change:
    return Change(what, "inductor", part, off=off)


ALL_KEPT_EAGER = _without("every operator kept as an eager kernel", "lowering", {"lowerings": {}})
APART = _without("every operator in a kernel of its own", "fusion", {"fusion": {}, "inlining": {}})
WITHOUT_FUSION = _without("without fusion of kernels", "fusion", {"fusion": {}})
WITHOUT_INLINING = _without("without inlining of operators", "fusion", {"inlining": {}})
WITHOUT_CUDAGRAPHS = _without("without CUDA graphs", "cudagraphs", {"cudagraphs": {}})
WITHOUT_PATTERNS = _without("without patterns", None, {"patterns": {"but": NEEDED_PASSES}})
WITHOUT_TEMPLATES = _without("without templates", "template", {"templates": {}})


def one_choice(subsystem: str, name: str) -> Change:
    """Of what autotuning chooses between, that one: `one_choice("templates", "triton_mm_3 for mm")`."""
    return _without(f"with {name} alone", "autotune choice", {subsystem: {"keep": 0, "but": [name]}})


def without_graph_passes(subsystems: Sequence[str]) -> Change:
    """All passes over graphs, of those kinds that had any: `without_graph_passes(["post_grad_passes"])`."""
    off = {name: {"but": NEEDED_PASSES} for name in (*subsystems, "patterns")}
    return _without("without graph passes", None, off)


def without_passes(passes: Sequence[tuple[str, str]]) -> Change:
    """Passes, or patterns, by subsystem and name.

    >>> without_passes([("post_grad_passes", "b2b_gemm")]).what
    'without b2b_gemm'
    """
    names = [name for _, name in passes]
    windows = {each: {"names": [n for subsystem, n in passes if subsystem == each]} for each, _ in passes}
    return _without(f"without {few(names)}", ", ".join(names), windows)


def without_applications(subsystem: str, places: Sequence[int], what: str) -> Change:
    """Some of the times that a part of Inductor was used, by number."""
    return _without(what, None, {subsystem: {"skip": list(places)}})


def without_decompositions(ops: Sequence[str]) -> Change:
    """The rung with decompositions without those of these operators."""
    what = f"without the decomposition of {few(ops)}"
    off = {"decomposition": {"names": list(ops)}}
    return Change(what, "decompositions", "decomposition", off=off, backend=DECOMPOSED.backend)


def without_python_decompositions(ops: Sequence[str] = ()) -> Change:
    """AOTAutograd without these of the decompositions that torch registers as kernels in Python, or without any."""
    what = f"AOTAutograd without the decomposition of {few(ops) if ops else 'any operator'} in Python"
    names = ", ".join(name.removeprefix("aten.") for name in ops)
    off = {"python_decompositions": {"names": list(ops)} if ops else {}}
    return Change(what, "aot_autograd", f"decomposition of {names}", off=off, backend=AOT.backend)


# What stays eager, or as it is written, once a run has shown where it fails. As workarounds, the least harmful first.

# Inside a loop Dynamo answers a graph break by leaving the whole function that holds the loop eager.
_BREAKS = "with a graph break at each; within a loop all of the looping function stays eager"


def _pasted(name: str, lines: str, disables: str, reach: int) -> Change:
    lines = _in_the_cache_key(lines, name)
    return Change(name=name, how=lines, disables=disables, reach=reach, snippet=lines)


def _in_the_cache_key(lines: str, name: str) -> str:
    """Lines that change a table of the compiler's, which is no part of the key under which it keeps what it compiled.

    Settings are part of it. Without more, a program that was compiled once is answered from the cache as before, and
    one that passes leaves that to the program without the lines.
    """
    return f"{lines}\ntorch.compiler.config.cache_key_tag += {name + '; '!r}"


def without_patterns(functions: Sequence[str], named: str) -> Change:
    """Patterns are tables of entries that know the function they were made from; each is emptied of these."""
    names = tuple(f"{function}_" for function in functions)
    lines = f"""\
from torch._inductor.pattern_matcher import PatternMatcherPass

def without(self, gm, apply=PatternMatcherPass.apply):
    for entries in self.patterns.values():
        entries[:] = [e for e in entries if not f"{{name_of(e)}}_".startswith({names!r})]
    return apply(self, gm)

def name_of(entry):
    return getattr(entry, "pattern_name", None) or getattr(getattr(entry, "handler", None), "__name__", "")

PatternMatcherPass.apply = without"""
    return _pasted(f"pattern {named} off", lines, f"the graph pattern {named}, and nothing else", PART)


NO_INFERENCE_MODE = Change(
    name="torch.no_grad() instead of torch.inference_mode()",
    how="with torch.no_grad():  # in compiled code, instead of torch.inference_mode()",
    disables="what inference mode saves over no_grad: version counters and the tracking of views",
    reach=PART,
    no_inference_mode=True,
)


def kept_eager(ops: Sequence[str]) -> Change:
    """Inductor calls the eager kernels of these operators.

    >>> kept_eager(["aten.sin.default"]).name
    'aten.sin.default kept eager'
    """
    calls = "\n".join(f"make_fallback(torch.ops.{op}, warn=False, override_decomp=True)" for op in ops)
    name = f"{', '.join(ops)} kept eager"
    return Change(
        f"{few(ops)} kept as eager kernels",
        "inductor",
        "lowering",
        name,
        _in_the_cache_key(f"from torch._inductor.graph import make_fallback\n{calls}", name),
        f"fusion of {', '.join(ops)}: Inductor calls the eager kernel",
        OPERATOR,
        off={"lowerings": {"names": list(ops)}},
    )


def not_decomposed(ops: Sequence[str]) -> Change:
    """Inductor gets these operators whole; what is not decomposed has no lowering, either."""
    pops = "\n".join(f"decompositions.pop(torch.ops.{op}, None)" for op in ops)
    name = f"{', '.join(ops)} not decomposed"
    return Change(
        name=name,
        how=_in_the_cache_key(f"from torch._inductor.decomposition import decompositions\n{pops}", name),
        disables=f"the decomposition of {', '.join(ops)}, and its fusion",
        reach=OPERATOR,
        off={"decomposition": {"names": list(ops)}, "lowerings": {"names": list(ops)}},
    )


def not_decomposed_in_python(op: str, *, fallback: bool = False) -> Change:
    """An operator without its decomposition in Python goes where eager would send it; Inductor then lowers it."""
    lines = f"""\
from torch._C import DispatchKey

for overload in torch.ops.{op}.overloads():
    op = getattr(torch.ops.{op}, overload)
    op.py_kernels.pop(DispatchKey.Autograd, None)
    op.py_kernels.pop(DispatchKey.CompositeImplicitAutograd, None)
    op._dispatch_cache.clear()"""
    if not fallback:
        return _pasted(f"{op} not decomposed", lines, f"the decomposition of {op}", OPERATOR)
    lines += f"""
from torch._inductor.decomposition import decompositions
from torch._inductor.graph import make_fallback

decompositions.pop(torch.ops.{op}.default, None)
make_fallback(torch.ops.{op}.default, warn=False, override_decomp=True)"""
    disables = f"the decomposition of {op} and its fusion: Inductor calls the eager kernel"
    return _pasted(f"{op} not decomposed, and kept eager", lines, disables, OPERATOR)


def call_eager(called: str, place: str, edited: str, nodes: frozenset[str]) -> Change:
    """One call of a line under torch.compiler.disable, as the line then reads."""
    return Change(
        name=f"{called} eager at {place}",
        how=f"{edited}  # {place}",
        disables=f"compilation of that call, {_BREAKS}",
        reach=CALL,
        eager_nodes=nodes,
    )


def modules_eager(spelled: Mapping[str, str], nodes: frozenset[str]) -> Change:
    """Modules by their paths, each as Python spells it: `modules_eager({"act": "model.act"}, nodes)`."""
    lines = [f"{each}.forward = torch.compiler.disable({each}.forward)" for each in spelled.values()]
    return Change(
        name=f"module {', '.join(spelled)} eager",
        how="\n".join(lines) + "  # model: what you compile",
        disables=f"compilation of {several(len(spelled), 'module')} ({several(len(nodes), 'call')} here), {_BREAKS}",
        reach=MODULE,
        eager_nodes=nodes,
        modules=tuple(spelled),
    )


def class_eager(name: str, nodes: frozenset[str]) -> Change:
    """Every module of a class of torch's: `class_eager("nn.ReLU", nodes)`."""
    return Change(
        name=f"every {name} eager",
        how=f"torch.{name}.forward = torch.compiler.disable(torch.{name}.forward)",
        disables=f"compilation of every torch.{name} ({several(len(nodes), 'call')} here), {_BREAKS}",
        reach=MODULE,
        eager_nodes=nodes,
        classes=(name,),
    )


def functions_eager(places: Mapping[Place, str], nodes: frozenset[str]) -> Change:
    """Functions of the program, each with where it is defined: `functions_eager({place: "model.py:12"}, nodes)`."""
    names = ", ".join(name for _, name, _ in places)
    lines = [f"@torch.compiler.disable  # above `def {name}` in {at}" for (_, name, _), at in places.items()]
    return Change(
        name=f"function {names} eager",
        how="\n".join(lines),
        disables=f"compilation of {names} and all it calls ({several(len(nodes), 'call')} here), {_BREAKS}",
        reach=FUNCTION,
        eager_nodes=nodes,
        functions=tuple(places),
    )


def break_before(place: str, code: str, node: str) -> Change:
    """A graph break before a line of the program, which is before that node."""
    return Change(
        name=f"graph break before {place}",
        how=f"torch._dynamo.graph_break()  # before {place}: {code}",
        disables="fusion across that line, and fullgraph=True",
        reach=BREAK,
        cut_before=node,
    )


def default_settings(given: Sequence[str], defaults: Mapping[str, str]) -> Change:
    """None of Inductor's settings that were given, which torch has at these defaults."""
    keys = ", ".join(given)
    return Change(
        name="default settings",
        how=f"torch.compile(model)  # without mode= and options=, and without setting {keys}",
        disables=keys,
        reach=MODE,
        config={INDUCTOR: dict(defaults)},
        default_settings=True,
    )


ONE_SIZE = replace(STATIC, disables="one compile for many sizes: every new size is compiled again")


def other_backend(name: str) -> Change:
    """The last resort: another compiler, or none. `other_backend("aot_eager").how`."""
    disables = (
        "nothing but your backend" if name == "inductor" else "all code generation: kernels are eager's"
    )
    how = f'torch.compile(model, backend="{name}")'
    return Change(name=f"backend {name}", how=how, disables=disables, reach=BACKEND, backend=name)


def other_release(version: str, given: str) -> Change:
    """Another torch: `other_release("2.12.0", "2.11.0+cpu").how == "pip install torch==2.12.0"`."""
    return Change(name=f"torch {version}", how=f"pip install torch=={version}", disables=f"torch {given}")


# For what only a whole program can be run with.

DYNAMIC = Change(
    name="dynamic=True",
    how="torch.compile(model, dynamic=True)",
    disables="code that is made for one size: a little slower, compiled once for all",
    dynamic=True,
)
MORE_COMPILES = setting("recompile_limit", "64", "nothing, but each compile takes its time", DYNAMO)
BREAKS_ALLOWED = Change(
    name="fullgraph=False",
    how="torch.compile(model)  # without fullgraph=True",
    disables="one graph for the whole function: it breaks at the line that cannot be captured",
    graph_breaks=True,
)
ERRORS_SUPPRESSED = setting(
    "suppress_errors",
    "True",
    "compilation of every function that fails, with a warning each; not with fullgraph=True",
    DYNAMO,
)
