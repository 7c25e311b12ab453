"""What a process of the tests need not do again: which is more than half of the time of a small program with one kernel.

Which vector instructions the C++ compiler and this processor know is asked by six programs, a Python process for each;
an answer is kept for the session (the builds themselves are: `tests/kit/compiler/g++`), as is the hash of torch's own
sources. Loading torch makes a million objects and no garbage, which Python looks through again and again: it does not
while it loads, takes them for old ones then, and does not look through them at the end. A graph that multiplies no
matrices needs no patterns of attention.
"""

import atexit
import contextlib
import gc
import os
import sys

from faultkit import after_import


def install(folder: str) -> None:
    gc.set_threshold(50_000, 20, 20)
    atexit.register(end_quickly)  # the first to be registered is the last to be called
    for name in ("torch", "torch._dynamo", "torch._inductor.compile_fx"):
        after_import(name, lambda: None, around=without_collecting)
    after_import("torch._inductor.cpu_vec_isa", lambda: remember_answers(folder))
    after_import("torch._inductor.codecache", lambda: remember_key(folder))
    after_import("torch._inductor.fx_passes.joint_graph", spare_attention)


def end_quickly() -> None:
    gc.freeze()
    locks = sys.modules.get("filelock._api")
    with contextlib.suppress(AttributeError):
        del locks.BaseFileLock.__del__  # a lock that outlives `os` says so on stderr


@contextlib.contextmanager
def without_collecting():
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.freeze()
            gc.unfreeze()  # into the oldest generation
            gc.enable()


def remember_answers(folder: str) -> None:
    from hashlib import sha256

    from torch._inductor.cpu_vec_isa import VecISA

    original = VecISA.check_build

    def check_build(self, code: str) -> bool:
        question = f"{self} {self.build_arch_flags()} {os.environ.get('CXX')} {code}"
        kept = os.path.join(folder, "can-" + sha256(question.encode()).hexdigest())
        if os.path.exists(kept):
            return True
        answer = original(self, code)
        if answer:
            with contextlib.suppress(OSError), open(kept, "w"):
                pass
        return answer

    VecISA.check_build = check_build


def remember_key(folder: str) -> None:
    import torch
    from torch._inductor import codecache

    original = codecache.torch_key
    kept = os.path.join(folder, f"key-{torch.__version__}")

    def torch_key() -> bytes:
        with contextlib.suppress(OSError), open(kept, "rb") as file:
            return file.read()
        key = original()
        part = f"{kept}.{os.getpid()}"
        with contextlib.suppress(OSError):
            with open(part, "wb") as file:
                file.write(key)
            os.replace(part, kept)
        return key

    codecache.torch_key = torch_key


def spare_attention() -> None:
    from torch._inductor.fx_passes import fuse_attention, joint_graph
    from torch._inductor.pattern_matcher import init_once_fakemode

    patterns, prepare = fuse_attention._sfdp_init, joint_graph.lazy_init
    prepare_late = init_once_fakemode(lambda input_device=None: patterns(input_device))
    wanted = True

    def _sfdp_init(input_device=None):
        return patterns(input_device) if wanted else None

    def lazy_init(input_device=None, *more):
        nonlocal wanted
        graph = sys._getframe(1).f_locals.get("graph")  # of the passes that are about to be made
        wanted = not hasattr(graph, "modules") or multiplies(graph)
        prepare(input_device, *more)
        if wanted:
            prepare_late(input_device)

    fuse_attention._sfdp_init = _sfdp_init
    joint_graph.lazy_init = lazy_init


def multiplies(graph) -> bool:
    parts = (getattr(module, "graph", None) for module in graph.modules())
    return any("mm" in str(node.target) for part in parts for node in getattr(part, "nodes", ()))
