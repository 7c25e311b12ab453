"""Makes the processes in which trials run: by fork from a warm server, or started anew for an accelerator.

Both wait for their first trial on a pipe. A fork takes tens of milliseconds where much is loaded, so the server makes
the next process while the present one works.
"""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping

from torchsleuth.child.child import isolate
from torchsleuth.child.child_process import DEVICE, ONCE, ChildProcess
from torchsleuth.core.processes.starting import python_command

Work = Callable[[int, int], None]


def fork_child(work: Work, inherited: Iterable[int], serves: str = ONCE) -> ChildProcess:
    """A forked process that does `work(commands, results)` and ends; it keeps none of the `inherited` descriptors."""
    commands, ours_commands = os.pipe()
    ours_results, results = os.pipe()
    ours_output, output = os.pipe()
    server = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            isolate(server, [*inherited, ours_commands, ours_results, ours_output], output)
            work(commands, results)
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(0)
    return _child(pid, ours_commands, ours_results, ours_output, (commands, results, output), serves)


def spawn_child(environment: Mapping[str, str], call: str, still_good: str) -> ChildProcess:
    """A process of its own kind, started anew, that runs trials one after the other while it is good."""
    commands, ours_commands = os.pipe()
    ours_results, results = os.pipe()
    ours_output, output = os.pipe()
    numbers = (os.getpid(), commands, results)
    process = subprocess.Popen(
        python_command(sys.executable, "torchsleuth.child.device_worker", *numbers, call, still_good),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env=dict(environment),
        start_new_session=True,
        pass_fds=(commands, results),
    )
    process.returncode = 0  # the server reaps all its children itself
    return _child(process.pid, ours_commands, ours_results, ours_output, (commands, results, output), DEVICE)


def _child(
    pid: int, commands: int, results: int, output: int, theirs: tuple[int, int, int], serves: str
) -> ChildProcess:
    for descriptor in theirs:
        os.close(descriptor)
    for descriptor in (results, output):
        os.set_blocking(descriptor, False)
    return ChildProcess(pid, commands, results, output, serves)
