"""Source text for live values: what the user's program defined and a script needs, and what a call works on.

A tensor is written by its shape, dtype and strides, with its values where they are few; a module of torch by its
constructor; a model of a library by its configuration; any other object by its class and its attributes, so that none
of the user's constructors runs. What can be written in no way is replaced by an empty stand-in and named.
"""

from __future__ import annotations

import builtins
import collections
import copyreg
import dataclasses
import enum
import keyword
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.nn.utils import parametrize

from torchsleuth.core.cases.record import Embedded
from torchsleuth.torch_core.graphs.attributes import module_expression
from torchsleuth.torch_core.graphs.spelling import Unprintable, Vocabulary
from torchsleuth.torch_core.repro.small_inputs import TooLarge, input_expression
from torchsleuth.torch_core.tensors import TensorSpec, Unsupported, describe_tensor
from torchsleuth.torch_internals.tensors import has_no_values
from torchsleuth.watched.call_state import MARKS_OF_TORCH, OF_EVERY_MODULE, PLAIN_TENSORS
from torchsleuth.watched.embed_paste import Paste
from torchsleuth.watched.embed_slice import CannotEmbed, installed

# Up to this many numbers of a tensor are kept and written out; of others the form is enough, mostly.
FEW_VALUES = 16
_DESCRIPTORS = (types.MethodDescriptorType, types.WrapperDescriptorType, types.GetSetDescriptorType)
_LOCKS = {type(threading.Lock()): "Lock", type(threading.RLock()): "RLock"}
# What registers a hook of a module, and where the module keeps it.
_HOOKS = {
    "forward_pre_hook": "_forward_pre_hooks",
    "forward_hook": "_forward_hooks",
    "full_backward_pre_hook": "_backward_pre_hooks",
    "full_backward_hook": "_backward_hooks",
}


@dataclasses.dataclass(frozen=True)
class KeptTensor:
    """A tensor as it was in a call; `value` where its numbers are few."""

    spec: TensorSpec
    value: torch.Tensor | None


@dataclasses.dataclass(frozen=True)
class KeptObject:
    """An object that may be gone by now: `kept.get()` is None then."""

    get: Callable[[], Any]


def kept(value: Any) -> Any:
    """A value to be written later, kept lightly: tensors by their form, with their numbers where those are few."""
    if isinstance(value, torch.Tensor):
        return _kept_tensor(value)
    if type(value) in (list, tuple):
        return type(value)(map(kept, value))
    if type(value) is dict:
        return {key: kept(item) for key, item in value.items()}
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes, type)):
        return value
    try:
        return KeptObject(weakref.ref(value))
    except TypeError:
        return value


def _kept_tensor(tensor: torch.Tensor) -> Any:
    if type(tensor) not in PLAIN_TENSORS or tensor.layout is not torch.strided or tensor.is_nested:
        return KeptObject(weakref.ref(tensor))
    try:
        spec = describe_tensor(tensor)
    except Unsupported:
        return KeptObject(weakref.ref(tensor))
    few = tensor.numel() <= FEW_VALUES and not has_no_values(tensor)
    return KeptTensor(spec, tensor.detach().clone() if few else None)


@dataclasses.dataclass(frozen=True)
class Made:
    """How a tensor that wraps others is made: by which class, of which attributes (themselves made, or as given)."""

    kind: type
    parts: tuple[tuple[str, Made | None], ...]
    about: Any
    size: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def names(self) -> list[str]:
        """The plain tensors, in the order in which they are given: `["data_int8", "scale"]`."""
        return [
            f"{part}_{inner}" if inner else part
            for part, made in self.parts
            for inner in (made.names if made is not None else [""])
        ]


class Maker:
    """Stands in a graph for the call that makes a tensor of those inside of it; it is written, never called."""

    def __init__(self, made: Made, name: str) -> None:
        self.made = made
        self.__name__ = name

    def __call__(self, *tensors: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


class ValueSource:
    """Writes values into a paste: each tensor and object once, under a name, so that what is shared stays shared."""

    def __init__(self, paste: Paste) -> None:
        self.paste = paste
        paste.write_value = self.expression
        self.replaced: list[str] = []
        self._names: set[str] = set()

    def expression(self, value: Any, hint: str) -> str | None:
        """The expression of a value that a paste has no source for, or None; it may add statements before it."""
        if isinstance(value, torch.Tensor):
            return self._assigned(hint, self._tensor(value, hint))
        if isinstance(value, Maker):
            given = ", ".join(value.made.names)
            names = iter(value.made.names)
            body = f"return {self._made_of(value.made, names, hint)}"
            self.paste.tail.append(f"def {value.__name__}({given}):\n    {body}")
            return value.__name__
        if isinstance(value, torch.Generator):
            made = f"torch.Generator({str(value.device)!r}).manual_seed({value.initial_seed()})"
            return self._assigned(hint, made)
        if isinstance(value, KeptTensor):
            return self._assigned(hint, self._written(value.spec, value.value))
        if isinstance(value, KeptObject):
            there = value.get()
            if there is None:
                raise CannotEmbed(f"{hint!r} of an earlier call is gone.")
            return self.paste.expression(there, hint)
        if isinstance(value, torch.nn.Module):
            return self._module(value, hint)
        if isinstance(value, enum.Enum):
            return f"{self.paste.expression(type(value), hint)}.{value.name}"
        if isinstance(value, collections.defaultdict):
            return self._as_pickled(value, hint)
        if isinstance(value, (list, tuple, set, frozenset, dict)):
            return self._container(value, hint)
        if isinstance(value, (slice, range)):
            parts = (value.start, value.stop, value.step)
            return f"{type(value).__name__}({', '.join(self.inside(p, hint) for p in parts)})"
        if type(value) is weakref.ref and value() is not None:
            self.paste.imported("weakref")
            return self._assigned(hint, f"weakref.ref({self.inside(value(), f'{hint}_object')})")
        if type(value) in _LOCKS:
            return self._assigned(hint, f"{self.paste.imported('threading')}.{_LOCKS[type(value)]}()")
        if isinstance(value, types.BuiltinMethodType) and not isinstance(
            value.__self__, types.ModuleType | None
        ):
            return f"{self.paste.expression(value.__self__, hint)}.{value.__name__}"
        if isinstance(value, _DESCRIPTORS):
            return f"{self.paste.expression(value.__objclass__, hint)}.{value.__name__}"
        if type(value) is float:  # infinity and NaN are no literals
            return f"float({str(value)!r})"
        if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
            self.paste.imports["import numpy"] = None
            return self._assigned(hint, f"numpy.array({value.tolist()!r}, dtype={str(value.dtype)!r})")
        return None if isinstance(value, type) else self._object(value, hint)

    def inside(self, value: Any, hint: str) -> str:
        """The expression of a value, or of an empty stand-in, which is named, where there is none."""
        try:
            return self.paste.expression(value, hint)
        except Exception as why:  # a user's object may raise anything where it is looked at
            reason = str(why) if isinstance(why, CannotEmbed) else f"{type(why).__name__}: {why}"
            self.replaced.append(f"{hint}: {reason}")
            return f"{self.paste.imported('types')}.SimpleNamespace()"

    def _assigned(self, hint: str, text: str) -> str:
        """The name that stands for an expression from now on."""
        name = "".join(c if c.isascii() and c.isalnum() else "_" for c in hint).strip("_") or "value"
        if name[0].isdigit() or keyword.iskeyword(name) or hasattr(builtins, name):
            name = f"value_{name}"
        taken = self._names.union(*(part.live for part in self.paste.slices.values()))
        unique, number = name, 2
        while unique in taken:
            unique, number = f"{name}_{number}", number + 1
        self._names.add(unique)
        self.paste.tail.append(f"{unique} = {text}")
        return unique

    def _tensor(self, tensor: torch.Tensor, hint: str) -> str:
        if type(tensor) is torch.Tensor and tensor.layout is torch.sparse_coo:
            parts = (tensor.coalesce().indices(), tensor.coalesce().values())
            texts = [self.paste.expression(part, hint) for part in parts]
            return f"torch.sparse_coo_tensor({', '.join(texts)}, {tuple(tensor.shape)})"
        plain = isinstance(tensor, (torch.nn.Parameter, torch.nn.Buffer)) or type(tensor) is torch.Tensor
        if not plain and (text := self._of_subclass(tensor, hint)) is not None:
            return text
        if not plain or tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
            raise CannotEmbed(
                f"{hint!r} is a tensor of class {type(tensor).__name__}, layout {tensor.layout}."
            )
        few = tensor.numel() <= FEW_VALUES and not has_no_values(tensor)
        parameter = isinstance(tensor, torch.nn.Parameter)
        spec = dataclasses.replace(
            describe_tensor(tensor), requires_grad=tensor.requires_grad and not parameter
        )
        text = self._written(spec, tensor.detach() if few else None)
        if parameter:
            return f"torch.nn.Parameter({text}{'' if tensor.requires_grad else ', requires_grad=False'})"
        return text

    def _of_subclass(self, tensor: torch.Tensor, hint: str) -> str | None:
        """A tensor of the user's class, from the tensors it wraps or as a plain one that is given its class."""
        cls = type(tensor)
        if hasattr(cls, "__tensor_unflatten__") and hasattr(tensor, "__tensor_flatten__"):
            names, about = tensor.__tensor_flatten__()
            inner = ", ".join(f"{n!r}: {self.inside(getattr(tensor, n), f'{hint}_{n}')}" for n in names)
            sizes = f"{tuple(tensor.shape)}, {tensor.stride()}"
            made = f"{self.paste.expression(cls, hint)}.__tensor_unflatten__"
            return f"{made}({{{inner}}}, {self.inside(about, hint)}, {sizes})"
        if (
            cls.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
            or cls.__new__ is not torch.Tensor.__new__
        ):
            return None
        text = self._tensor(tensor.as_subclass(torch.Tensor), hint)
        return f"{text}.as_subclass({self.paste.expression(cls, hint)})"

    def _made_of(self, made: Made, names: Iterator[str], hint: str) -> str:
        """The expression that makes a tensor of those inside of it, which have names."""
        inner = ", ".join(
            f"{part!r}: {next(names) if more is None else self._made_of(more, names, hint)}"
            for part, more in made.parts
        )
        about = self.paste.expression(made.about, f"{hint}_about")
        made_by = f"{self.paste.expression(made.kind, hint)}.__tensor_unflatten__"
        return f"{made_by}({{{inner}}}, {about}, {made.size}, {made.stride})"

    def _written(self, spec: TensorSpec, value: torch.Tensor | None) -> str:
        """A tensor by its form, with its numbers where they are given."""
        self.paste.imported("torch")
        try:
            text, _ = input_expression(spec, value, True)
        except TooLarge:
            text, _ = input_expression(spec, None, True)
        if spec.requires_grad and "requires_grad" not in text:
            text += ".requires_grad_()"
        return text

    def _module(self, module: torch.nn.Module, hint: str) -> str:
        if parametrize.is_parametrized(module):
            return self._parametrized(module, hint)
        configured = self._configured(module)
        if configured is not None:
            return self._assigned(hint, configured if module.training else f"{configured}.eval()")
        dtypes = {t.dtype for t in (*module.parameters(), *module.buffers()) if t.dtype.is_floating_point}
        frozen = any(not p.requires_grad for p in module.parameters())
        if len(dtypes) <= 1 and not frozen:
            try:
                text = module_expression(module, hint, Vocabulary(set()), without_hooks=True)
            except Unprintable:
                return self._object(module, hint)
            self.paste.imported("torch")
            dtype = next(iter(dtypes), torch.float32)
            cast = "" if dtype is torch.float32 else f".to({dtype})"
            variable = self._assigned(hint, text + cast)
            for path, inner in module.named_modules():
                self._hooks(inner, f"{variable}.get_submodule({path!r})" if path else variable)
            return variable
        return self._object(module, hint)

    def _parametrized(self, module: Any, hint: str) -> str:
        """A module whose parameters are computed from others, as it was before, and then what made it so."""
        cls: Any = parametrize.type_before_parametrizations(module)
        before = cls.__new__(cls)
        vars(before).update(vars(module))
        computed = {name: torch.nn.Parameter(getattr(module, name)) for name in module.parametrizations}
        before._parameters = {**module._parameters, **computed}
        before._modules = {k: v for k, v in module._modules.items() if k != "parametrizations"}
        # Known under its own name from here on: a copy's place in memory may be taken by the next.
        self.paste.made[id(before)] = (before, None)
        variable = self._module(before, hint)
        for name, steps in module.parametrizations.items():
            for step in steps:
                given = f"{variable}, {name!r}, {self.inside(step, f'{hint}_{name}_step')}, unsafe=True"
                self.paste.imported("torch.nn.utils.parametrize")
                self.paste.tail.append(f"torch.nn.utils.parametrize.register_parametrization({given})")
        return variable

    def _hooks(self, module: torch.nn.Module, expression: str) -> None:
        """The statements that give a module its hooks."""
        for kind, hooks in _HOOKS.items():
            for number, hook in getattr(module, hooks, {}).items():
                more = ", with_kwargs=True" if number in getattr(module, f"{hooks}_with_kwargs", ()) else ""
                self.paste.tail.append(f"{expression}.register_{kind}({self.inside(hook, kind)}{more})")

    def _configured(self, module: torch.nn.Module) -> str | None:
        """A model of a library that is made from its configuration alone, as those of transformers are."""
        config: Any = getattr(module, "config", None)
        made_in = getattr(sys.modules.get(type(module).__module__), "__dict__", {"__name__": "__main__"})
        if not installed(made_in) or not hasattr(config, "to_diff_dict"):
            return None
        differs = {k: v for k, v in config.to_diff_dict().items() if self.paste.simple(v) is not None}
        made = f"{self.paste.expression(type(config), 'config')}.from_dict({differs!r})"
        return f"{self.paste.expression(type(module), 'model')}({made})"

    def _object(self, value: Any, hint: str) -> str:
        held = hasattr(value, "__dict__") or hasattr(type(value), "__slots__")
        if not held or (not isinstance(value, torch.nn.Module) and _is_written_in_c(type(value))):
            return self._as_pickled(value, hint)
        cls = self.paste.expression(type(value), hint)
        if isinstance(value, torch.nn.Module):
            return self._module_in_parts(value, cls, hint)
        variable = self._assigned(hint, f"{cls}.__new__({cls})")
        plain = type(value).__setattr__ is object.__setattr__
        for name, held in _attributes(value).items():
            if name.isidentifier():
                text = self.inside(held, name)
                set_it = (
                    f"{variable}.{name} = {text}"
                    if plain
                    else f"object.__setattr__({variable}, {name!r}, {text})"
                )
                self.paste.tail.append(set_it)
        return variable

    def _module_in_parts(self, module: torch.nn.Module, cls: str, hint: str) -> str:
        """A module without its constructor, one statement for each part: those not needed are left out one by one."""
        self.paste.imported("torch")
        in_order = type(module) in (torch.nn.ModuleList, torch.nn.Sequential) and [*module._modules] == [
            str(place) for place in range(len(module._modules))
        ]
        if in_order:
            variable = self._assigned(hint, f"torch.nn.{type(module).__name__}()")
        else:
            variable = self._assigned(hint, f"{cls}.__new__({cls})")
            self.paste.tail.append(f"torch.nn.Module.__init__({variable})")
        attributes = {k: v for k, v in _attributes(module).items() if k not in OF_EVERY_MODULE}
        attributes |= {} if module.training else {"training": False}
        parts = (
            *((name, held, "register_buffer") for name, held in module._buffers.items()),
            *((name, held, "register_parameter") for name, held in module._parameters.items()),
            *((name, held, "append" if in_order else "add_module") for name, held in module._modules.items()),
            *((name, held, "") for name, held in attributes.items()),
        )
        for name, held, register in parts:
            text = self.inside(held, name if name.isidentifier() else f"{hint}_{name}")
            if register == "append":
                self.paste.tail.append(f"{variable}.append({text})")
            elif register == "register_buffer" or (register and not name.isidentifier()):
                self.paste.tail.append(f"{variable}.{register}({name!r}, {text})")
            elif not register and any(
                name in each for each in (module._buffers, module._parameters, module._modules)
            ):
                self.paste.tail.append(
                    f"{variable}.__dict__[{name!r}] = {text}"
                )  # in front of the part of that name
            elif name.isidentifier():
                self.paste.tail.append(f"{variable}.{name} = {text}")
        self._hooks(module, variable)
        return variable

    def _as_pickled(self, value: Any, hint: str) -> str:
        """An object written in C, by what it says it is made from: a pattern, a deque, an iterator."""
        refused = CannotEmbed(f"{hint!r} is an instance of {type(value).__name__}, which is written in C.")
        try:
            reduce = copyreg.dispatch_table.get(type(value)) or (lambda each: each.__reduce_ex__(2))
            make, args, state, items, entries = (*reduce(value), None, None, None)[:5]
        except (TypeError, ValueError) as why:
            raise refused from why
        if getattr(make, "__module__", "") == "copyreg":
            raise refused
        given = ", ".join(self.paste.expression(each, hint) for each in args)
        variable = self._assigned(hint, f"{self.paste.expression(make, hint)}({given})")
        if state is not None:
            self.paste.tail.append(f"{variable}.__setstate__({self.paste.expression(state, hint)})")
        if items is not None:
            self.paste.tail.append(f"{variable}.extend({self.paste.expression(list(items), hint)})")
        if entries is not None:
            self.paste.tail.append(f"{variable}.update({self.paste.expression(dict(entries), hint)})")
        return variable

    def _container(self, value: Any, hint: str) -> str:
        if isinstance(value, dict):
            text = (
                "{"
                + ", ".join(f"{self.inside(k, hint)}: {self.inside(v, str(k))}" for k, v in value.items())
                + "}"
            )
        else:
            items = ", ".join(self.inside(item, f"{hint}_{i}") for i, item in enumerate(value))
            if hasattr(value, "_fields"):  # a named tuple
                return f"{self.paste.expression(type(value), hint)}({items})"
            text = f"({items}{',' if len(value) == 1 else ''})" if isinstance(value, tuple) else f"[{items}]"
        if type(value) in (dict, list, tuple):
            return text
        return f"{self.paste.expression(type(value), hint)}({text})"


def _attributes(value: Any) -> dict[str, Any]:
    found = dict(getattr(value, "__dict__", {}))
    for cls in type(value).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if not name.startswith("__") and hasattr(value, name):
                found[name] = getattr(value, name)
    return {name: held for name, held in found.items() if not name.startswith(MARKS_OF_TORCH)}


def _is_written_in_c(cls: type) -> bool:
    """Whether attributes are not all that an object of the class holds: an open file has them, too."""
    return cls.__new__ is not object.__new__ and not any(
        isinstance(each, types.FunctionType) for each in vars(cls).values()
    )


def embed(
    objects: Mapping[str, object],
    custom_ops: Sequence[str] = (),
    modules: Iterable[types.ModuleType] | None = None,
    loaded_libraries: Iterable[str] = (),
) -> Embedded:
    """Source that binds each name to an object like the given one: `embed({"backend": my_backend}).source`.

    `custom_ops` are registered by the same text, so that a file that both need is pasted once.
    """
    paste = Paste()
    values = ValueSource(paste)
    for name, value in objects.items():
        try:
            paste.bind(name, value)
            if values.replaced:
                raise CannotEmbed(values.replaced[0])
        except CannotEmbed as reason:
            title = getattr(value, "__qualname__", None) or type(value).__name__
            raise CannotEmbed(f"{name!r} ({title}) cannot be put into a script: {reason}") from None
    for op in sorted({op.partition(".")[0] for op in custom_ops}):
        paste.register(op, modules, tuple(loaded_libraries))
    return paste.finish()
