"""Holds each operator's fake side (fake kernel and schema, all that a compiler sees) against the real call.

Both run on the same arguments, the fake one first; the first difference is raised as `FakeMismatch`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from torchsleuth.torch_core.backends.node_steps import Steps
from torchsleuth.torch_core.backends.schema import after_call, before_call, tensors_in
from torchsleuth.torch_core.backends.wrapped_errors import Difference, FakeMismatch
from torchsleuth.torch_internals.aot_autograd import Boxed, boxed
from torchsleuth.torch_internals.fake_kernels import FakeAnswer, fake_answer
from torchsleuth.torch_internals.modes import watching_ops
from torchsleuth.torch_internals.tensors import storage_of

# torch's own: their fake kernels are tested by torch, and some differ from the real ones in ways that never matter.
_TORCHS_OWN = frozenset(
    (
        "aten", "prim", "prims", "inductor", "rngprims", "debugprims", "profiler", "higher_order",
        "export", "streams", "quantized", "quantized_decomposed", "mkldnn", "mkldnn_prepacked", "onednn",
        "xnnpack", "c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor", "symm_mem",
        "fsdp",
    )
)  # fmt: skip
# The random state that fused attention returns lies on the CPU in the one world and on the device in the other.
_RANDOM_STATE_OUTPUTS = {
    "aten._scaled_dot_product_flash_attention.default": (6, 7),
    "aten._flash_attention_forward.default": (2, 3),
    "aten._scaled_dot_product_efficient_attention.default": (2, 3),
    "aten._efficient_attention_forward.default": (2, 3),
    "aten._scaled_dot_product_cudnn_attention.default": (6, 7),
}
_FIX_FAKE = "correct the function given to torch.library.register_fake"


def crossref_compiler(every_op: bool) -> Callable[[torch.fx.GraphModule, Sequence[Any]], Boxed]:
    """A compiler for AOTAutograd that runs the graph eagerly and checks custom operators, or every one.

    Use: `through_aot(gm, inputs, AotPlan(crossref_compiler(every_op=False)))`.
    """

    def compile_graph(graph: torch.fx.GraphModule, _inputs: Sequence[Any]) -> Boxed:
        def run(args: list[Any]) -> Any:
            steps = Steps(graph)

            def check(op: Any, op_args: tuple[Any, ...], op_kwargs: dict[str, Any], call: Callable) -> Any:
                if not every_op and op.namespace in _TORCHS_OWN:
                    return call()
                return checked_call(op, op_args, op_kwargs, call, steps)

            with watching_ops(check):
                return steps.boxed_run(args)

        return boxed(run)

    return compile_graph


def checked_call(
    op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], call: Callable[[], Any], steps: Steps
) -> Any:
    """The result of the real call, or `FakeMismatch` where the fake side or the schema said otherwise."""
    fake = fake_answer(op, args, kwargs) if _can_be_faked(args, kwargs) else None
    before = before_call(op, args, kwargs)
    inputs = tensors_in([args, list(kwargs.values())])
    result = call()
    for difference in after_call(before, result):
        raise FakeMismatch(str(op), difference, steps.place)
    if fake is not None:
        for difference in differences(str(op), fake, result, inputs):
            raise FakeMismatch(str(op), difference, steps.place) from fake.error
    return result


def differences(
    op: str, fake: FakeAnswer, result: Any, inputs: Sequence[torch.Tensor]
) -> Iterator[Difference]:
    """Everything in which the fake answer and the real result differ, the most telling first."""
    if fake.error is not None:
        raised = f"{type(fake.error).__name__} ({_one_line(fake.error)})"
        yield Difference("exception", "the call", raised, "a result", _FIX_FAKE)
        return
    fakes, reals = tensors_in(fake.outputs), tensors_in(result)
    if len(fakes) != len(reals):
        yield Difference("outputs", "number of tensors", str(len(fakes)), str(len(reals)), _FIX_FAKE)
        return
    fake_inputs = tensors_in([fake.inputs[0], list(fake.inputs[1].values())])
    for number, (said, did) in enumerate(zip(fakes, reals)):
        if number in _RANDOM_STATE_OUTPUTS.get(op, ()):
            continue
        for field, one, other in _properties(said, did):
            yield Difference(field, f"{field} of output {number}", one, other, _FIX_FAKE)
        one, other = (
            _shared_with(said, fake_inputs, fakes[:number]),
            _shared_with(did, inputs, reals[:number]),
        )
        if one != other:
            yield Difference("aliasing", f"memory of output {number}", one, other, _FIX_FAKE)


def _properties(said: torch.Tensor, did: torch.Tensor) -> Iterator[tuple[str, str, str]]:
    """The properties of one output that differ: name, fake's, real's. A symbolic size fits any."""
    for field in ("dtype", "device", "layout"):
        if getattr(said, field) != getattr(did, field):
            yield field, str(getattr(said, field)), str(getattr(did, field))
    if len(said.shape) != len(did.shape) or not all(map(_fits, said.shape, did.shape)):
        yield "shape", str(list(said.shape)), str(list(did.shape))
        return  # strides of another shape tell nothing
    if storage_of(said) is None or storage_of(did) is None or did.numel() == 0:
        return
    # The stride of a dimension of size one is never used.
    used = [i for i, size in enumerate(did.shape) if size != 1]
    if not all(_fits(said.stride(i), did.stride(i)) for i in used):
        yield "stride", str(list(said.stride())), str(list(did.stride()))
    if not _fits(said.storage_offset(), did.storage_offset()):
        yield "storage offset", str(said.storage_offset()), str(did.storage_offset())
    if said.is_conj() != did.is_conj() or said.is_neg() != did.is_neg():
        yield "conjugation", str(said.is_conj()), str(did.is_conj())


def _fits(said: Any, did: int) -> bool:
    return said == did if isinstance(said, int) else True


def _shared_with(
    output: torch.Tensor, inputs: Sequence[torch.Tensor], earlier: Sequence[torch.Tensor]
) -> str:
    own = storage_of(output)
    if own is None:
        return "its own"
    shared = [f"input {i}" for i, each in enumerate(inputs) if storage_of(each) == own]
    shared += [f"output {i}" for i, each in enumerate(earlier) if storage_of(each) == own]
    return f"shared with {' and '.join(shared)}" if shared else "its own"


def _can_be_faked(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    values = [*args, *kwargs.values()]
    plain = all(type(tensor) in (torch.Tensor, torch.nn.Parameter) for tensor in tensors_in(values))
    # The fake of an object that lives in C++ is a matter between torch and its class.
    return plain and not any(isinstance(value, torch.ScriptObject) for value in values)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
