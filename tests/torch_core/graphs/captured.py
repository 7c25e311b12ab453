"""Real graphs for tests: what Dynamo and AOTAutograd hand to a backend for a function and its inputs."""

import copy
from dataclasses import dataclass

import torch
import torch._dynamo
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch.utils._python_dispatch import _disable_current_modes


@dataclass
class Captured:
    level: str  # dynamo | forward | backward | inference
    gm: torch.fx.GraphModule
    example_inputs: list
    calls: list


def capture(fn, *args, backward=False, dynamic=None, calls=1):
    """Every graph of one run, with the real inputs of its calls."""
    torch._dynamo.reset()
    found = []

    def keep(level, gm, inputs):
        with _disable_current_modes():
            found.append(Captured(level, copy.deepcopy(gm), list(inputs), []))
        return found[-1]

    def inner(level):
        def compile_graph(gm, inputs, **_):
            record = keep(level, gm, inputs)

            def run(*real):
                record.calls.append([clone(value) for value in real])
                return gm.forward(*real)

            return make_boxed_func(run)

        return compile_graph

    def backend(gm, inputs):
        record = keep("dynamo", gm, inputs)
        compiled = aot_autograd(
            fw_compiler=inner("forward"), bw_compiler=inner("backward"), inference_compiler=inner("inference")
        )(gm, inputs)

        def run(*real):
            record.calls.append([clone(value) for value in real])
            return compiled(*real)

        return run

    compiled = torch.compile(fn, backend=backend, dynamic=dynamic)
    for _ in range(calls):
        result = compiled(*args)
        if backward:
            leaf = result[0] if isinstance(result, tuple) else result
            leaf.sum().backward()
    assert found, "nothing was compiled"
    return found


def clone(value):
    if not isinstance(value, torch.Tensor):
        return value
    with torch.no_grad():
        copied = torch.empty(0, dtype=value.dtype, device=value.device)
        copied.set_(value.untyped_storage().clone(), value.storage_offset(), value.shape, value.stride())
    return copied.requires_grad_(value.requires_grad)
