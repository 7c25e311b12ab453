"""What a graph holds (nested graphs, torch.nn modules, tensors, plain values) as lines of an `__init__`.

Only attributes that nodes use are written, each object once: a second path to the same object is an
assignment from the first, so tied weights stay tied.
"""

import keyword
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch

from torchsleuth.torch_core.graphs.constants import module_expression, refuse_odd_tensor, tensor_expression
from torchsleuth.torch_core.graphs.literals import Unprintable, expression
from torchsleuth.torch_core.graphs.names import Vocabulary


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
