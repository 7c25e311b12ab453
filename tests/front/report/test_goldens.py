"""What the command line prints of made cases, to the letter: a move inside changes none of it.

Help texts, JSON documents, screens and pages; versions, paths and seconds are normalised. Meant changes are agreed on
as `golden_files.py` says.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys

import pytest
from golden_files import agreed
from made_cases import KINDS, accuracy

from torchsleuth.front.cli.main import VERBS, main
from torchsleuth.front.report.evidence import gather
from torchsleuth.front.report.html import page

TORCH = {"torch": "2.13.0", "built_for": None, "device": None, "device_error": None, "triton": None}


@pytest.fixture
def said(tmp_path, capsys, monkeypatch):
    """Runs command lines beside cases of every kind; the text of all of them, normalised."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    for name in ("TORCHSLEUTH_CASES", "TORCHSLEUTH_WORKERS"):
        monkeypatch.delenv(name, raising=False)
    for make in KINDS:
        make(tmp_path / "torchsleuth-cases")

    def run(*lines: str) -> str:
        texts = []
        for line in lines:
            status = main(line.split())
            captured = capsys.readouterr()
            texts.append(f"$ torchsleuth {line}\n{captured.out}")
            texts += [f"[stderr]\n{captured.err}"] if captured.err else []
            texts += [f"[status {status}]\n"] if status else []
        text = "\n".join(texts)
        text = re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE)
        return text.replace(str(tmp_path), "HERE").replace(str(tmp_path.resolve()), "HERE")

    return run


def test_every_help_text(said):
    text, wanted = agreed("help.txt", said("--help", *(f"{verb} --help" for verb in VERBS)))
    assert text == wanted


def test_cases_as_json(said):
    text, wanted = agreed("json.txt", said("list --json", "show a0000001 --json", "report a0000001 --json"))
    assert text == wanted


def test_cases_for_a_person(said):
    lines = ["list", *(f"show a000000{number}" for number in range(1, 7))]
    text, wanted = agreed("screens.txt", said(*lines))
    assert text == wanted


def test_mistakes_of_a_person(said):
    lines = (
        "",
        "no-such-verb",
        "rnu train.py",
        "train.py --epochs 1",
        "minify a0000001 --budget x",
        "minify a0000001 argument",
        "triage a0000001 argument",
        "run",
        "run no-such-script.py",
        "run --log nothing=1 x.py",
        "run --workers 0 x.py",
        "trace --artefacts nothing x.py",
        "explain no-such-script.py",
        "workaround a0000001 --all",
        "analyze a0000001 --look",
        "verify a0000005",
        "bisect a0000005",
        "bisect a0000001",
        "sweep nowhere",
        "replay a0000001",
    )
    text, wanted = agreed("mistakes.txt", said(*lines))
    assert text == wanted


def test_backends(said):
    text, wanted = agreed("backends.txt", said("backends", "backends --json"))
    assert text == wanted


def test_doctor_where_only_the_least_is_there(said, monkeypatch):
    def answers(*_, **__):
        return subprocess.CompletedProcess([], 0, json.dumps(TORCH), "")

    monkeypatch.setattr(subprocess, "run", answers)
    monkeypatch.setattr(shutil, "which", lambda name, **_: "/usr/bin/g++" if name == "g++" else None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "ray" else object())
    monkeypatch.delenv("CXX", raising=False)
    text = said("doctor", "doctor --json").replace(sys.version.split()[0], "PYTHON")
    text = re.sub(r"[\d.]+ GiB", "N GiB", text)
    text = re.sub(r", in /\S+?(?=[\"\n])", ", in PLACE", text)
    text, wanted = agreed("doctor.txt", re.sub(r"/\S+/Python\.h", "Python.h", text))
    assert text == wanted


def test_the_page_of_a_case_of_which_all_is_known(tmp_path):
    text = page(gather(accuracy(tmp_path))).replace(str(tmp_path), "HERE")
    text = re.sub(r"(?s)(<(style|script)>).*?(</\2>)", r"\1…\3", text)
    text, wanted = agreed("page-accuracy.html", re.sub(r"sha256-[\w+/=]+", "sha256", text))
    assert text == wanted
