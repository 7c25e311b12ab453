"""Did a real operator call do what was said of it, by its schema and by its fake kernel - all that a compiler sees?

*Schema*: copies of the arguments are taken before the call and compared bit by bit after it, so that a change of one
ulp, or of a NaN's bits, is a change. Two tensors alias where they share storage: that is what a compiler goes by.
*Fake kernel*: it runs on the same arguments before the real call; the first difference is raised as `FakeMismatch`.
The graph runs node by node, so at any moment it is known which line of the user's program is at work.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchsleuth.torch_core.backends.errors import Difference, FakeMismatch
from torchsleuth.torch_core.graphs.provenance import source_line
from torchsleuth.torch_internals.aot_autograd import Boxed, boxed
from torchsleuth.torch_internals.decompositions import FakeAnswer, fake_answer
from torchsleuth.torch_internals.modes import outside_all_modes, watching_ops
from torchsleuth.torch_internals.operators import custom_operator_name
from torchsleuth.torch_internals.schemas import Declared, declared
from torchsleuth.torch_internals.tensors import storage_of


class Steps(torch.fx.Interpreter):
    """An interpreter that remembers the node it is at: `Steps(gm).run(x)`."""

    def __init__(self, gm: torch.fx.GraphModule) -> None:
        super().__init__(gm)
        # The interpreter would add lines to the message of whatever is raised, ours included.
        self.extra_traceback = False
        self.at: torch.fx.Node | None = None

    def run_node(self, n: torch.fx.Node) -> Any:
        self.at = n
        return super().run_node(n)

    @property
    def place(self) -> str:
        """`model.py:84` of the node at work, or `""`."""
        return place_of(self.at)


def place_of(node: torch.fx.Node | None) -> str:
    """`model.py:84` of a node, or `""` where its graph does not say."""
    line = source_line(node) if node is not None else None
    return line.place if line else ""


# torch's own operators that return (a part of) their input by design and say so in their name or documentation.
_ALIAS_BY_DESIGN = frozenset(
    f"aten::{name}"
    for name in [
        "_unsafe_view",
        "unsafe_split",
        "unsafe_chunk",
        "unsafe_split_with_sizes",
        "lift",
        "lift_fresh",
    ]
)


@dataclass(frozen=True)
class Before:
    """The arguments of a call as they were: per argument, each tensor with its bits, shape, strides and storage."""

    schema: Declared
    name: str
    tensors: tuple[tuple[tuple[torch.Tensor, Any], ...], ...]


def before_call(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Before:
    """Notes what `op` is about to be called with: `after_call(before_call(op, args, {}), op(*args))`."""
    schema = declared(op, args, kwargs)
    with outside_all_modes(), torch.no_grad():
        tensors = tuple(
            tuple((tensor, _state(tensor)) for tensor in tensors_in(value))
            for value in schema.arguments.values()
        )
    return Before(schema, schema.text.partition("(")[0].partition(".")[0], tensors)


def after_call(before: Before, result: Any) -> Iterator[Difference]:
    """Every undeclared change and alias of the call that gave `result`."""
    returns = result if isinstance(result, tuple) and before.schema.returns != 1 else (result,)
    outputs = [tensors_in(each) for each in returns]
    with outside_all_modes(), torch.no_grad():
        yield from _mutations(before)
        if before.name not in _ALIAS_BY_DESIGN:
            yield from _aliases_of_inputs(before, outputs)
            yield from _aliases_of_outputs(before, outputs)


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors of an argument or a result, in order: `tensors_in([x, None, (y,)])` is `[x, y]`."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for each in value for tensor in tensors_in(each)]
    return []


def _mutations(before: Before) -> Iterator[Difference]:
    names = list(before.schema.arguments)
    mutable = {i for i in range(len(names)) if before.tensors[i] and before.schema.mutates(i)}
    # An undeclared argument that shares memory with a declared one changes with it, rightly.
    excused = {storage_of(tensor) for i in mutable for tensor, _ in before.tensors[i]}
    for i, name in enumerate(names):
        if i in mutable:
            continue
        for tensor, state in before.tensors[i]:
            if storage_of(tensor) not in excused and _differs(state, _state(tensor)):
                yield Difference(
                    "mutation",
                    f"argument {name!r}",
                    "it stays as it is",
                    "another value",
                    f"declare the mutation (mutates_args={{{name!r}}}, or Tensor(a!) {name} in the schema) "
                    "or work on a clone",
                )


def _aliases_of_inputs(before: Before, outputs: list[list[torch.Tensor]]) -> Iterator[Difference]:
    for (j, output), (i, name) in itertools.product(enumerate(outputs), enumerate(before.schema.arguments)):
        inputs = [tensor for tensor, _ in before.tensors[i]]
        if not _share(output, inputs):
            continue
        if not before.schema.output_may_alias(j, i):
            yield _alias(f"output {j}", f"memory shared with argument {name!r}")
        elif any(out is given for out in output for given in inputs) and not before.schema.mutates(i):
            yield _alias(f"output {j}", f"argument {name!r} itself instead of a view")


def _aliases_of_outputs(before: Before, outputs: list[list[torch.Tensor]]) -> Iterator[Difference]:
    for one, other in itertools.combinations(range(len(outputs)), 2):
        if _share(outputs[one], outputs[other]) and not before.schema.outputs_may_alias(one, other):
            yield _alias(f"output {one}", f"memory shared with output {other}")
    for j, output in enumerate(outputs):
        storages = [storage_of(tensor) for tensor in output]
        if len(set(storages)) < len(storages) and not before.schema.lists_may_share[j]:
            yield _alias(f"output {j}", "a list whose tensors share memory")


def _alias(what: str, did: str) -> Difference:
    return Difference(
        "aliasing",
        what,
        "memory of its own",
        did,
        "return a clone, or declare the alias, Tensor(a), in the schema",
    )


def _share(some: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    storages = {storage_of(tensor) for tensor in some} - {None}
    return any(storage_of(tensor) in storages for tensor in others)


def _state(tensor: torch.Tensor) -> Any:
    """Bits, shape, strides and storage; None for tensors without plain memory, which are not looked at."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout != torch.strided:
        return None
    if tensor.is_meta:
        return None
    plain = tensor.int_repr() if tensor.is_quantized else tensor.detach()
    bits = plain.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    return bits.reshape(-1).view(torch.uint8), tensor.shape, tensor.stride(), storage_of(tensor)


def _differs(before: Any, after: Any) -> bool:
    if before is None or after is None:
        return False
    return before[1:] != after[1:] or not torch.equal(before[0], after[0])


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
                # The fake kernels of torch's own are tested by torch, and some differ in ways that never matter.
                if not every_op and custom_operator_name(op) is None:
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
        raised = f"{type(fake.error).__name__} ({' '.join(str(fake.error).split())[:200]})"
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
