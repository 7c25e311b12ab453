"""What an experiment may change besides the compiler's parts: no backward, and lines a person would paste."""

from dataclasses import replace

import pytest
import torch

from torchsleuth.child import compile as inside
from torchsleuth.core.cases.record import AmbientState, CompileSettings
from torchsleuth.core.changes import Change
from torchsleuth.core.protocol.trials import Trial
from torchsleuth.script_runtime.signature import Signature
from torchsleuth.torch_core.tensors import describe_inputs

GRAPH = """class Repro(torch.nn.Module):
    def forward(self, a):
        b = torch.igamma(a, a)
        return (b,)
"""


@pytest.fixture(autouse=True)
def _process(monkeypatch):
    monkeypatch.setattr(inside, "_pasted", False)
    monkeypatch.setattr(inside.runner, "_repro_phase", inside.runner._repro_phase)


def trial(**change):
    inputs = describe_inputs([torch.ones(2, requires_grad=True)]).to_json()
    settings = CompileSettings("dynamo", state=AmbientState(grad=True))
    expected = Signature("compile_error", "compile")
    how = Change(uncompiled=True, **change)
    return Trial(GRAPH, expected, settings, ("a",), inputs, change=how, stop_early=False)


def test_a_derivative_that_only_a_backward_needs_is_no_failure_of_the_forward():
    whole = inside.run_trial(trial())
    assert "igamma" in whole.signature.message
    assert inside.run_trial(trial(forward_only=True)).signature is None


def test_a_snippet_runs_first_and_the_process_serves_nobody_else(monkeypatch):
    monkeypatch.setattr(torch, "pasted_here", False, raising=False)
    assert inside.still_good()
    inside.run_trial(trial(forward_only=True, snippet="torch.pasted_here = True"))
    assert torch.pasted_here
    assert not inside.still_good()


def test_a_backend_of_ours_is_found_where_its_entry_point_is_not_installed(monkeypatch):
    """From a source tree torch knows none of them; "Invalid backend" was taken for a failure of AOTAutograd's."""
    from torch._dynamo.backends import registry
    from torch._dynamo.exc import InvalidBackend

    for table in ("_BACKENDS", "_COMPILER_FNS"):
        kept = {k: v for k, v in getattr(registry, table).items() if not k.startswith("sleuth_")}
        monkeypatch.setattr(registry, table, kept)
    monkeypatch.setattr(registry, "_discover_entrypoint_backends", lambda: None, raising=False)
    with pytest.raises(InvalidBackend):
        registry.lookup_backend("sleuth_aot_eager")
    graph = GRAPH.replace("torch.igamma(a, a)", "a.sin()")
    asked = trial(backend="sleuth_aot_eager")
    outcome = inside.run_trial(replace(asked, graph=graph, change=Change(backend="sleuth_aot_eager")))
    assert (outcome.signature, outcome.error) == (None, None)
