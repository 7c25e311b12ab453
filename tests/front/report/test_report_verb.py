"""`torchsleuth report`: what it writes, and cases that cannot be opened, are half-written, newer or hostile."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_cases import FILES, GRAPH, REPRO, accuracy, compile_error, programs_own
from page_parts import Parts
from test_issue import HEADINGS, outside_fences

from torchsleuth.core.cases.folder import CaseFolder, put_files
from torchsleuth.core.cases.model import case_from_json
from torchsleuth.front.cli.main import main
from torchsleuth.front.report.evidence import gather
from torchsleuth.front.report.html import page, write_report
from torchsleuth.front.report.issue import MOST, issue
from torchsleuth.front.report.terminal import ending


def report(cases: Path, *words: str) -> tuple[int, str]:
    status = main(["report", *words, "--cases", str(cases)])
    path = cases / (words[0] if words else "a0000001") / "report.html"
    return status, path.read_text(encoding="utf-8") if path.is_file() else ""


def test_both_files_are_written_into_the_case(tmp_path, capsys):
    folder = accuracy(tmp_path)
    assert main(["report", "last", "--cases", str(tmp_path)]) == 0
    assert str(folder.file("report.html")) in capsys.readouterr().out
    assert "F.interpolate" in folder.text("report.html") and folder.text("issue.md").startswith(HEADINGS[0])


def test_json_names_the_files_and_nothing_else_is_on_stdout(tmp_path, capsys):
    accuracy(tmp_path / "cases")
    assert (
        main(["report", "a0", "--cases", str(tmp_path / "cases"), "-o", str(tmp_path / "out"), "--json"]) == 0
    )
    said = json.loads(capsys.readouterr().out)
    assert said["case"] == "a0000001" and said["not_read"] == []
    assert Path(said["report"]) == tmp_path / "out" / "report.html" and Path(said["issue"]).is_file()
    assert not (tmp_path / "cases" / "a0000001" / "report.html").exists()


def test_nothing_else_of_the_case_is_touched(tmp_path):
    folder = accuracy(tmp_path)
    before = {p: p.read_bytes() for p in folder.path.rglob("*") if p.is_file()}
    assert report(tmp_path)[0] == 0
    after = {p: p.read_bytes() for p in folder.path.rglob("*") if p.is_file()}
    assert {p.name for p in after.keys() - before.keys()} == {"report.html", "issue.md"}
    assert all(after[p] == content for p, content in before.items())


def test_no_such_case_is_one_sentence(tmp_path, capsys):
    assert report(tmp_path, "ffff")[0] == 2
    assert "No case 'ffff'" in capsys.readouterr().err


def test_a_packed_case_is_to_be_unpacked_first(tmp_path, capsys):
    accuracy(tmp_path)
    main(["pack", "last", "--cases", str(tmp_path), "-o", str(tmp_path / "case.zip")])
    assert main(["report", str(tmp_path / "case.zip"), "--cases", str(tmp_path)]) == 2
    assert "torchsleuth unpack" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path, capsys):
    folder = accuracy(tmp_path)
    (folder.path / "report.html").mkdir()
    assert report(tmp_path)[0] == 2
    assert "Cannot write" in capsys.readouterr().err


def edit(folder: CaseFolder, **changes: object) -> None:
    doc = json.loads(folder.text("case.json"))
    folder.file("case.json").write_text(json.dumps({**doc, **changes}))


def test_a_case_of_a_later_version_is_shown_as_far_as_it_is_understood(tmp_path):
    folder = accuracy(tmp_path)
    edit(folder, schema=7, triage={"component": "inductor", "ops": [3]}, novelty={"a": [1]})
    status, text = report(tmp_path, "a0000001")
    found = Parts(text)
    assert status == 0 and "has schema 7" in text
    assert "triage is left out" in text
    assert (
        "3 of 3 fresh processes" in found.sections["summary"]
        and "not looked into" in found.sections["summary"]
    )
    assert "interpolate" in found.sections["graph"]


@pytest.mark.parametrize("content", ["", '{"schema": 1, "id": "a00', "[]", "\0", "{}"])
def test_a_half_written_case_is_named_and_its_files_are_shown(tmp_path, content):
    folder = accuracy(tmp_path)
    folder.file("case.json").write_text(content)
    status, text = report(tmp_path, "a0000001")
    assert status == 0 and "cannot be read" in text
    found = Parts(text)
    assert "F.silu" in found.sections["graph"] and "torch.compile(f)" in found.sections["repro"]
    assert "case a0000001" in text


@pytest.mark.parametrize(
    "name", ["graph.py", "repro.py", "record.json", "traceback.txt", "environment.txt", "log.txt"]
)
@pytest.mark.parametrize("how", ["gone", "empty", "link", "folder", "pipe", "binary", "deep"])
def test_each_file_may_be_missing_or_wrong(tmp_path, name, how):
    folder = accuracy(tmp_path)
    path = folder.file(name)
    path.unlink()
    secret = tmp_path / "secret.txt"
    secret.write_text("the treasure is under the oak")
    if how == "empty":
        path.write_text("")
    elif how == "link":
        path.symlink_to(secret)
    elif how == "folder":
        path.mkdir()
    elif how == "pipe":
        os.mkfifo(path)
    elif how == "binary":
        path.write_bytes(bytes(range(256)))
    elif how == "deep":
        path.write_text("def f(x):\n    return " + "(" * 5000 + "x" + ")" * 5000)
    status, text = report(tmp_path)
    assert status == 0 and "treasure" not in text and not Parts(text).unclosed


def test_a_case_of_many_megabytes_makes_a_page_of_ordinary_size(tmp_path):
    folder = accuracy(tmp_path)
    doc = json.loads(folder.text("case.json"))
    rung, workaround = doc["triage"]["rungs"][0], doc["workarounds"][0]
    triage = {**doc["triage"], "rungs": [rung] * 50_000, "code": "x" * 10**6, "labels": ["a"] * 10**5}
    graph = {"calls": 1, "inputs": 1, "source_lines": ["m.py:1"] * 10**5}
    edit(folder, triage=triage, graph=graph, workarounds=[{**workaround, "how": "y" * 50_000}] * 100)
    status, text = report(tmp_path)
    assert status == 0 and len(text) < 1_000_000
    check_page(text)
    check_issue(folder.text("issue.md"))


HOSTILE = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "\"' onmouseover='alert(1)",
    "</pre></details></section><iframe src=//evil.example>",
    "javascript:alert(1)",
    "{{ 7 * 7 }}{% raw %}",
    "]]>--><!--",
    "```\n# heading\n@everyone <b>",
    "\x1b[2J\x00\u202e\u2028",
    "&lt;b&gt;" * 50,
    "y" * 30_000,
]
texts = st.one_of(st.sampled_from(HOSTILE), st.text(max_size=40))
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-9, 10**12)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
TAGS = [
    "html",
    "head",
    "meta",
    "title",
    "style",
    "script",
    "body",
    "a",
    "header",
    "div",
    "span",
    "button",
    "h1",
    "ul",
    "li",
    "nav",
    "main",
    "section",
    "h2",
    "h3",
    "dl",
    "dt",
    "dd",
    "pre",
    "mark",
    "p",
    "br",
    "code",
    "em",
    "kbd",
    "abbr",
    "svg",
    "defs",
    "marker",
    "path",
    "g",
    "rect",
    "text",
    "table",
    "thead",
    "tbody",
    "tr",
    "th",
    "td",
    "details",
    "summary",
    "ol",
    "i",
    "input",
    "img",
    "footer",
]


def check_page(text: str) -> None:
    """Whatever stands in a case, the page has its own elements only, and its own script."""
    found = Parts(text)
    assert {tag for tag, _ in found.tags} <= {*TAGS} and not found.unclosed
    assert found.count("script") == found.count("style") == 1
    own = Path(gather.__code__.co_filename).with_name("templates")
    assert found.own == {"style": (own / "page.css").read_text(), "script": (own / "page.js").read_text()}
    for tag, attrs in found.tags:
        assert not [name for name in attrs if name.startswith("on") or name == "style"], (tag, attrs)
        for name in ("src", "href"):
            assert (attrs.get(name) or "#").startswith(("#", "data:image/svg+xml;base64,")), (tag, attrs)


def check_issue(text: str) -> None:
    rest = outside_fences(text)
    assert len(text) < MOST and [line for line in rest.splitlines() if line.startswith("#")] == HEADINGS
    prose = rest.replace("\\<", "").replace("\\>", "")
    for own in ("<details><summary>What was tried</summary>", "</details>"):  # in which the table is folded
        prose = prose.replace(own, "", 1)
    assert prose.count("<") == prose.count("<!--") and prose.count(">") == prose.count("-->")


def every_text(doc, by):
    if isinstance(doc, dict):
        return {key: every_text(value, by) for key, value in doc.items()}
    if isinstance(doc, list):
        return [every_text(value, by) for value in doc]
    return by if isinstance(doc, str) else doc


@pytest.mark.parametrize("by", HOSTILE)
def test_a_case_all_of_whose_texts_are_hostile_runs_nothing(tmp_path, by):
    folder = accuracy(tmp_path)
    doc = json.loads(folder.text("case.json"))
    kept = {key: doc[key] for key in ("id", "kind", "phase", "direction", "after", "schema")}
    case = case_from_json({**every_text(doc, by), **kept, "run": "abc"})
    hostile = CaseFolder(folder.path, case)
    put_files(folder.path, {name: f"{by}\n{text}" for name, text in FILES.items() if name.endswith(".txt")})
    line = by.replace("\n", " ").replace("\0", "").replace("\u2028", "")
    put_files(
        folder.path,
        {
            "graph.py": GRAPH.replace("silu = ", f"silu = {line!r} + ").replace("f32[2, 8]", line),
            "repro.py": REPRO.replace("scale_factor=(1.3, 1.5)", repr(line)),
            "record.json": json.dumps(every_text(json.loads(FILES["record.json"]), by)),
            "analysis.json": json.dumps({by: [{by: by}], "b": by}),
            "analysis.svg": f"<svg>{by}</svg>",
        },
    )
    put_files(tmp_path / "runs" / "abc", {"breaks.json": json.dumps([{by: by}])})
    evidence = gather(hostile)
    check_page(page(evidence))
    check_issue(issue(evidence))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_whatever_case_json_holds_a_report_comes_of_it(tmp_path, data):
    shutil.rmtree(tmp_path / "a0000001", ignore_errors=True)
    folder = accuracy(tmp_path)
    doc = json.loads(folder.text("case.json"))
    for _ in range(data.draw(st.integers(1, 4))):
        place = doc
        while True:
            key = data.draw(
                st.sampled_from(sorted(place)) if isinstance(place, dict) else st.integers(0, len(place) - 1)
            )
            inner = place[key]
            if not (isinstance(inner, (dict, list)) and inner) or data.draw(st.booleans()):
                break
            place = inner
        place[key] = data.draw(values)
    folder.file("case.json").write_text(json.dumps(doc))
    status, text = report(tmp_path, "a0000001")
    assert status == 0
    check_page(text)
    check_issue(folder.text("issue.md"))


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(["graph.py", "repro.py", "record.json", "analysis.json"]),
    st.binary(max_size=60),
    st.integers(0, 600),
)
def test_whatever_a_file_holds_a_report_comes_of_it(tmp_path, name, noise, at):
    shutil.rmtree(tmp_path / "a0000002", ignore_errors=True)
    folder = compile_error(tmp_path)
    whole = FILES.get(name, '{"nodes": [{"a": 1}]}').encode()
    folder.file(name).write_bytes(whole[:at] + noise + whole[at:])
    status, text = report(tmp_path, "a0000002")
    assert status == 0
    check_page(text)


def test_a_failure_of_the_programs_own_has_its_message_and_line_and_no_issue_text(tmp_path, capsys):
    folder = programs_own(tmp_path / "cases")
    written, to_file = write_report(folder)
    assert to_file is None and not (folder.path / "issue.md").exists()
    screen = "\n".join(line.text for line in ending([(folder, "a0000006")], width=200))
    assert "fix model.py:3" in screen and "issue.md" not in screen
    for text in (screen, written.read_text()):
        assert "index 7 is out of bounds for axis 0 with size 5" in text and "index #" not in text
