"""What a process of the tests need not do again, which is more than half of the time of a small program with one kernel.

Kept for a session of tests (the C++ builds themselves are, too: `tests/kit/compiler/g++`): which vector instructions the
C++ compiler and this processor know, asked by six programs, a Python process for each; the hash of torch's own sources;
the bytecode of what is written while torch is loaded, a thousand dataclasses and the templates of kernels.

Loading torch makes a million objects and no garbage, which Python looks through again and again: it does not while it
loads, takes them for old ones then, and does not look through them at the end. A graph that multiplies no matrices
needs no patterns of attention.
"""

import atexit
import contextlib
import dataclasses
import functools
import gc
import inspect
import marshal
import os
import sys

from faultkit import after_import

LOADED = ("torch", "torch._dynamo", "torch._inductor.compile_fx")


def install(folder: str) -> None:
    gc.set_threshold(50_000, 20, 20)
    atexit.register(end_quickly)  # the first to be registered is the last to be called
    written = WrittenCode(os.path.join(folder, f"code-{sys.hexversion}"))
    for name in LOADED:
        after_import(name, written.keep, around=functools.partial(loading, written, name == LOADED[-1]))
    after_import("torch._inductor.cpu_vec_isa", lambda: remember_answers(folder))
    after_import("torch._inductor.codecache", lambda: remember_key(folder))
    after_import("torch._inductor.fx_passes.joint_graph", spare_attention)


def end_quickly() -> None:
    gc.freeze()
    locks = sys.modules.get("filelock._api")
    with contextlib.suppress(AttributeError):
        del locks.BaseFileLock.__del__  # a lock that outlives `os` says so on stderr


@contextlib.contextmanager
def loading(written: "WrittenCode", with_templates: bool):
    """While torch is imported: no collections, and code that was written before is not compiled again."""
    if not gc.isenabled():  # within another import
        yield
        return
    describe, compile_template = inspect.getframeinfo, None
    gc.disable()
    written.read()
    # Only file and line of who registers an operator are wanted, and not the lines around.
    inspect.getframeinfo = lambda frame, context=0: describe(frame, 0)
    dataclasses.exec = written.execute
    if with_templates:  # else nobody has loaded jinja2, and a test may say so
        with contextlib.suppress(ImportError):
            from jinja2 import Environment

            compile_template = Environment.compile
            Environment.compile = written.templates(compile_template)
    try:
        yield
    finally:
        inspect.getframeinfo = describe
        del dataclasses.exec
        if compile_template is not None:
            Environment.compile = compile_template
        gc.freeze()
        gc.unfreeze()  # into the oldest generation
        gc.enable()


class WrittenCode:
    """The bytecode of texts, in one file."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.known = {}
        self.new = {}

    def read(self) -> None:
        with contextlib.suppress(OSError, ValueError, EOFError), open(self.file, "rb") as file:
            self.known = marshal.load(file)

    def keep(self) -> None:
        """Writes what is new, where that is much."""
        if len(self.new) > 100:
            part = f"{self.file}.{os.getpid()}"
            with contextlib.suppress(OSError):
                with open(part, "wb") as file:
                    marshal.dump(self.known | self.new, file)
                os.replace(part, self.file)
        self.known, self.new = {}, {}

    def code_of(self, text: str, make):
        if text not in self.known:
            self.known[text] = self.new[text] = make()
        return self.known[text]

    def execute(self, text: str, variables=None, names=None) -> None:
        exec(self.code_of(text, lambda: compile(text, "<string>", "exec")), variables, names)

    def templates(self, compile_template):
        def compiled(environment, source, name=None, filename=None, *more):
            if not isinstance(source, str) or more or environment.loader is not None:
                return compile_template(environment, source, name, filename, *more)
            key = f"template {name} {filename} {source}"
            return self.code_of(key, lambda: compile_template(environment, source, name, filename))

        return compiled


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
