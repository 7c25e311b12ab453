"""issue.md: PyTorch's own headings, the evidence, marks on what a machine wrote, and nothing private."""

import contextlib
import re
import socket
from dataclasses import replace

import pytest
from golden_files import agreed
from made_cases import KINDS, REPRO, accuracy, capture_error, hang

from torchsleuth.front.report.evidence import gather
from torchsleuth.front.report.issue import MOST, as_maintainers_write_it, issue
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


def test_the_repro_ends_in_an_assertion_of_the_same_calls_and_tolerance(tmp_path):
    block = re.search(r"(?s)```python\n(.*?)\n```", text_of(accuracy(tmp_path)))[1]
    assert block.splitlines()[0] == "import torch" and "REPRODUCED" not in block
    assert block.splitlines()[-2:] == [
        "wanted, got = f(x), torch.compile(f)(x)",
        "torch.testing.assert_close(got, wanted, rtol=0, atol=1e-06, equal_nan=True)",
    ]


def test_a_repro_that_has_a_wrong_result_fails_as_maintainers_write_it_and_a_right_one_passes(tmp_path):
    compiled = "torch.compile(f)"
    for said, raises in (
        ("lambda x: f(x) + 1", pytest.raises(AssertionError)),
        ("f", contextlib.nullcontext()),
    ):
        with raises:
            exec(as_maintainers_write_it(REPRO).replace(compiled, f"({said})"), {})


def test_several_results_are_compared_one_by_one():
    wrong = "not torch.allclose(a, b, 1e-3, 1e-3, equal_nan=True) for a, b in zip(wanted, got) if torch.is_tensor(a))"
    script = REPRO.replace(
        "not torch.allclose(wanted, got, rtol=0, atol=1e-06, equal_nan=True)", f"any({wrong}"
    )
    short = as_maintainers_write_it(script)
    assert short.endswith(
        "for a, b in zip(wanted, got):\n    if torch.is_tensor(a):\n"
        "        torch.testing.assert_close(b, a, rtol=1e-3, atol=1e-3, equal_nan=True)"
    )


def test_a_script_of_another_form_is_left_as_it_is(tmp_path):
    assert as_maintainers_write_it("import torch\nprint(1)\n") is None
    folder = accuracy(tmp_path)
    (folder.path / "repro.py").write_text("import torch\nprint(1)\n")
    assert "import torch\nprint(1)\n```" in text_of(folder)


def test_a_title_names_what_is_at_fault_and_known_issues_are_searched_for_it(tmp_path):
    text = text_of(accuracy(tmp_path))
    assert (
        "A title: [aot_autograd] functionalization gives wrong results for torch.nn.functional.interpolate"
        in text
    )
    assert (
        "https://github.com/pytorch/pytorch/issues?q=is%3Aissue+functionalization+interpolate+wrong+results"
        in text
    )


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
    title = re.search(r"A title: (.*)", text)[1]
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
        folder.text("repro.py").replace(
            "torch.manual_seed(0)", "# see /data/ada/notes\nopen('/data/ada/weights.bin')"
        )
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
