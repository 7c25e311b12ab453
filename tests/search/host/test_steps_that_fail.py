"""What the front hears of a step that fails in the search host."""

import errno
import os

import pytest

from torchsleuth.core.protocol.steps import MinifyOrder
from torchsleuth.search.host.main import do_step


class Heard:
    def __init__(self):
        self.messages = []

    def tell(self, message):
        self.messages.append(message)


def told(error, order):
    def step(front, questions, order):
        raise error

    front = Heard()
    do_step(step, front, None, order)
    [message] = front.messages
    return message


@pytest.mark.parametrize("code, said", [(errno.ENOSPC, "No space left"), (errno.EROFS, "Read-only")])
def test_a_disk_that_refuses_a_file_of_the_case_is_no_bug_of_ours(tmp_path, code, said):
    file = tmp_path / "6876eafe" / "checkpoints" / "nodes.py"
    message = told(OSError(code, os.strerror(code), str(file)), MinifyOrder(str(tmp_path / "6876eafe")))
    assert message.status == 1 and "bug" not in message.sentence
    assert message.sentence.startswith(f"{file} cannot be written ({said}") and "is kept" in message.sentence


def test_a_file_elsewhere_and_other_errors_are(tmp_path, capsys):
    elsewhere = OSError(errno.ENOENT, "No such file", "/nowhere/x")
    for error in (elsewhere, KeyError("x")):
        message = told(error, MinifyOrder(str(tmp_path)))
        assert message.status == 1 and message.sentence.startswith("a bug in torchsleuth: ")
    assert "Traceback" in capsys.readouterr().err
