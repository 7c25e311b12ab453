"""Trials that misbehave in every way a trial can; which way is named by the trial's graph. Needs no torch."""

import ctypes
import fcntl
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from torchsleuth.core.cases.record import CompileSettings
from torchsleuth.core.processes.kernel_caches import HEADERS
from torchsleuth.core.processes.limits import Limits
from torchsleuth.core.protocol.trials import Outcome, Trial
from torchsleuth.script_runtime.signature import Signature
from torchsleuth.search.workers.pool import Workers

FAILS = Signature("runtime_error", "run", ("ValueError",), "it failed as expected")


def trial(what: str, expected: Signature = FAILS, **more: Any) -> Trial:
    return Trial(what, expected, **more)


def counting(file: Path, at: int) -> Trial:
    """A trial that fails at its `at`-th run only."""
    return trial("count", settings=CompileSettings(options={"file": str(file), "at": str(at)}))


def faulty_workers(count: int = 1, **options) -> Workers:
    """Workers whose trials are those of this file, with a server that loads nothing."""
    paths = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    options.setdefault("limits", Limits(setup=20, compile=10, run=10))
    return Workers(
        count, call="faulty:run", warm_up=None, still_good="faulty:good", environment=environment, **options
    )


def good() -> bool:
    return True


def run(trial: Trial, announce) -> Outcome:
    announce("compile")
    announce("run")
    return globals()[f"do_{trial.graph.split()[0]}"](trial, announce) or Outcome(None, 0.0)


def do_pass(trial, announce):
    return Outcome(None, 0.0, text="passed")


def do_fail(trial, announce):
    return Outcome(FAILS, 0.0, text="Traceback: it failed")


def do_sometimes(trial, announce):
    return Outcome(FAILS if random.Random(os.getpid() + time.time_ns()).random() < 0.5 else None, 0.0)


def do_count(trial, announce):
    """Fails at the run whose number stands in the trial; counts runs in a file."""
    path = Path(trial.settings.options["file"])
    with open(path, "a") as file:
        file.write("x")
    return Outcome(FAILS if path.stat().st_size == int(trial.settings.options["at"]) else None, 0.0)


def do_raise(trial, announce):
    raise RuntimeError("a bug of ours")


def do_precompile(trial, announce):
    """As torch does it: under a lock, by another process, which marks the file until all of it is there."""
    (HEADERS / "locks").mkdir(parents=True)
    with open(HEADERS / "locks" / "cabc.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.run(["sh", "-c", f"printf gpcWrite > {HEADERS}/cabc.h.gch; sleep 1000"])


def do_segv(trial, announce):
    print("about to crash", file=sys.stderr)
    ctypes.string_at(8)


def do_compile_segv(trial, announce):
    announce("compile")
    ctypes.string_at(8)


def do_abort(trial, announce):
    os.abort()


def do_fpe(trial, announce):
    os.kill(os.getpid(), signal.SIGFPE)


def do_exit(trial, announce):
    os._exit(int(trial.graph.split()[1]))


def do_sysexit(trial, announce):
    sys.exit(3)


def do_setup_crash(trial, announce):
    announce("setup")
    ctypes.string_at(8)


def do_setup_hang(trial, announce):
    announce("setup")
    time.sleep(1000)


def do_hang(trial, announce):
    while True:
        pass


def do_native_hang(trial, announce):
    ctypes.PyDLL(None).sleep(1000)  # keeps the GIL


def do_stubborn_hang(trial, announce):
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
        try:
            signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError):
            pass
    time.sleep(1000)


def do_sleep(trial, announce):
    time.sleep(float(trial.graph.split()[1]))


def do_eat(trial, announce):
    held = []
    while True:
        held.append(bytearray(32 << 20))
        time.sleep(0.01)


def do_flood(trial, announce):
    block = b"x" * (1 << 20)
    for _ in range(1024):
        os.write(2, block)
    os.write(2, b"\nthe end\n")
    return Outcome(None, 0.0)


def do_grandchild(trial, announce):
    """Leaves two processes behind: one in its own group, one in a session of its own."""
    sleep = [sys.executable, "-c", "import time; time.sleep(1000)"]
    subprocess.Popen(sleep)
    subprocess.Popen(sleep, start_new_session=True)
    if "wait" in trial.graph:
        time.sleep(1000)
    return Outcome(None, 0.0)


def do_bomb(trial, announce):
    """Every process of it starts others, to a bounded depth: 2**9 at most if nobody ends it."""
    for _ in range(9):
        if os.fork() == 0 and "sessions" in trial.graph:
            os.setsid()
    time.sleep(1000)


def do_kill_server(trial, announce):
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(1000)


def do_babble(trial, announce):
    """Writes nonsense to every descriptor it has, then fails as expected."""
    for descriptor in range(3, 64):
        try:
            os.write(descriptor, b"\xff" * 64)
        except OSError:
            pass
    return Outcome(FAILS, 0.0)


def do_close_everything(trial, announce):
    os.closerange(0, 256)
    return Outcome(FAILS, 0.0)


def do_read_store(trial, announce):
    path = Path(trial.store, "storages", "abc.safetensors")
    return Outcome(None, 0.0, text=f"{path}|{path.read_text()}")


def do_write_store(trial, announce):
    path = Path(trial.store, "storages", "new.safetensors")
    path.write_text("new values")
    return Outcome(None, 0.0, text=str(path))
