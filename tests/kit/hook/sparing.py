"""What a process of the tests need not do again: which is half of the time of a small program with one kernel.

Which vector instructions the C++ compiler and this processor know is asked by six programs, a Python process for each;
an answer is kept for the session (the builds themselves are: `tests/kit/compiler/g++`). Loading torch makes a million
objects and no garbage, which Python looks through again and again: it looks less often, and not at the end.
"""

import atexit
import contextlib
import gc
import os

from faultkit import after_import


def install(folder: str) -> None:
    gc.set_threshold(50_000, 20, 20)
    atexit.register(gc.freeze)  # the first to be registered is the last to be called
    after_import("torch._inductor.cpu_vec_isa", lambda: remember_answers(folder))


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
