"""The least that can be asked of a worker: one operator on one tensor; it warms a worker up, or shows that it works."""

from __future__ import annotations

from torchsleuth.core.cases.record import AmbientState, CompileSettings
from torchsleuth.core.protocol.trials import Trial
from torchsleuth.script_runtime.signature import Signature
from torchsleuth.torch_core.tensors import InputsDescription, TensorSpec

# Failures that are decided at the end of a stage.
_EXPECTED = {
    "lowering": Signature("compile_error", "compile", frames=("torch/_inductor/lowering.py:wrapped",)),
    "codegen": Signature("compile_error", "compile", frames=("torch/_inductor/scheduler.py:codegen",)),
    "run": Signature("runtime_error", "run"),
}
_GRAPH = """class Repro(torch.nn.Module):
    def forward(self, a):
        b = {call}
        return (b,)
"""


def tiny_trial(
    level: str = "aot",
    call: str = "torch.ops.aten.abs.default(a)",
    stage: str = "lowering",
    device: str = "cpu",
) -> Trial:
    """One operator, compiled up to the end of `stage`.

    >>> tiny_trial(device="cuda").inputs["inputs"][0]["device"]
    'cuda'
    """
    tensor = TensorSpec("float32", (8,), (1,), device=device, storage_nbytes=32)
    return Trial(
        _GRAPH.format(call=call),
        _EXPECTED[stage],
        CompileSettings(level, state=AmbientState(grad=False)),
        placeholders=("a",),
        inputs=InputsDescription((tensor,)).to_json(),
    )
