"""What a graph holds (nested graphs, torch.nn modules, tensors, plain values) as lines of an `__init__`.

Only attributes that nodes use are written, each object once: a second path to the same object is an assignment from the
first, so tied weights stay tied. A tensor of few elements becomes the numbers that give its very bits; of a larger one
the source names it and the caller keeps it. A module becomes its constructor call, checked by building it again.
"""

import inspect
import keyword
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch

from torchsleuth.torch_core.graphs.spelling import Unprintable, Vocabulary, expression
from torchsleuth.torch_core.tensors import reach
from torchsleuth.torch_internals.modes import outside_all_modes
from torchsleuth.torch_internals.tensors import has_no_values


@dataclass(frozen=True)
class Attributes:
    """The lines, and the tensors they name by `constant("Class.path")`."""

    lines: list[str] = field(default_factory=list)
    constants: dict[str, torch.Tensor] = field(default_factory=dict)


def attribute_lines(
    gm: torch.fx.GraphModule,
    name: str,
    words: Vocabulary,
    print_child: Callable[[str, torch.fx.GraphModule], str],
) -> Attributes:
    """The body of the `__init__` of class `name`; `print_child` answers the class of a nested graph.

    For a graph with one branch its lines are `["self.true_graph_0 = TrueGraph0()"]`.
    """
    held = Attributes()
    made: dict[int, str] = {}
    parents: set[str] = set()
    items = list(_items(gm))
    storages = _storages(name, items)
    for target, value in items:
        if target in parents:
            continue
        for parent in _prefixes(target):
            if parent not in parents:
                parents.add(parent)
                held.lines.append(assign(parent, "torch.nn.Module()"))
        if id(value) in made:
            held.lines.append(assign(target, made[id(value)]))
        elif isinstance(value, torch.fx.GraphModule):
            held.lines.append(assign(target, f"{print_child(target, value)}()"))
        elif isinstance(value, torch.nn.Module):
            held.lines.append(assign(target, module_expression(value, target, words)))
            parents.update([target, *(f"{target}.{part}" for part, _ in value.named_modules() if part)])
        elif isinstance(value, torch.Tensor):
            shared = storages[value.untyped_storage().data_ptr()] > 1
            text, kept = tensor_expression(value, f"{name}.{target}", shared)
            held.lines.append(assign(target, text))
            if kept is not None:
                held.constants[f"{name}.{target}"] = kept
        else:
            held.lines.append(assign(target, expression(value, {}, words)))
        made.setdefault(id(value), self_path(target))
    return held


def self_path(target: str) -> str:
    """How a dotted attribute is reached: `self.a.b`, and `getattr(self.layers, '0')` where a part is no name.

    >>> self_path("layers.0.weight")
    "getattr(self.layers, '0').weight"
    """
    text = "self"
    for part in target.split("."):
        text = f"{text}.{part}" if _is_plain(part) else f"getattr({text}, {part!r})"
    return text


def assign(target: str, value: str) -> str:
    """The statement that sets a dotted attribute of `self`.

    >>> assign("layers.0", "x")
    "setattr(self.layers, '0', x)"
    """
    parent, _, last = target.rpartition(".")
    owner = self_path(parent) if parent else "self"
    return f"{owner}.{last} = {value}" if _is_plain(last) else f"setattr({owner}, {last!r}, {value})"


def held_value(gm: torch.fx.GraphModule, target: str) -> object:
    """The object at a dotted path of a module.

    `held_value(gm, "lin.weight") is gm.lin.weight`.
    """
    value: object = gm
    for part in target.split("."):
        try:
            value = getattr(value, part)
        except AttributeError:
            raise Unprintable(
                f"The graph names an attribute {target!r} that its module does not have."
            ) from None
    return value


def _is_plain(part: str) -> bool:
    return part.isidentifier() and not keyword.iskeyword(part)


def _prefixes(target: str) -> Iterator[str]:
    parts = target.split(".")
    return (".".join(parts[:depth]) for depth in range(1, len(parts)))


def _items(gm: torch.fx.GraphModule) -> Iterator[tuple[str, object]]:
    """The used attributes with their paths, outer before inner; modules are followed by their own tensors."""
    targets = {str(node.target) for node in gm.graph.nodes if node.op in ("get_attr", "call_module")}
    for target in sorted(targets, key=lambda path: (path.count("."), path)):
        if any(
            isinstance(held_value(gm, outer), torch.nn.Module)
            for outer in _prefixes(target)
            if outer in targets
        ):
            continue
        value = held_value(gm, target)
        yield target, value
        if isinstance(value, torch.nn.Module) and not isinstance(value, torch.fx.GraphModule):
            yield from ((f"{target}.{k}", v) for k, v in value.named_parameters(remove_duplicate=False))
            yield from ((f"{target}.{k}", v) for k, v in value.named_buffers(remove_duplicate=False))


def _storages(name: str, items: list[tuple[str, object]]) -> Counter[int]:
    """How many distinct tensors live in each storage."""
    tensors = {id(value): (path, value) for path, value in items if isinstance(value, torch.Tensor)}
    for path, tensor in tensors.values():
        refuse_odd_tensor(tensor, f"{name}.{path}")
    return Counter(tensor.untyped_storage().data_ptr() or -id(tensor) for _, tensor in tensors.values())


# What a person still reads at a glance, and what keeps a repro's constants in its text.
INLINE_ELEMENTS = 64

_CONTAINERS = (torch.nn.Sequential, torch.nn.ModuleList, torch.nn.ModuleDict)


def tensor_expression(tensor: torch.Tensor, key: str, shared: bool) -> tuple[str, torch.Tensor | None]:
    """The source of a tensor, and the tensor itself where the source only refers to it by `key`.

    >>> tensor_expression(torch.ones(2), "Repro.x", shared=False)
    ('torch.tensor([1.0, 1.0], dtype=torch.float32)', None)
    """
    refuse_odd_tensor(tensor, key)
    with outside_all_modes(), torch.no_grad():
        plain = tensor.detach()
        text = None if shared or reach(plain.shape, plain.stride()) > INLINE_ELEMENTS else _inline(plain)
    kept = None if text is not None else plain
    text = text if text is not None else f"constant({key!r})"
    if isinstance(tensor, torch.nn.Parameter):
        flag = "" if tensor.requires_grad else ", requires_grad=False"
        return f"torch.nn.Parameter({text}{flag})", kept
    return (f"{text}.requires_grad_()" if tensor.requires_grad else text), kept


def refuse_odd_tensor(tensor: torch.Tensor, key: str) -> None:
    """Raise `Unprintable` for a constant whose values or class cannot be kept."""
    if has_no_values(tensor):
        raise Unprintable(f"The constant {key} is a fake tensor: its values are not known.")
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        raise Unprintable(
            f"The constant {key} is a {type(tensor).__name__}, a tensor subclass that is not kept."
        )
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        raise Unprintable(f"The constant {key} is sparse, quantised or nested, which is not kept.")
    if tensor.device.type == "meta":
        raise Unprintable(f"The constant {key} is on the meta device: it has no values.")


def module_expression(
    module: torch.nn.Module, path: str, words: Vocabulary, *, without_hooks: bool = False
) -> str:
    """The constructor call of a torch.nn module; its tensors are set by the caller, its hooks where that one says so.

    >>> module_expression(torch.nn.Linear(4, 2), "lin", Vocabulary(set()))
    'torch.nn.Linear(in_features=4, out_features=2)'
    """
    hooked = any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in module.modules())
    if hooked and not without_hooks:
        raise Unprintable(f"The module {path} carries hooks, which Python source cannot hold.")
    text = _construct(module, path, words)
    modes = {part.training for part in module.modules()}
    if len(modes) == 2:
        raise Unprintable(f"The module {path} mixes training and evaluation mode, which is not kept.")
    return text if modes == {True} else f"{text}.eval()"


def _construct(module: torch.nn.Module, path: str, words: Vocabulary) -> str:
    kind = words.spell(type(module))
    if kind is None or not kind.startswith("torch.nn."):
        raise Unprintable(
            f"The module {path} is a {type(module).__qualname__}, which is not one of torch.nn."
        )
    if type(module) in _CONTAINERS:
        parts = [f"{name!r}: {_construct(part, path, words)}" for name, part in module.named_children()]
        if type(module) is torch.nn.ModuleDict:
            return f"{kind}({{{', '.join(parts)}}})"
        inner = ", ".join(_construct(part, path, words) for part in module.children())
        return f"{kind}([{inner}])" if type(module) is torch.nn.ModuleList else f"{kind}({inner})"
    given = _constructor_arguments(module, path)
    with outside_all_modes(), torch.no_grad(), torch.device("meta"):
        try:
            rebuilt = type(module)(**given)
        except Exception as error:
            raise Unprintable(f"The module {path} ({kind}) could not be built again: {error}.") from error
    if _configuration(rebuilt) != _configuration(module):
        raise Unprintable(f"The module {path} ({kind}) has settings that its constructor does not take.")
    written = (f"{name}={expression(value, {}, words)}" for name, value in given.items())
    return f"{kind}({', '.join(written)})"


def _constructor_arguments(module: torch.nn.Module, path: str) -> dict[str, object]:
    given: dict[str, object] = {}
    for name, parameter in inspect.signature(type(module)).parameters.items():
        if name in ("device", "dtype") or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        value = getattr(module, name, parameter.default)
        if name == "bias":
            value = value is not None and value is not False
        if value is inspect.Parameter.empty:
            raise Unprintable(f"The module {path} does not remember its argument {name!r}.")
        if isinstance(value, torch.Tensor | torch.nn.Module) or value == parameter.default:
            continue
        given[name] = value
    return given


def _configuration(module: torch.nn.Module) -> dict[str, object]:
    """All that distinguishes two modules of one class but the values of their tensors."""
    settings: dict[str, object] = {
        name: value for name, value in vars(module).items() if not name.startswith("_") and name != "training"
    }
    settings["class"] = type(module)
    for tensors in (module._parameters, module._buffers):
        for name, tensor in tensors.items():
            settings[f"tensor {name}"] = None if tensor is None else tuple(tensor.shape)
    for name, child in module.named_children():
        settings[f"module {name}"] = _configuration(child)
    return settings


def _inline(tensor: torch.Tensor) -> str | None:
    flat = tensor.as_strided((reach(tensor.shape, tensor.stride()),), (1,)).cpu()
    plain = tensor.numel() == 0 or tensor.stride() == torch.empty(tensor.shape, device="meta").stride()
    layout = "" if plain else f".as_strided({tuple(tensor.shape)}, {tensor.stride()})"
    move = "" if tensor.device.type == "cpu" else f".to({str(tensor.device)!r})"
    form = (tensor.shape, tensor.stride(), tensor.dtype)
    for text in _spellings(tensor.cpu() if plain else flat):
        rebuilt = eval(text + layout, {"torch": torch, "inf": float("inf"), "nan": float("nan")})
        same_form = (rebuilt.shape, rebuilt.stride(), rebuilt.dtype) == form
        if same_form and _bits(rebuilt.as_strided(flat.shape, (1,))) == _bits(flat):
            return text + move + layout
    return None


def _spellings(values: torch.Tensor) -> list[str]:
    dtype = "" if values.dtype in (torch.int64, torch.bool) else f", dtype={values.dtype}"
    if values.numel() == 0:
        return [f"torch.empty_strided({tuple(values.shape)}, {values.stride()}, dtype={values.dtype})"]
    spelled = []
    try:
        spelled.append(f"torch.tensor({expression(values.tolist(), {}, Vocabulary(set()))}{dtype})")
    except (RuntimeError, TypeError, NotImplementedError):
        pass  # dtypes that have no Python number, such as some 8-bit floats
    raw = f"torch.tensor({list(_bits(values))}, dtype=torch.uint8).view({values.dtype})"
    spelled.append(f"{raw}.view({tuple(values.shape)})")
    return spelled


def _bits(tensor: torch.Tensor) -> bytes:
    flat = tensor.resolve_conj().resolve_neg().contiguous().view(-1)
    return bytes(flat.view(torch.uint8).tolist())
