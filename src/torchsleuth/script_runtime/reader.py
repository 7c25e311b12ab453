"""Read a printed graph back into an equal `torch.fx.GraphModule`, without tracing.

The printed form is one statement per node, so each statement *is* a node: this walks the syntax tree and creates them.
Attributes (constants, modules, nested graphs) come from running the class's `__init__`.
The text of this file is pasted into scripts: standard library and torch only.
"""

import ast
import math
import operator
from collections.abc import Mapping
from typing import Any

import torch
import torch.fx

# Which function an operator sign stands for: its names in `ast` and in `operator`, and the sign.
_GRAPH_SIGNS = (
    "Add add +, Sub sub -, Mult mul *, Div truediv /, FloorDiv floordiv //, Mod mod %, Pow pow **, MatMult matmul @, "
    "BitAnd and_ &, BitOr or_ |, BitXor xor ^, LShift lshift <<, RShift rshift >>, Lt lt <, LtE le <=, Gt gt >, "
    "GtE ge >=, Eq eq ==, NotEq ne !=, USub neg -, Invert invert ~"
)
_GRAPH_FUNCTIONS = [
    (a, getattr(operator, b), sign) for a, b, sign in map(str.split, _GRAPH_SIGNS.split(", "))
]
GRAPH_INFIX = {getattr(ast, name): function for name, function, _ in _GRAPH_FUNCTIONS}
# The other way round, for whoever prints a graph.
GRAPH_SIGN_OF = {function: sign for _, function, sign in _GRAPH_FUNCTIONS}


def read_graph(
    source: str, name: str = "Repro", namespace: Mapping[str, object] | None = None
) -> torch.fx.GraphModule:
    """The graph that `source` prints; `namespace` holds `constant` and the user's functions, where needed.

    >>> read_graph(print_graph(gm).source)(x)
    (tensor([0., 2.]),)
    """
    tree = ast.parse(source)
    scope: dict[str, Any] = {"torch": torch, "operator": operator, "math": math}
    scope |= {"inf": math.inf, "nan": math.nan}
    if "kernel_side_table" in source:  # where graphs have the Triton kernels that they call
        from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

        scope["kernel_side_table"] = kernel_side_table
    scope.update(namespace or {})
    exec(compile(tree, "<graph>", "exec"), scope)
    classes = {item.name: item for item in tree.body if isinstance(item, ast.ClassDef)}
    return _graph_read_module(scope[name](), classes, scope, {})


def _graph_read_module(module: Any, classes: dict, scope: dict, done: dict) -> torch.fx.GraphModule:
    if id(module) in done:
        return done[id(module)][1]
    for owner in list(module.modules()):
        for attribute, child in list(owner._modules.items()):  # named_children() skips a second name
            if type(child).__name__ in classes and type(child) is scope[type(child).__name__]:
                setattr(owner, attribute, _graph_read_module(child, classes, scope, done))
    body = next(f for f in classes[type(module).__name__].body if getattr(f, "name", "") == "forward")
    read = torch.fx.GraphModule(module, _graph_read_forward(body, scope), class_name=type(module).__name__)
    done[id(module)] = (module, read)
    return read


def _graph_read_forward(forward: Any, scope: dict) -> torch.fx.Graph:
    graph = torch.fx.Graph()
    nodes: dict[str, torch.fx.Node] = {}
    parameters = forward.args.args[1:]
    defaults: list[tuple] = [()] * (len(parameters) - len(forward.args.defaults))
    defaults += [(_graph_read_value(default, nodes, scope),) for default in forward.args.defaults]
    for parameter, default in zip(parameters, defaults):
        nodes[parameter.arg] = graph.create_node("placeholder", parameter.arg, default, name=parameter.arg)
    for statement in forward.body:
        if isinstance(statement, ast.Return):
            graph.output(
                None if statement.value is None else _graph_read_value(statement.value, nodes, scope)
            )
        elif isinstance(statement, ast.Assign):
            name = statement.targets[0].id  # type: ignore[attr-defined]
            nodes[name] = graph.create_node(*_graph_read_call(statement.value, nodes, scope), name=name)
    return graph


def _graph_read_call(made: Any, nodes: dict, scope: dict) -> tuple:
    """(op, target, args, kwargs) of the right-hand side of one statement."""

    def value(item: Any) -> Any:
        return _graph_read_value(item, nodes, scope)

    path = _graph_self_path(made)
    if path is not None:
        return "get_attr", path, (), {}
    match made:
        case ast.BinOp(left=a, op=sign, right=b) | ast.Compare(left=a, ops=[sign], comparators=[b]):
            return "call_function", GRAPH_INFIX[type(sign)], (value(a), value(b)), {}
        case ast.UnaryOp(op=sign, operand=a):
            return "call_function", GRAPH_INFIX[type(sign)], (value(a),), {}
        case ast.Subscript(value=a, slice=b):
            return "call_function", operator.getitem, (value(a), value(b)), {}
    args = tuple(value(item) for item in made.args)
    kwargs = {item.arg: value(item.value) for item in made.keywords}
    path = _graph_self_path(made.func)
    if path is not None:
        return "call_module", path, args, kwargs
    if isinstance(made.func, ast.Attribute) and getattr(made.func.value, "id", None) in nodes:
        return "call_method", made.func.attr, (value(made.func.value), *args), kwargs
    return "call_function", value(made.func), args, kwargs


def _graph_self_path(item: Any) -> str | None:
    """`a.0.b` for `getattr(self.a, "0").b`; None where the expression does not start at `self`."""
    parts: list[str] = []
    while not isinstance(item, ast.Name):
        if isinstance(item, ast.Attribute):
            parts.append(item.attr)
            item = item.value
        elif isinstance(item, ast.Call) and getattr(item.func, "id", "") == "getattr" and len(item.args) == 2:
            parts.append(getattr(item.args[1], "value", ""))
            item = item.args[0]
        else:
            return None
    return ".".join(map(str, reversed(parts))) if item.id == "self" and parts else None


def _graph_read_value(item: Any, nodes: dict, scope: dict) -> Any:

    def value(part: Any) -> Any:
        return None if part is None else _graph_read_value(part, nodes, scope)

    if isinstance(item, ast.Constant):
        return item.value
    if isinstance(item, ast.Name) and item.id in nodes:
        return nodes[item.id]
    if isinstance(item, ast.Tuple):
        return tuple(map(value, item.elts))
    if isinstance(item, ast.List):
        return list(map(value, item.elts))
    if isinstance(item, ast.Dict):
        return dict(zip(map(value, item.keys), map(value, item.values)))
    if isinstance(item, ast.Slice):
        return slice(value(item.lower), value(item.upper), value(item.step))
    if isinstance(item, ast.Call) and any(
        isinstance(part, ast.Name) and part.id in nodes for part in ast.walk(item)
    ):
        return value(item.func)(*map(value, item.args))
    return eval(compile(ast.Expression(item), "<graph>", "eval"), scope)
