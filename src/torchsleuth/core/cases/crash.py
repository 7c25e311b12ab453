"""How a process ended, in the words of a signature.

The status that `subprocess` reports (negative), that a shell reports (128 + N) and that a program chose
itself (`os._exit(7)`) are three spellings of one fact; the signature knows one.
"""

import signal

from torchsleuth.script_runtime.signature import Signature


def signal_of_status(returncode: int) -> str:
    """What ended a process: `signal_of_status(-11) == "SIGSEGV"`, `signal_of_status(7) == "exit 7"`."""
    number = -returncode if returncode < 0 else returncode - 128
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"exit {returncode}"


def signature_of_crash(returncode: int, phase: str) -> Signature:
    """The signature of a dead process: `signature_of_crash(-11, "run").signal == "SIGSEGV"`."""
    return Signature("crash", phase, signal=signal_of_status(returncode))


# What faulthandler writes at the head of its dump, on Linux and macOS.
_FATAL = {
    "Segmentation fault": "SIGSEGV",
    "Aborted": "SIGABRT",
    "Bus error": "SIGBUS",
    "Illegal instruction": "SIGILL",
    "Floating point exception": "SIGFPE",
    "Floating-point exception": "SIGFPE",
}


def fatal_signal(stacks: str) -> str | None:
    """The signal a process died of, from the stacks it left: "SIGSEGV"; None where they name none."""
    return next((name for text, name in _FATAL.items() if f"Fatal Python error: {text}" in stacks), None)
