"""A process that runs many trials one after the other, for devices whose set-up costs more than a trial.

A forked process cannot use an accelerator that its parent has touched, so this one is started anew and keeps its
context. It goes on only while it is as good as new: after a crash, a hang, a poisoned context or a trial that brought
definitions of its own, another takes its place.
"""

from __future__ import annotations

import os
import sys

from torchsleuth.child.child import named_function, run_and_tell, trials_from
from torchsleuth.core.processes.tree import die_with
from torchsleuth.core.protocol.frames import frame, write_all
from torchsleuth.core.protocol.trials import Good, Question


def main(arguments: list[str]) -> None:
    """`SERVER COMMANDS RESULTS CALL STILL_GOOD`: the server's process, two descriptors, two functions by name."""
    server, commands, results = (int(number) for number in arguments[:3])
    call, still_good = arguments[3:]
    die_with(server)
    named_function(still_good)()  # loads what trials need, while none waits
    for trial in trials_from(commands):
        run_and_tell(call, trial, results)
        # Shapes are asked for often, by trials that all bring the same definitions.
        stays = not trial.embedded or trial.question is Question.SHAPES
        stays = stays and trial.question is not Question.PROGRAM
        good = stays and bool(named_function(still_good)())
        write_all(results, frame(Good(good)))
        if not good:
            break
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
