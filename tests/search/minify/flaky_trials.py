"""A trial that fails in a fixed rhythm, told by its graph and a file that counts its runs. Needs no torch."""

import os

from torchsleuth.core.protocol.trials import Outcome
from torchsleuth.script_runtime.signature import Signature

FAILS = Signature("runtime_error", "run", ("ValueError",), "now and then it fails")


def good() -> bool:
    return True


def run(trial, announce):
    announce("compile")
    announce("run")
    rhythm = trial.settings.options["rhythm"]
    with open(trial.settings.options["file"], "ab", buffering=0) as file:
        file.write(b"x")
    number = os.path.getsize(trial.settings.options["file"]) - 1
    fails = "relu" in trial.graph and rhythm[number % len(rhythm)] == "f"
    return Outcome(FAILS if fails else None, 0.01, text="ValueError: now and then it fails")
