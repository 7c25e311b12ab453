"""The user's Triton kernels in graphs: written with their source, read back, launched as people write it."""

import importlib.util
import operator
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from torch._higher_order_ops.triton_kernel_wrap import (
    kernel_side_table,
    triton_kernel_wrapper_functional,
    triton_kernel_wrapper_mutation,
)

from torchsleuth.core.cases.record import CompileSettings, GraphRecord
from torchsleuth.script_runtime.reader import read_graph
from torchsleuth.script_runtime.signature import Signature
from torchsleuth.search.minify.case_state import free_names
from torchsleuth.torch_core.compare.reference.float64 import Float64Run, widen_graph
from torchsleuth.torch_core.graphs.printer import Unprintable, print_graph
from torchsleuth.torch_core.repro.script import script_text
from torchsleuth.torch_core.repro.small import small_scripts
from torchsleuth.torch_core.repro.small_graph import SmallGraph, SmallInput
from torchsleuth.torch_core.tensors import describe_inputs
from torchsleuth.watched.value_source import embed


@pytest.fixture(autouse=True)
def table_of_one_test():
    """Torch writes the source of every kernel in its table into scripts of its own, also of graphs without any."""
    yield
    kernel_side_table.reset_table()


STUB = Path(__file__).parents[2] / "kit" / "stub_triton"
KERNELS = """
    import torch
    import triton
    import triton.language as tl

    FACTOR = tl.constexpr(2)

    @triton.jit
    def scaled(x):
        return x * FACTOR.value

    def configs():
        return [triton.Config({"BLOCK": size}, num_warps=2) for size in (64, 128)]

    @triton.jit
    def double(source, target, count, BLOCK: tl.constexpr, KIND: tl.constexpr = tl.float32):
        target[:count] = scaled.fn(source[:count])

    @triton.autotune(configs=configs(), key=["count"])
    @triton.heuristics({"EVEN": lambda args: args["count"] % args["BLOCK"] == 0})
    @triton.jit
    def tuned(source, target, count, BLOCK: tl.constexpr, EVEN: tl.constexpr):
        target[:count] = source[:count] + BLOCK

    @triton.heuristics({"EVEN": lambda args: args["count"] % args["BLOCK"] == 0})
    @triton.jit
    def guessed(source, target, count, BLOCK: tl.constexpr, EVEN: tl.constexpr):
        target[:count] = source[:count] + BLOCK

    @triton.autotune(configs=configs(), key=["count"])
    @triton.jit
    def picked(source, target, count, BLOCK: tl.constexpr):
        target[:count] = source[:count] + BLOCK

    def made(offset):
        @triton.jit(do_not_specialize=["count"])
        def shifted(source, target, count, BLOCK: tl.constexpr):
            target[:count] = source[:count] + offset

        return shifted
"""


def loaded(name, path, text, monkeypatch):
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def kernels(tmp_path, monkeypatch):
    """The module of a user's file with kernels in it; what torch launches them with is loaded without the stub."""
    importlib.import_module("torch._inductor.codegen.wrapper")
    for name in [each for each in sys.modules if each.partition(".")[0] == "triton"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(STUB))
    yield loaded("kernels", tmp_path / "kernels.py", textwrap.dedent(KERNELS), monkeypatch)
    for name in [each for each in sys.modules if each.partition(".")[0] == "triton"]:
        del sys.modules[name]  # for good: monkeypatch would bring the stub back for all tests that follow


def launching(kernel, *, functional=True, grid=((1, 1, 1),), **constants):
    """A graph that launches a kernel on its input, as AOTAutograd leaves it, or as Dynamo does."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    out = graph.call_function(torch.ops.aten.zeros.default, ([4],))
    given = {
        "kernel_idx": kernel_side_table.add_kernel(kernel),
        "constant_args_idx": kernel_side_table.add_constant_args({"count": 3, **constants}),
        "grid": list(grid),
        "tma_descriptor_metadata": {},
        "kwargs": {"source": x, "target": out},
    }
    if functional:
        given["tensors_to_clone"] = ["target"]
        launched = graph.call_function(triton_kernel_wrapper_functional, (), given)
        out = graph.call_function(operator.getitem, (launched, "target"))
    else:
        graph.call_function(triton_kernel_wrapper_mutation, (), given)
    graph.output((graph.call_function(torch.ops.aten.neg.default, (out,)),))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


X = torch.tensor([1.0, 2.0, 3.0, 4.0])


@pytest.mark.parametrize("functional", [True, False])
def test_a_launch_is_read_back_equal_and_does_the_same(kernels, functional):
    import triton.language as tl

    gm = launching(kernels.double, functional=functional, BLOCK=64, KIND=tl.float16)
    printed = print_graph(gm)
    assert printed.references == {"double": kernels.double}
    assert "'KIND': triton.language.float16" in printed.source
    again = read_graph(printed.source, namespace={**printed.references, "triton": sys.modules["triton"]})
    assert print_graph(again).source == printed.source
    assert again(X)[0].tolist() == gm(X)[0].tolist() == [-2.0, -4.0, -6.0, 0.0]


def test_the_search_reads_a_launch_without_the_kernel_and_writes_it_again(kernels):
    printed = print_graph(launching(kernels.tuned, grid=((5, 1, 1), (3, 1, 1))))
    assert free_names(printed.source) == ["tuned"]

    def tuned():
        raise AssertionError("never called")

    tuned.__module__ = "__main__"
    assert print_graph(read_graph(printed.source, namespace={"tuned": tuned})).source == printed.source


def test_a_kernel_that_this_process_does_not_know_is_refused(kernels):
    gm = launching(kernels.double, BLOCK=64)
    node = next(n for n in gm.graph.nodes if "kernel_idx" in n.kwargs)
    node.kwargs = {**node.kwargs, "kernel_idx": 10_000}
    with pytest.raises(Unprintable, match="Triton kernel number 10000"):
        print_graph(gm)


def reconfigured(kernel, *constants, **settings):
    """What Dynamo makes of `kernel[grid](..., num_warps=8)`, and of heuristics."""
    import triton

    return triton.autotune(configs=[triton.Config(each, **settings) for each in constants], key=[])(kernel)


@pytest.mark.parametrize("which", ["double", "picked", "tuned", "guessed", "configured", "made"])
def test_a_script_of_a_kernel_stands_alone(kernels, tmp_path, monkeypatch, which):
    """Helpers, constants, configurations from a function, heuristics, closures: all of it comes along."""
    even = [{"BLOCK": size, "EVEN": False} for size in (64, 128)]
    kernel, constants, wanted = {
        "double": (kernels.double, {"BLOCK": 64}, [-2.0, -4.0, -6.0, 0.0]),
        "picked": (kernels.picked, {}, [-65.0, -66.0, -67.0, 0.0]),
        "tuned": (reconfigured(kernels.tuned.fn.fn, *even), {}, [-65.0, -66.0, -67.0, 0.0]),
        # Dynamo has asked the heuristics, and launches the kernel below them.
        "guessed": (kernels.guessed.fn, {"BLOCK": 64, "EVEN": False}, [-65.0, -66.0, -67.0, 0.0]),
        "configured": (reconfigured(kernels.double, {}, num_warps=8), {"BLOCK": 64}, [-2.0, -4.0, -6.0, 0.0]),
        "made": (kernels.made(5), {"BLOCK": 64}, [-6.0, -7.0, -8.0, 0.0]),
    }[which]
    grid = ((5, 1, 1), (3, 1, 1)) if which in ("tuned", "picked") else ((1, 1, 1),)
    gm = launching(kernel, grid=grid, **constants)
    printed = print_graph(gm)
    embedded = embed(printed.references)
    record = GraphRecord(CompileSettings("aot"), imports=printed.imports, embedded=embedded)
    text = script_text(record, printed.source, None, inputs={}, stable=True)
    holds = {
        "double": "@triton.jit\ndef double",
        "picked": "configs=configs()",
        "tuned": "triton.Config({'BLOCK': 128, 'EVEN': False}",
        "guessed": "guessed_configured = guessed.fn",
        "made": "do_not_specialize",
        "configured": "num_warps=8",
    }
    assert holds[which] in text
    script = loaded("script", tmp_path / "script.py", text, monkeypatch)
    gm = read_graph(printed.source, "Repro", vars(script))
    assert gm(X)[0].tolist() == wanted


def small(gm, embedded):
    spec = describe_inputs([X]).inputs[0]
    return SmallGraph(
        gm,
        (SmallInput("x", spec, X),),
        CompileSettings("dynamo", "inductor"),
        Signature("compile_error", "compile", ("a.Fault",), "no such thing"),
        embedded,
    )


@pytest.mark.parametrize("functional", [True, False])
def test_the_smallest_script_launches_the_kernel_as_a_person_would(kernels, functional):
    gm = launching(kernels.double, functional=functional, BLOCK=64)
    [text, *_] = [each.text for each in small_scripts(small(gm, embed({"double": kernels.double})))]
    assert "double[(1, 1, 1)](source=x, target=" in text and "count=3, BLOCK=64)" in text
    scope = {}
    body = text.partition("EXPECTED = ")[2].partition("\n")[2].partition('print("torchsleuth: comp')[0]
    names = vars(kernels)
    exec(text.partition("EXPECTED")[0], scope)
    exec(body[body.index("def f(") :], scope | names, scope)
    assert scope["f"](X).tolist() == [-2.0, -4.0, -6.0, 0.0]


def test_where_each_configuration_has_a_grid_the_smallest_script_builds_the_graph(kernels):
    gm = launching(kernels.tuned, grid=((5, 1, 1), (3, 1, 1)))
    forms = {each.form: each.text for each in small_scripts(small(gm, embed({"tuned": kernels.tuned})))}
    assert set(forms) == {"nodes"}
    assert "import kernel_side_table" in forms["nodes"]
    assert "'kernel_idx': kernel_side_table.add_kernel(tuned)" in forms["nodes"]


def test_the_float64_reference_launches_a_kernel_on_the_dtypes_it_is_written_for(kernels):
    seen = []

    def watched(source, target, count, BLOCK):
        seen.append((source.dtype, target.dtype))
        target[:count] = source[:count] * 2

    import triton

    kernel = triton.jit(watched)
    for functional in (True, False):
        gm = launching(kernel, functional=functional, BLOCK=64)
        dtypes = {node.name: torch.float32 for node in gm.graph.nodes}
        [result] = Float64Run(widen_graph(gm), gm, dtypes).run(X.double() / 3)
        assert result.dtype == torch.float64
        assert torch.allclose(result, torch.tensor([-2 / 3, -4 / 3, -2.0, 0.0], dtype=torch.float64))
    assert set(seen) == {(torch.float32, torch.float32)}


def test_a_launch_keeps_all_of_its_arguments_while_a_graph_is_made_small(kernels):
    """Which kernel it is was left out as an argument that has a default; the search ended with an error of ours."""
    from torchsleuth.search.minify.reducers.calls import plainer_arguments
    from torchsleuth.search.minify.states import state_of

    edits = plainer_arguments(state_of(launching(kernels.double, BLOCK=64), [X]))
    assert not [edit.what for edit in edits if "kernel_idx" in edit.what or "grid" in edit.what]
