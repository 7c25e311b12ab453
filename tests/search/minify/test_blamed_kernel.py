"""A C++ compiler that refuses a kernel names its file; the nodes that the kernel was made of are looked at first."""

import pytest
import torch
from torch._functorch import config as functorch_config
from torch._inductor import config as inductor_config
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.exc import CppCompileError

from torchsleuth.search.minify.subsets import Elements, smallest_failing
from torchsleuth.torch_internals.compile_trace import traced, unfinished


def test_the_nodes_of_a_refused_kernel_are_the_last_step_that_did_not_end(tmp_path, monkeypatch):
    def refuse(self, argtypes, source_code):
        file = tmp_path / "kernel.main.cpp"
        file.write_text(f"{source_code}\n// and what binds it to Python")
        raise CppCompileError(["g++"], f"{file}:3:4: error: conflicting declaration")

    monkeypatch.setattr(AsyncCompile, "cpp_pybinding", refuse)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: torch.cos(torch.atan(x) @ x))
    with (
        inductor_config.patch(fx_graph_cache=False),
        functorch_config.patch(enable_autograd_cache=False),
        traced(str(tmp_path / "trace")),
        torch.no_grad(),
        pytest.raises(Exception, match="conflicting"),
    ):
        compiled(torch.randn(4, 4))
    last = unfinished(tmp_path / "trace")[-1]
    assert (last.kind, last.nodes) == ("kernel", ("atan",))


def test_many_that_are_blamed_are_asked_about_together_before_each_alone():
    asked = []

    def ask(subsets):
        asked.extend(subsets)
        return next((place for place, each in enumerate(subsets) if {20, 27} <= set(each)), None)

    blamed = tuple(range(18, 30))
    found = smallest_failing(Elements(100, seeds=blamed, blamed=blamed), ask)
    assert found == (20, 27) and asked[0] == blamed
    assert all(set(each) <= set(blamed) for each in asked)
