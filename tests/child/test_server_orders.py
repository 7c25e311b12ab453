"""What the server does with an order at once, and what waits."""

from types import SimpleNamespace

from torchsleuth.child.child_process import DEVICE, ONCE
from torchsleuth.child.server import Server
from torchsleuth.core.processes.limits import Limits
from torchsleuth.core.protocol.trials import RunTrial


def test_a_trial_on_a_device_does_not_wait_for_what_is_found_out_about_the_cpp_compiler():
    """In an empty cache that takes from ten seconds to a minute, and a device's kernels have no use for it."""
    server, started = object.__new__(Server), []
    server.waiting = []
    server.learning, server.start = lambda: True, started.append
    orders = [RunTrial(n, "{}", Limits(), serves, True) for n, serves in enumerate([ONCE, DEVICE])]
    server.receive(SimpleNamespace(receive=lambda: orders))
    assert (started, server.waiting) == ([orders[1]], [orders[0]])
