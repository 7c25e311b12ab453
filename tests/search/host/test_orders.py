"""What the front orders of the search host."""

import subprocess
import sys

from torchsleuth.core.protocol.frames import Frames, frame
from torchsleuth.core.protocol.steps import (
    TO_HOST,
    AdoptOrder,
    AnalyzeOrder,
    CheckOrder,
    MinifyOrder,
    TriageOrder,
    WorkaroundOrder,
)
from torchsleuth.search.host.steps import STEPS

SENT = [
    AdoptOrder("bug.py", "cases", ("--size", "3"), 2.5, budget=60.0),
    TriageOrder("cases/3f9a0000", before_minify=True, budget=9.0, leave_out=("reading the case",)),
    MinifyOrder("cases/3f9a0000", budget=600.0),
    AnalyzeOrder("cases/3f9a0000", ("local", "inside"), save=True),
    WorkaroundOrder("cases/3f9a0000"),
    CheckOrder("bug.py", ("sh", "-c", "x"), "cases/small.py", "/here", {"HOME": "/home/me"}, timeout=3.0),
]


def test_an_order_arrives_as_it_was_sent_and_there_is_a_step_for_each():
    assert Frames(*TO_HOST).feed(b"".join(map(frame, SENT))) == SENT
    assert STEPS.keys() == set(TO_HOST) == set(map(type, SENT))


def test_an_order_names_the_folder_in_which_it_may_write():
    assert {order.folder for order in SENT} == {"cases", "cases/3f9a0000"}


def test_a_host_says_that_it_is_there_before_it_loads_what_a_search_needs():
    look = "import sys, torchsleuth.search.host.main; print('torch' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "False"
