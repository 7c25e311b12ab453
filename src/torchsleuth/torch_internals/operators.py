"""What graphs call and hold of torch: operators, functions, specs of containers; their kinds, names and origins, and
the groups of processes that they communicate in.

An `OpOverload` prints as `aten.add.Tensor` and is reached as `torch.ops.aten.add.Tensor`; a higher-order
operator is reached as `torch.ops.higher_order.<name>`. Of a function the best spelling is wanted: Dynamo writes
`torch._C._nn.linear` where the user wrote `F.linear`; they are one object, and the public spelling survives releases
better.

Versions: the classes of `torch._ops`, what a bare `import torch` loads, the JSON of a `TreeSpec`, the names of groups
and the fake backend are alike in 2.11..2.15; namespaces and wrapper classes are listed below.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch.utils import _pytree

# The namespaces of torch 2.11..2.15 after importing Dynamo, Inductor, distributed and ONNX: listed with
# `{n.split("::")[0] for n in torch._C._dispatch_get_all_op_names()}` and the TorchScript-only `prim`.
TORCH_NAMESPACES = frozenset((
    "_c10d_functional", "_c10d_functional_autograd", "_dtensor", "_inductor_test", "_native", "_native_aot",
    "_quantized", "_test", "aten", "aten_hop", "c10d", "c10d_functional", "coor", "debug_mode_ops", "debugprims",
    "export", "flex_gemm", "flex_lib", "fsdp", "higher_order", "inductor", "inductor_prims", "mempool", "mkl", "mkldnn",
    "mkldnn_prepacked", "onednn", "onnx", "onnx_symbolic", "prim", "prims", "profiler", "quantization", "quantized",
    "quantized_decomposed", "rngprims", "sparse", "static_runtime", "streams", "symm_mem", "xnnpack",
))  # fmt: skip

# Where an operator namespace that `import torch` does not fill is defined.
_NAMESPACE_MODULES = {
    "quantized_decomposed": "torch.ao.quantization.fx._decomposed",
    "c10d_functional": "torch.distributed._functional_collectives",
    "_c10d_functional": "torch.distributed._functional_collectives",
    "streams": "torch._dynamo.variables.streams",
    "flex_lib": "torch._higher_order_ops.flex_attention",
    "flex_gemm": "torch._higher_order_ops.flex_gemm",
    "mempool": "torch._dynamo.variables.memory",
    "fsdp": "torch.distributed.fsdp",
    "inductor": "torch._inductor",
    "rngprims": "torch._prims.rng_prims",
    "inductor_prims": "torch._inductor.inductor_prims",
}


# Wrapper classes (2.11..2.15) and the attribute that holds what they wrap.
_NUMPY_WRAPPERS = {
    "numpy_to_tensor_wrapper": "f",
    "numpy_method_wrapper": "method",
    "numpy_operator_wrapper": "op",
}


def is_operator(target: object) -> bool:
    """Whether the target is one of torch's operator objects (overload, packet or higher-order)."""
    return isinstance(target, OpOverload | OpOverloadPacket | HigherOrderOperator)


def is_higher_order(target: object) -> bool:
    """Whether the target is an operator that is given graphs: a branch, a loop, a wrapped layer."""
    return isinstance(target, HigherOrderOperator)


def operator_path(target: object) -> str:
    """`torch.ops.aten.add.Tensor`: how the operator is reached; the caller checks that it resolves."""
    if isinstance(target, HigherOrderOperator):
        return f"torch.ops.higher_order.{target.name()}"
    return f"torch.ops.{target}"


def operator_import(target: object) -> str | None:
    """The module that must be imported before the operator is there, if `import torch` is not enough."""
    if isinstance(target, HigherOrderOperator):
        module = type(target).__module__
        return None if module in ("torch._ops", "__main__") else module
    return _NAMESPACE_MODULES.get(str(target).partition(".")[0])


def custom_operator_name(target: object) -> str | None:
    """`"mylib::foo"` where the operator is not one that torch ships, else None."""
    if isinstance(target, OpOverload):
        qualified = target.name().partition(".")[0]
    elif isinstance(target, OpOverloadPacket):
        qualified = str(target).replace(".", "::", 1)
    else:
        return None
    if qualified.partition("::")[0] in TORCH_NAMESPACES or _defined_inside_torch(qualified):
        return None
    return qualified


def users_operator(graph: torch.fx.GraphModule) -> str | None:
    """The name of an operator of this graph, or of one inside it, that is none of torch's own: `users_operator(gm)`."""
    graphs = [each for each in graph.modules() if isinstance(each, torch.fx.GraphModule)]
    found = (custom_operator_name(node.target) for each in graphs for node in each.graph.nodes)
    return next((name for name in found if name is not None), None)


def _defined_inside_torch(qualified: str) -> bool:
    from torch._library.custom_ops import OPDEFS

    definition = OPDEFS.get(qualified)
    module = getattr(getattr(definition, "_init_fn", None), "__module__", "") or ""
    return module.partition(".")[0] in ("torch", "functorch")


@dataclass(frozen=True)
class TritonLaunch:
    """A call of a Triton kernel of the user's in a graph: the kernel, a name for it, its constant arguments."""

    kernel: object
    name: str
    constants: Mapping[str, object]


def triton_launch(target: object, kwargs: Mapping[str, object]) -> TritonLaunch | None:
    """The user's Triton kernel that a node calls, else None; raises `LookupError` where this process does not know it.

    2.11..2.15: kernels and constants lie in one table of the process, and nodes hold their places in it.
    """
    if not isinstance(target, HigherOrderOperator) or not target.name().startswith("triton_kernel_wrapper"):
        return None
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

    index, place = kwargs.get("kernel_idx"), kwargs.get("constant_args_idx")
    try:
        kernel = kernel_side_table.get_kernel(index)
        constants = kernel_side_table.get_constant_args(place)
    except (AssertionError, TypeError, KeyError) as error:
        raise LookupError(f"number {index}") from error
    return TritonLaunch(kernel, _kernel_name(kernel), constants)


def _kernel_name(kernel: object) -> str:
    """The name of a kernel's function; one that Dynamo wrapped anew, and no name of the program holds, has its own."""
    function = kernel
    while not isinstance(getattr(function, "__name__", None), str) and hasattr(function, "fn"):
        function = function.fn
    name = str(getattr(function, "__name__", "kernel"))
    home = vars(sys.modules.get(str(getattr(function, "__module__", ""))) or sys)
    held = home.get(name, kernel if function is kernel else None)
    return name if held is kernel else f"{name}_configured"


def triton_value(value: object) -> tuple[str, tuple[object] | None] | None:
    """A value of Triton's own by its name in `triton.language`, and what that is called with, if it is.

    For `tl.float32` that is `("float32", None)`, for `tl.constexpr(4)` it is `("constexpr", (4,))`.
    """
    if not type(value).__module__.startswith("triton."):
        return None
    language = vars(sys.modules.get("triton.language") or sys)
    if type(value) is language.get("constexpr"):
        return "constexpr", (value.value,)  # type: ignore[attr-defined]
    names = [name for name, held in language.items() if held is value and name.isidentifier()]
    return (names[0], None) if names else None


def numpy_wrapper(target: object) -> tuple[str, object] | None:
    """Dynamo calls numpy through wrapper objects: the wrapper's class, and what it wraps.

    For a call of `array.reshape` that is `("torch._dynamo.utils.numpy_method_wrapper", "reshape")`.
    """
    module = sys.modules.get("torch._dynamo.utils")
    for name, inner in _NUMPY_WRAPPERS.items():
        if module is not None and type(target) is getattr(module, name, None):
            return f"torch._dynamo.utils.{name}", getattr(target, inner)
    return None


def short_name(target: object) -> str:
    """`relu` for `aten.relu.default`, `cond` for the higher-order operator, `linear` for a function.

    >>> short_name(torch.ops.aten.sum.dim_IntList)
    'sum'
    """
    if isinstance(target, OpOverload):
        return target._schema.name.rpartition("::")[2]
    if isinstance(target, HigherOrderOperator):
        return target.name()
    return target if isinstance(target, str) else str(getattr(target, "__name__", target))


def is_view(target: object) -> bool:
    """Whether what an operator returns shares the memory of what it is given, as its schema says.

    >>> is_view(torch.ops.aten.transpose.int), is_view(torch.ops.aten.add.Tensor)
    (True, False)
    """
    return isinstance(target, OpOverload) and target.is_view


def aten_name(target: object) -> str | None:
    """`sum` where the target is an overload of an aten operator, else None.

    >>> aten_name(torch.relu)
    """
    if isinstance(target, OpOverload) and target.namespace == "aten":
        return short_name(target)
    return None


def nesting(node: torch.fx.Node) -> int:
    """1 where a node opens a level of torch.func (vmap, grad, jvp), -1 where it closes one, else 0.

    2.11..2.15: the functions are called `_vmap_increment_nesting`, `_grad_decrement_nesting` and so on.
    """
    name = str(getattr(node.target, "__name__", ""))
    return 1 if name.endswith("_increment_nesting") else -1 if name.endswith("_decrement_nesting") else 0


# 2.11..2.15: of `torch.func.grad` and `vjp`, as Dynamo writes them into a graph.
_GRADIENT_ROLES = {
    "_grad_increment_nesting": "level",
    "_grad_decrement_nesting": "level",
    "_saved_tensors_hooks_disable": "level",
    "_saved_tensors_hooks_enable": "level",
    "set_inplace_requires_grad_allowed": "level",
    "_wrap_for_grad": "wrap",
    "_unwrap_for_grad": "unwrap",
    "_set_tensor_requires_grad": "unwrap",
    "_autograd_grad": "gradient",
}


def role_in_gradient(node: torch.fx.Node) -> str | None:
    """What a call does for a gradient that a graph takes: "level", "wrap", "unwrap", or the "gradient" itself.

    >>> role_in_gradient(gm.graph.output_node())
    """
    return _GRADIENT_ROLES.get(str(getattr(node.target, "__name__", "")))


def load_compiler_operators() -> None:
    """Makes the operators that Inductor itself defines known to torch, as a graph after its passes may hold them."""
    import torch._inductor.inductor_prims  # noqa: F401


# Loaded by `import torch`, so that printed source need not import them.
_COME_WITH_TORCH = (
    "torch._C",
    "torch.amp",
    "torch.autograd",
    "torch.fft",
    "torch.func",
    "torch.linalg",
    "torch.nn",
    "torch.special",
    "torch.utils.checkpoint",
)
# The public ones, in the order in which a name is preferred.
_PUBLIC = (
    "operator",
    "math",
    "torch",
    "torch.nn.functional",
    "torch.special",
    "torch.linalg",
    "torch.fft",
    "torch.nested",
    "torch.sparse",
    "torch.func",
    "torch.autograd",
    "torch.amp",
    "torch.nn",
    "torch.nn.init",
    "torch.utils.checkpoint",
)


def comes_with_torch(module: str) -> bool:
    """Whether a bare `import torch` loads the module.

    >>> comes_with_torch("torch.nn.functional"), comes_with_torch("torch._dynamo.utils")
    (True, False)
    """
    if module == "torch.nn.attention.flex_attention":
        return False
    return module == "torch" or any(
        module == known or module.startswith(f"{known}.") for known in _COME_WITH_TORCH
    )


def modules_by_preference() -> list[str]:
    """Names of loaded modules to look a function up in, most readable spelling first.

    >>> modules_by_preference()[:3]
    ['operator', 'math', 'torch']
    """
    loaded = list(sys.modules)  # other threads may be importing
    c_modules = sorted(name for name in loaded if name == "torch._C" or name.startswith("torch._C."))
    numpy_like = ["torch._numpy"] if "torch._numpy" in sys.modules else []
    return [*(name for name in _PUBLIC if name in sys.modules), *c_modules, *numpy_like]


def writable_treespec(value: object) -> str | None:
    """An expression that rebuilds a pytree spec, or None where it is not one or cannot be rebuilt."""
    if not isinstance(value, _pytree.TreeSpec):
        return None
    try:
        text = _pytree.treespec_dumps(value)
        if _pytree.treespec_loads(text) != value:
            return None
    except Exception:  # unregistered or unserialisable node types
        return None
    return f"torch.utils._pytree.treespec_loads({text!r})"


# Operators that need the process groups of the program.
COLLECTIVES = frozenset(
    ["_c10d_functional", "c10d_functional", "c10d", "_c10d_functional_autograd", "symm_mem"]
)


def groups_of(graph: torch.fx.GraphModule) -> dict[str, tuple[int, ...]] | None:
    """The ranks of each group that the graph names, this process's own first; None where it does not communicate.

    Raises a LookupError where a group is not known here.
    """
    nodes = [
        node
        for module in graph.modules()
        if isinstance(module, torch.fx.GraphModule)
        for node in module.graph.nodes
        if node.op == "call_function"
        and getattr(node.target, "namespace", _space(node.target)) in COLLECTIVES
    ]
    if not nodes:
        return None
    words = {word for node in nodes for word in (*node.args, *node.kwargs.values()) if isinstance(word, str)}
    found = {word: ranks for word in sorted(words) if (ranks := _ranks(word)) is not None}
    if not found and any(
        _space(node.target) != "symm_mem" for node in nodes if "wait_tensor" not in str(node.target)
    ):
        raise LookupError("the groups that it communicates in are not known")
    return found


def _space(target: Any) -> str:
    return str(getattr(target, "_qualified_op_name", "")).partition("::")[0]


def _ranks(name: str) -> tuple[int, ...] | None:
    from torch.distributed import get_process_group_ranks
    from torch.distributed.distributed_c10d import _resolve_process_group

    try:
        return tuple(get_process_group_ranks(_resolve_process_group(name)))
    except (RuntimeError, ValueError, LookupError):
        return None


def fake_groups_source(groups: Mapping[str, tuple[int, ...]]) -> str:
    """Statements after which one process can run a graph with collectives: the other ranks are not there.

    >>> print(fake_groups_source({"0": (0, 1)}))
    import torch.distributed
    from torch.testing._internal.distributed.fake_pg import FakeStore
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    """
    world, rank = 1, 0
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        world, rank = torch.distributed.get_world_size(), torch.distributed.get_rank()
    world = max([world, *(1 + max(ranks) for ranks in groups.values())])
    lines = [
        "import torch.distributed",
        "from torch.testing._internal.distributed.fake_pg import FakeStore",
        "if not torch.distributed.is_initialized():",
        f'    torch.distributed.init_process_group("fake", store=FakeStore(), rank={rank}, world_size={world})',
    ]
    others = {name: list(ranks) for name, ranks in groups.items() if name != "0"}
    if others:
        # torch names a new group by a number that goes up; the graph's names may be among those.
        lines.append("    torch.distributed.distributed_c10d._world.group_count = 10_000")
    for name, ranks in others.items():
        made = f"torch.distributed.new_group({ranks})"
        lines.append(f"    torch._C._distributed_c10d._register_process_group({name!r}, {made})")
    return "\n".join(lines)
