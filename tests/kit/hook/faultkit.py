"""Compiler faults for tests: `aten.sin.default:raise` makes Inductor's lowering of one operator fail.

Acts: raise, raise_emulating (where the setting emulate_precision_casts is on), assert, segv, abort, bus, kill, exit, hang,
native_hang (holding the GIL) while compiling; wrong (adds one to the result); beyond (reads forty elements too far); run_raise, run_segv, run_abort, run_exit,
run_hang when the compiled code runs. `triton.exp:wrong` is one in the code that Triton is given, `template.mm:wrong` one in a
template of Inductor's.
"""

import contextlib
import ctypes
import functools
import importlib.util
import os
import signal
import sys
import time


class PlantedFault(RuntimeError):
    pass


def die(act: str, op: str) -> None:
    if act == "raise_emulating":
        import torch._inductor.config as settings

        act = "raise" if settings.emulate_precision_casts else "none"
    if act == "raise":
        raise PlantedFault(f"planted in {op}")
    if act == "assert":
        raise AssertionError(f"no lowering of {op} here")
    if act == "segv":
        ctypes.string_at(8)
    if act == "abort":
        os.abort()
    if act in ("bus", "kill"):  # a disk that went away; the kernel out of memory
        os.kill(os.getpid(), getattr(signal, f"SIG{act.upper()}"))
    if act == "exit":
        os._exit(7)
    if act == "hang":
        while True:
            time.sleep(3600)
    if act == "native_hang":
        while True:  # a signal ends a sleep early
            ctypes.PyDLL(None).sleep(3600)


def install(text: str) -> None:
    name, _, act = text.partition(":")
    if act.startswith("run_"):
        after_import("torch", lambda: define_stumble(name, act.removeprefix("run_")))
    room, _, rest = name.partition(".")
    if room == "triton":
        after_import("torch._inductor.codegen.triton", lambda: patch_triton(rest))
    elif room == "template":
        after_import("torch._inductor.select_algorithm", lambda: patch_template(rest))
    else:
        after_import("torch._inductor.graph", lambda: patch(name, act))


def patch_triton(name: str) -> None:
    from torch._inductor.codegen.triton import TritonOverrides

    original = getattr(TritonOverrides, name)
    setattr(TritonOverrides, name, staticmethod(lambda *args: f"({original(*args)} + 1.0)"))


def patch_template(wrong: str) -> None:
    from torch._inductor.select_algorithm import TritonTemplate

    original = TritonTemplate.__init__

    @functools.wraps(original)
    def made(self, name, grid, source, *args, **kwargs):
        begun = "acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=ACC_TYPE)"
        if name == wrong:
            assert begun in source, source
            source = source.replace(begun, begun.replace("tl.zeros(", "4.0 + tl.zeros("))
        original(self, name, grid, source, *args, **kwargs)

    TritonTemplate.__init__ = made


def define_stumble(name: str, act: str) -> None:
    import torch

    library = torch.library.Library("planted", "DEF")
    library.define("stumble(Tensor x) -> Tensor")
    library.impl("stumble", lambda x: die(act, name) or x.clone(), "CPU")
    library.impl("stumble", torch.empty_like, "Meta")
    define_stumble.library = library


def patch(name: str, act: str) -> None:
    import torch
    from torch._inductor import ir
    from torch._inductor.lowering import fallback_handler, lowerings

    namespace, packet, overload = name.split(".")
    op = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
    original = lowerings[op]

    @functools.wraps(original)
    def faulty(*args, **kwargs):
        if act == "beyond":
            x = args[0]
            read = x.make_loader()
            return ir.Pointwise.create(
                device=x.get_device(),
                dtype=x.get_dtype(),
                inner_fn=lambda index: read([*index[:-1], index[-1] + 40]),
                ranges=x.get_size(),
            )
        if not act.startswith("run_") and act != "wrong":
            die(act, name)
        out = original(*args, **kwargs)
        if not isinstance(out, ir.IRNode):
            return out
        if act == "wrong":
            return lowerings[torch.ops.aten.add.Tensor](out, 1.0)
        return fallback_handler(torch.ops.planted.stumble.default, add_to_fallback_set=False)(out)

    lowerings[op] = faulty


def after_import(name: str, then, around=contextlib.nullcontext) -> None:
    """Calls `then` when a module has been imported, which is done in the context that `around` makes."""
    if name in sys.modules:
        then()
        return

    class Finder:
        def find_spec(self, fullname, path=None, target=None):
            if fullname != name:
                return None
            sys.meta_path.remove(self)
            spec = importlib.util.find_spec(fullname)
            execute = spec.loader.exec_module

            def execute_and_tell(module):
                with around():
                    execute(module)
                then()

            spec.loader.exec_module = execute_and_tell
            return spec

    sys.meta_path.insert(0, Finder())
