"""Compiles a recorded graph again, at the level it was recorded at, with the settings it was compiled with; or runs it
eagerly, on inputs with other strides than it was traced with.

Inductor may give activations another memory layout; the backward graph, traced before, then holds views that
no longer are possible. Inductor reads them as reshapes, and so must whoever runs the graph without it.
The text of this file is pasted into written scripts: torch and the standard library only.
"""

import copy
import importlib
import sys

import torch

from torchsleuth.script_runtime.symbolic_inputs import symbolic_tracing


def apply_settings(config, state, namespace):
    """Puts torch's settings and global switches back to what was recorded; an unknown setting is skipped and said.

    From torch 2.15 on a setting may hold others; one that stays as it is would make this another run than it says.
    """
    # Operators of Inductor's own are known to torch once this is imported.
    importlib.import_module("torch._inductor.compile_fx")
    for module_name, values in config.items():
        for key, text in values.items():
            try:
                value = eval(text, dict(namespace))
                _set(module_name, key, value)
            except (AttributeError, ImportError):
                sys.stderr.write(f"torchsleuth: this torch has no setting {module_name}.{key}; skipped\n")
                continue
            if getattr(importlib.import_module(module_name), key) != value:
                raise ValueError(f"{module_name}.{key} cannot be {text} here: another setting holds it")
    torch.set_default_dtype(getattr(torch, state["default_dtype"].removeprefix("torch.")))
    torch.set_float32_matmul_precision(state["matmul_precision"])
    torch.use_deterministic_algorithms(state["deterministic"])
    # A warm cache would skip the very compile that is to be seen.
    _set("torch._functorch.config", "enable_autograd_cache", False)


def draw_eager_random_numbers():
    """Compiled graphs draw the random numbers eager would draw."""
    _set("torch._inductor.config", "fallback_random", True)


def _set(module, key, value):
    setattr(importlib.import_module(module), key, value)


def aten_compiler(graph, fakes, fake_mode, output_meta, kwargs, compiler=None):
    """A function that hands an aten-level graph to Inductor's inner compiler, or another, as AOTAutograd would.

    Its result takes the list of real inputs and empties it. What it needs is prepared here, compiled when called.
    """
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.utils import BoxedBool

    traced = _with_shapes(graph, fakes, fake_mode)
    next(iter(reversed(traced.graph.nodes))).meta.update(output_meta)
    kwargs = dict(kwargs)
    if kwargs.pop("cudagraphs", False):
        kwargs["cudagraphs"] = BoxedBool(True)

    def compile_it():
        if compiler is None:
            compiled = compile_fx_inner(traced, fakes, **kwargs)
            return lambda values: compiled(values)
        compiled = compiler(traced, fakes, **kwargs)
        boxed = getattr(compiled, "_boxed_call", False)  # AOTAutograd goes by this flag, too
        return lambda values: compiled(values) if boxed else compiled(*values)

    return compile_it


def _with_shapes(graph, fakes, fake_mode):
    """The graph with the shapes on its nodes that the compiler expects to find there.

    For a flat graph Inductor works them out by itself, and tracing could fail: a forward compiled with another
    memory layout hands its backward activations on which the backward's views are no views any more. The graphs
    inside higher-order operators get their shapes by tracing only.
    """
    nested = any(isinstance(child, torch.fx.GraphModule) for child in graph.children())
    if nested:
        from torch.fx.experimental.proxy_tensor import make_fx

        with symbolic_tracing(fake_mode), torch.no_grad():
            return make_fx(graph, tracing_mode="real")(*fakes)
    for node, fake in zip((n for n in graph.graph.nodes if n.op == "placeholder"), fakes):
        node.meta["val"] = fake
    return graph


def lazy_backward(error):
    """Of a failed backward: None where AOTAutograd had no part in it, else (whether it was compiling, compile id).

    AOTAutograd compiles a backward when it is first run; the frame that does so holds the context of the compile.
    """
    ours = False
    tb = error.__traceback__
    while tb is not None:
        if "_functorch/_aot_autograd" in tb.tb_frame.f_code.co_filename.replace("\\", "/"):
            ours = True
            local = tb.tb_frame.f_locals
            if "saved_compile_context" in local:  # None where Dynamo was not there, as in a script
                return True, str(getattr(local["saved_compile_context"], "compile_id", None))
        tb = tb.tb_next
    return (False, None) if ours else None


def captured_compiler(graph, examples, backend, options):
    """A function that hands a Dynamo-level graph to its backend: a registered name, or a callable.

    The result of a Dynamo backend takes its arguments one by one, whatever its `_boxed_call` flag says.
    """
    call = importlib.import_module("torch._dynamo").lookup_backend(backend)

    def compile_it():
        if backend == "inductor":
            with importlib.import_module("torch._inductor.config").patch(options):
                compiled = call(graph, examples)
        else:
            compiled = call(graph, examples, **options)
        return lambda values: compiled(*values)

    return compile_it


def with_reshapes(graph: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A copy of `graph` in which every `aten.view` is an `aten.reshape`, nested graphs included.

    >>> with_reshapes(gm)(x)
    (tensor([0., 2.]),)
    """
    held = [
        value
        for module in graph.modules()
        for value in (*vars(module).values(), *module.parameters(False), *module.buffers(False))
        if isinstance(value, torch.Tensor)
    ]
    # Weights that were packed for a kernel have no memory that Python could copy, and nobody writes to them.
    relaxed = copy.deepcopy(graph, {id(value): value for value in held if value.is_mkldnn})
    for module in relaxed.modules():
        if isinstance(module, torch.fx.GraphModule):
            views = [n for n in module.graph.nodes if n.target is torch.ops.aten.view.default]
            for node in views:
                node.target = torch.ops.aten.reshape.default
            if views:
                module.recompile()
    return relaxed
