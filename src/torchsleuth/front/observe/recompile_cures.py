"""What to change so that a function is not compiled again: for each cause one line, and how it can be tried.

Tried can be what does not touch the program's text: marks and settings, put in place from outside in a second run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

AT_A_BREAK = "a value from before the graph break"


@dataclass(frozen=True)
class Cure:
    """`how` in words with the code to write; `trial` names what a second run can put in place, if anything.

    A trial is `mark:ARGUMENT:DIMENSION`, `dynamic`, or `set:NAME=VALUE` of torch._dynamo.config.
    """

    how: str
    trial: str | None = None


def cure_of(cause: str, name: str, index: int | None, value: str, arguments: Sequence[str]) -> Cure:
    """The change for one cause; `value` is what the guard met last, `arguments` those of the function.

    >>> cure_of("shape", "x", 0, "3", ["x"]).how
    'torch._dynamo.mark_dynamic(x, 0) before the call, or torch.compile(..., dynamic=True)'
    """
    if name == AT_A_BREAK:
        return Cure("take away the graph break in that line: see torchsleuth explain")
    if cause == "shape":
        return _shape(name, index, value, arguments)
    if cause == "python number":
        if "." in value or "e" in value:
            return Cure(f"give {name} as a tensor: torch.tensor({name})")
        return Cure(
            f"torch.compile(..., dynamic=True), or give {name} as a tensor: torch.tensor({name})", "dynamic"
        )
    if cause == "module attribute":
        setting = "allow_unspec_int_on_nn_module"
        if value.lstrip("-").isdecimal():
            how = f"keep {name} as a buffer (register_buffer), or set torch._dynamo.config.{setting} = True"
            return Cure(how, f"set:{setting}=True")
        return Cure(f"keep {name} as a buffer: register_buffer, and change it in place")
    plain = name.removeprefix("len(").removesuffix(")") if cause == "length" else name or "it"
    return Cure(_OTHERS.get(cause, "make {name} the same in all calls").format(name=plain))


def _shape(name: str, index: int | None, value: str, arguments: Sequence[str]) -> Cure:
    if value in ("0", "1"):
        return Cure(
            f"torch compiles sizes 0 and 1 separately: leave such a {name} out, or pad it to 2 and cut the result"
        )
    if index is not None and name in arguments:
        how = f"torch._dynamo.mark_dynamic({name}, {index}) before the call, or torch.compile(..., dynamic=True)"
        return Cure(how, f"mark:{name}:{index}")
    return Cure(f"torch.compile(..., dynamic=True), or pad {name} to a few sizes", "dynamic")


_OTHERS = {
    "shape bound": "the code was compiled for a range of sizes because it asks for the size of {name}: pad {name} to a "
    "few sizes (bucketing), or take the question out of the compiled function",
    "rank": "give {name} the same number of dimensions in every call: unsqueeze it before",
    "stride": "{name}.contiguous() before the call",
    "dtype": "{name}.to(one dtype) before the call",
    "device": "move {name} to one device before the call",
    "requires_grad": "detach {name} before the call, or let it require gradients in every call",
    "tensor class": "give {name} as the same class of tensor in every call",
    "grad mode": "call it always inside torch.no_grad() or always outside; each of the two needs one version",
    "autocast": "call it always inside the same torch.autocast or always outside",
    "default dtype": "set the default dtype once, before the first call",
    "num threads": "call torch.set_num_threads once, before the first call",
    "python value": "each value of {name} needs a version of its own: give it few values, or compute with it outside",
    "global": "give {name} to the function as an argument, a changing number as a tensor",
    "object identity": "use the same object for {name} in every call: do not make functions or objects anew",
    "type": "give {name} the same type in every call",
    "length": "the loop over it was unrolled: give {name} one length, pad it, or stack it into one tensor",
    "dict keys": "give the dictionary the same keys in every call",
    "aliasing": "give different tensors, or clone one of them",
    "backend": "make the backend once and use the same object for every torch.compile",
    "dynamic mark": "mark the tensor in every call, or in none",
    "freed object": "keep the object alive as long as the compiled function",
}
