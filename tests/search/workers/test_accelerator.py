"""On an accelerator trials run in warm processes, and a poisoned context is not used again."""

from __future__ import annotations

import pytest
import torch

from torchsleuth.core.cases.record import AmbientState, CompileSettings
from torchsleuth.core.processes.limits import Limits
from torchsleuth.core.protocol.trials import Trial
from torchsleuth.script_runtime.signature import Signature
from torchsleuth.search.workers.pool import Workers
from torchsleuth.torch_core.tensors import describe_inputs

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
RUN = Signature("runtime_error", "run", ("RuntimeError",), "whatever")
LOWERING = Signature(
    "compile_error", "compile", ("LoweringException", "NotImplementedError"), "relu cannot be lowered today"
)
NO_RELU = """
import torch._inductor.lowering as lowering
def broken_relu(x):
    raise NotImplementedError("relu cannot be lowered today")
lowering.lowerings[torch.ops.aten.relu.default] = broken_relu
"""


def cuda_trial(
    body: str, expected: Signature = RUN, embedded: str = "", before: str = "pass", **config: str
) -> Trial:
    graph = f"class Repro(torch.nn.Module):\n    def forward(self, a):\n        {before}\n        b = {body}\n        return (b,)\n"
    settings = CompileSettings(
        "aot", config={"torch._inductor.config": config}, state=AmbientState(grad=False)
    )
    inputs = describe_inputs([torch.ones(64, device="cuda")]).to_json()
    return Trial(graph, expected, settings, placeholders=("a",), inputs=inputs, embedded=embedded)


@pytest.fixture(scope="module")
def workers():
    with Workers(1, limits=Limits(compile=120, run=60)) as made:
        yield made


def test_one_process_runs_one_trial_after_the_other_and_the_server_stays_off_the_device(workers):
    tickets = [workers.submit(cuda_trial(f"torch.ops.aten.{op}.default(a)")) for op in ("neg", "sin", "cos")]
    outcomes = [ticket.result() for ticket in tickets]
    assert [(o.signature, o.error) for o in outcomes] == [(None, None)] * 3
    assert len({ticket.pid for ticket in tickets}) == 1
    with open(f"/proc/{workers._server.pid}/maps", encoding="utf-8") as maps:
        assert "/dev/nvidia" not in maps.read()
    print("seconds of three trials:", [round(o.seconds, 2) for o in outcomes])


def test_settings_of_one_trial_are_gone_in_the_next(workers):
    odd = cuda_trial("torch.ops.aten.exp.default(a)", max_fusion_size="1")
    first, second = (
        workers.submit(odd, fresh=True),
        workers.submit(cuda_trial("torch.ops.aten.exp.default(a)"), fresh=True),
    )
    assert first.result().error is None and second.result().error is None
    assert first.pid == second.pid


def test_a_poisoned_context_is_a_failure_of_its_trial_and_not_of_the_next(workers):
    where = "torch.ops.aten.full.default([3], 1000000, dtype=torch.int64, device=torch.device('cuda'))"
    poison = cuda_trial("torch.ops.aten.index.Tensor(a, [c])", before=f"c = {where}")
    first = workers.submit(poison)
    outcome = first.result()
    assert outcome.signature is not None
    print("poison:", outcome.signature.summary, outcome.seconds)
    second = workers.submit(cuda_trial("torch.ops.aten.neg.default(a)"), fresh=True)
    assert (second.result().signature, second.result().error) == (None, None)
    assert first.pid != second.pid


def test_a_lowering_error_is_found_on_the_device(workers):
    outcome = workers.run(cuda_trial("torch.ops.aten.relu.default(a)", LOWERING, NO_RELU))
    assert outcome.fails_like(LOWERING)
    assert workers.run(cuda_trial("torch.ops.aten.relu.default(a)"), fresh=True).signature is None
