"""Labels for an issue, as PyTorch's own triage would put them."""

from __future__ import annotations

import pytest

from torchsleuth.core.cases.model import Case, Triage
from torchsleuth.script_runtime.signature import Signature
from torchsleuth.search.blame.triage_case import labels_of


def case(kind: str = "compile_error", device: str = "cpu") -> Case:
    signature = Signature(kind, "compile")
    return Case(
        "0" * 8,
        "2026-01-01T00:00:00Z",
        "2.13.0",
        device,
        kind,
        "compile",
        "forward",
        "inductor",
        "aot",
        signature,
    )


@pytest.mark.parametrize(
    ("triage", "device", "label", "has"),
    [
        (Triage("inductor", "lowering"), "cpu", "oncall: cpu inductor", True),
        (Triage("inductor", "lowering"), "cuda", "oncall: cpu inductor", False),
        (Triage("inductor", "cudagraphs", subsystem="cudagraphs"), "cuda", "module: cuda graphs", True),
        (Triage("decompositions", "decomposition"), "cpu", "module: decompositions", True),
        (Triage("aot_autograd", "fake kernel"), "cpu", "module: custom-operators", True),
        (Triage("aot_autograd", "functionalization"), "cpu", "module: pt2-dispatcher", True),
        (Triage("dynamo", "capture"), "cpu", "module: dynamo", True),
    ],
)
def test_the_component_gives_the_label(triage, device, label, has):
    assert (label in labels_of(case(device=device), triage)) is has


@pytest.mark.parametrize(
    "triage", [Triage("program"), Triage("backend", "mine"), Triage("inductor", "post_grad_custom_pre_pass")]
)
def test_what_is_not_pytorchs_bug_gets_no_label(triage):
    assert labels_of(case(), triage) == ()


def test_silent_wrong_results_and_crashes_are_for_review():
    assert "triage review" in labels_of(case("accuracy"), Triage("inductor", "codegen"))
    assert "triage review" not in labels_of(case(), Triage("inductor", "codegen"))


def test_a_bug_of_symbolic_sizes_is_labelled_so():
    assert "module: dynamic shapes" in labels_of(case(), Triage("inductor", "lowering"), only_dynamic=True)
