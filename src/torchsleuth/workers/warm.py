"""A process that runs many trials one after the other, for devices whose set-up costs more than a trial.

A forked process cannot use an accelerator that its parent has touched, so this one is started anew and keeps its
context. It goes on only while it is as good as new: after a crash, a hang, a poisoned context or a trial that brought
definitions of its own, another takes its place.
"""

from __future__ import annotations

import os
import sys

from torchsleuth.workers.child import named_function, run_and_tell, tighten
from torchsleuth.workers.limits import limits_from_json
from torchsleuth.workers.processes import die_with
from torchsleuth.workers.wire import Frames, frame, trial_from_json, write_all


def main(arguments: list[str]) -> None:
    """`python -m torchsleuth.workers.warm SERVER COMMANDS RESULTS CALL STILL_GOOD`."""
    server, commands, results = (int(number) for number in arguments[:3])
    call, still_good = arguments[3:]
    die_with(server)
    frames = Frames()
    tightened = False
    while data := os.read(commands, 1 << 16):
        for message in frames.feed(data):
            if not tightened:
                tighten(limits_from_json(message["limits"]))
                tightened = True
            trial = trial_from_json(message["trial"])
            run_and_tell(call, trial, results)
            good = not trial.embedded and bool(named_function(still_good)())
            write_all(results, frame({"good": good}))
            if not good:
                os._exit(0)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
