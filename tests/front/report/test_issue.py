"""issue.md: PyTorch's own headings, the evidence, marks on what a machine wrote, and nothing private."""

import re
import socket
from dataclasses import replace

import pytest
from golden_files import agreed
from made_cases import KINDS, accuracy, capture_error, hang

from torchsleuth.front.report.evidence import gather
from torchsleuth.front.report.issue import MOST, issue
from torchsleuth.script_runtime.signature import Signature

# As the form that PyTorch offers for torch.compile renders them.
HEADINGS = ["### 🐛 Describe the bug", "### Error logs", "### Versions"]


def text_of(folder):
    return issue(gather(folder))


def outside_fences(text):
    return re.sub(r"(?ms)^(`{3,})\w*\n.*?\n\1$", "", text)


@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_the_headings_are_those_of_the_template(tmp_path, make):
    text = text_of(make(tmp_path))
    assert [line for line in outside_fences(text).splitlines() if line.startswith("#")] == HEADINGS
    assert text.count("<!-- begin: written by torchsleuth") == text.count("<!-- end: written by") == 3
    assert "In your own words" in text.partition("<!-- begin")[0]


def test_the_text_of_a_case_of_which_all_is_known(tmp_path):
    text, wanted = agreed("issue-accuracy.txt", text_of(accuracy(tmp_path)))
    assert text == wanted


def test_the_repro_in_it_is_the_repro(tmp_path):
    folder = accuracy(tmp_path)
    block = re.search(r"(?s)```python\n(.*?)\n```", text_of(folder))[1]
    assert block == folder.text("repro.py").rstrip()


def test_a_repro_that_is_missing_is_said_to_be(tmp_path):
    assert "None: an input is a tensor subclass" in text_of(hang(tmp_path))


def test_a_path_that_torch_cut_on_the_left_is_taken_out_as_well(tmp_path):
    folder = accuracy(tmp_path)
    (folder.path / "traceback.txt").write_text(
        "Caused by: y = x  # ome/ada/lab/model.py:35 in forward (_dynamo/variables/tensor.py:2606 in evaluate)"
    )
    text = text_of(folder)
    assert "# model.py:35 in forward (_dynamo/variables/tensor.py:2606" in text and "ada/lab" not in text


def test_a_title_is_cut_between_words_and_what_is_not_known_takes_no_room(tmp_path):
    folder = capture_error(tmp_path)
    long = Signature("capture_error", "capture", ("Unsupported",), "expression x > y (seen: x > y) " * 6)
    text = text_of(replace(folder, case=replace(folder.case, signature=long, backend="none")))
    title = re.search(r"A title: (.*) -->", text)[1]
    assert len(title) <= 120 and title.endswith(" …") and "x › y" in title and "characters" not in title
    assert "What was tried" not in text and "labels" not in text and "backend none" not in text


def test_nothing_private_is_in_it_and_each_removal_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/home/ada")
    host = f"gpu-{socket.gethostname()}"
    monkeypatch.setattr(socket, "gethostname", lambda: host)
    folder = accuracy(tmp_path)
    (folder.path / "traceback.txt").write_text(
        f'File "/home/ada/lab/model.py", line 3\nFile "/scratch/ada/data.py"\nFile "/opt/v/site-packages/torch/_ops.py"\n'
        f"on {host} by ada: --api-key=s3cr3ts3cr3t"
    )
    (folder.path / "repro.py").write_text(
        folder.text("repro.py") + "# see /data/ada/notes\nopen('/data/ada/weights.bin')\n"
    )
    text = text_of(folder)
    for private in ("/home", "/scratch", "/data", "/opt", host, "s3cr3t", "lab/"):
        assert private not in text, private
    told = text[text.index("What torchsleuth has taken out") :]
    for what in (
        "secrets",
        "paths of the machine",
        "installed packages",
        "the host's name",
        "the user's name",
    ):
        assert what in told, what
    assert (
        'File "model.py", line 3' in text and 'File "torch/_ops.py"' in text and "open('weights.bin')" in text
    )


def test_values_that_are_not_sent_along_are_named(tmp_path):
    folder = accuracy(tmp_path)
    (folder.path / "repro.py").write_text(
        "import pathlib\nx = pathlib.Path(__file__).with_name('repro.x.bin')\n"
    )
    told = text_of(folder).partition("taken out")[2]
    assert "values in repro.x.bin, which the script reads" in told


def test_it_fits_into_an_issue_whatever_the_case_holds(tmp_path):
    folder = accuracy(tmp_path)
    for name in ("traceback.txt", "environment.txt", "repro.py"):
        (folder.path / name).write_text("`*[x]_<&" * 40_000)
    assert len(text_of(folder)) < MOST
