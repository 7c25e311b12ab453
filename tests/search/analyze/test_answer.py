"""What a person gets of an analysis: the sentence, the table, the picture; also of one that was stopped, or is hostile."""

import json
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from types import ModuleType

import pytest

from made import make
from torchsleuth.core.cases.analysis import (
    Analysis,
    Culprit,
    NotNumerical,
    RunDifference,
    ValueAnalysis,
    analysis_from_json,
    analysis_of,
    differences,
    worst,
)
from torchsleuth.core.cases.errors import DamagedCase
from torchsleuth.core.cases.folder import CaseFolder
from torchsleuth.front.cli.analyze import NoPng, analyze_verb, png_writer, show_analysis
from torchsleuth.front.cli.look import show_case
from torchsleuth.front.report.evidence import gather
from torchsleuth.front.report.html import page
from torchsleuth.search.analyze.analyze_case import analyze_case, picture
from torchsleuth.torch_core.graphs.source_line import SourceLine

CULPRIT = Culprit(
    "softmax",
    "aten._softmax.default",
    "softmax",
    "cpp_fused__softmax_3",
    off=4.1e-2,
    noise=3e-7,
    times=1e5,
    confirmed=True,
    recovers=True,
    user_line="model.py:61",
    module="encoder.layers.2.attn",
)


def test_the_answer_in_words():
    assert Analysis("3f9a0000", culprit=CULPRIT).words == (
        "`_softmax` in `encoder.layers.2.attn` (model.py:61), kernel `cpp_fused__softmax_3`: 4.1e-02 off where rounding "
        "explains 3e-07; everything after it inherits the error: with eager's value in its place the results are right"
    )


APART = RunDifference("sum_1", "buf3", "cpp_fused_sum_0", "elements", 4, 0.5)
DIFFER = (
    "two runs of the compiled code on the same inputs differ: sum_1 (buf3 of cpp_fused_sum_0), in 4 elements, by up to "
    "5.0e-01"
)


@pytest.mark.parametrize(
    "found",
    [
        Analysis("3f9a0000", seen=7, complete=True),
        Analysis("3f9a0000", seen=7, complete=True, culprit=CULPRIT),
        Analysis("3f9a0000", seen=7, complete=True, outputs={"outputs[0]": {"times": 1e6}}),
        Analysis("3f9a0000", seen=7, complete=True, error="the values that were seen are right"),
        Analysis("3f9a0000", seen=7),
    ],
    ids=["right", "culprit", "wrong", "error", "stopped"],
)
def test_runs_that_differ_are_told_wherever_the_analysis_is(found, tmp_path, capsys):
    found = replace(found, nondeterministic=(APART,))
    folder = CaseFolder(tmp_path, replace(make(), analysis=found.summary()))
    show_analysis(found, folder)
    show_case(folder)
    shown, document = capsys.readouterr().out, page(gather(folder))
    for told in (found.words, found.to_json()["words"], found.summary().words, shown, document):
        assert DIFFER in " ".join(told.split()) and "nothing diverges" not in told
    assert not found.clean and not found.summary().clean


def test_a_difference_that_is_no_number_is_told_as_what_it_is():
    told = [
        RunDifference("a", "buf0", "k", "shape"),
        RunDifference("b", "buf1", "k", "elements", 1),
        RunDifference("c", "buf2", "k", "elements"),
    ]
    assert differences(told) == (
        "a (buf0 of k), in its shape; b (buf1 of k), in 1 element, by an infinity or NaN; c (buf2 of k), in its bits"
    )


def test_an_analysis_that_was_stopped_says_what_it_had():
    rows = [
        {"node": "relu", "op": "aten.relu.default", "kernel": "k", "off": 1.0, "noise": 1e-7, "times": 1e7}
    ]
    lines = {"relu": SourceLine("model.py", 7, module="mlp")}
    found = analysis_of({"accumulated": rows, "seen": {"calls": 9, "seen": 1}}, lines, case="3f9a0000")
    assert "the time was up" in found.words
    assert (found.values[0].line, found.values[0].module, found.values[0].local_off) == (
        "model.py:7",
        "mlp",
        None,
    )


def test_it_is_written_and_read_again():
    values = tuple(
        ValueAnalysis(f"n{i}", off=10.0**-i, noise=1e-9, times=float(i), local_times=float(i))
        for i in range(5)
    )
    apart = (
        RunDifference("n2", "buf3", "cpp_fused_sum_0", "elements", 4, 0.5),
        RunDifference("n3", field="shape"),
    )
    found = Analysis(
        "3f9a0000", values, CULPRIT, nondeterministic=apart, complete=True, seconds={"local": 1.5}
    )
    again = analysis_from_json(json.loads(json.dumps(found.to_json())))
    assert again == found
    assert worst(again, 1)[0].node == "n4"
    assert again.summary().node == "softmax"


@pytest.mark.parametrize(
    "doc",
    [
        [],
        {"schema": 9},
        {"schema": 2},
        {"schema": 2, "case": "x", "values": [{"node": 3}]},
        {"schema": 2, "case": "x", "nondeterministic": {"n2": 0.5}},
    ],
)
def test_a_damaged_analysis_is_said_to_be_one(doc):
    with pytest.raises(DamagedCase):
        analysis_from_json(doc)


def test_the_picture_is_one_whatever_names_a_stranger_gave():
    nasty = "</svg><script>alert(1)</script>"
    values = tuple(ValueAnalysis(f"{nasty}{i}", off=0.0 if i % 7 else 1.0, noise=1e-7) for i in range(3000))
    culprit = replace(CULPRIT, op=nasty, seen_at=values[1500].node)
    drawn = picture(Analysis("3f9a0000", values, culprit))
    root = ET.fromstring(drawn)
    assert root.tag.endswith("svg") and "<script" not in drawn
    assert any(nasty in (text.text or "") for text in root.iter("{http://www.w3.org/2000/svg}text"))
    assert len(drawn) < 100_000
    ET.fromstring(picture(Analysis("3f9a0000")))


def test_a_failure_without_numbers_is_sent_to_triage(tmp_path):
    case = replace(make(), kind="crash")
    with pytest.raises(NotNumerical, match=r"is not a wrong result .*torchsleuth triage"):
        analyze_case(CaseFolder(tmp_path, case), questions=None)


def test_a_png_is_drawn_from_the_svg(tmp_path, monkeypatch):
    drawing = ModuleType("cairosvg")
    drawing.svg2png = lambda *, bytestring, output_width: b"\x89PNG" + bytestring[:4]
    monkeypatch.setitem(sys.modules, "cairosvg", drawing)
    png_writer(tmp_path / "error.png")(picture(Analysis("3f9a0000")))
    assert (tmp_path / "error.png").read_bytes() == b"\x89PNG<svg"
    with pytest.raises(NoPng, match="cannot be written"):
        png_writer(tmp_path / "nowhere" / "error.png")("<svg/>")


def test_without_cairosvg_a_png_is_refused_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "cairosvg", None)
    asked = ["3f9a", "--look", "--png", str(tmp_path / "error.png"), "--cases", str(tmp_path)]
    with pytest.raises(NoPng, match=r"pip install 'torchsleuth\[png\]'"):
        analyze_verb.main(asked, standalone_mode=False, help_option_names=["-h", "--help"])
