"""report.html: what stands in it for each kind of case, what it says of things that are missing, and its size."""

import json
import re

import pytest
from made_cases import FILES, KINDS, accuracy, capture_error, compile_error, crash, hang, programs_own
from page_parts import Parts

from torchsleuth.core.cases.folder import open_case, put_files
from torchsleuth.front.report.evidence import gather
from torchsleuth.front.report.html import page

SECTIONS = [
    "summary",
    "repro",
    "drawn",
    "tried",
    "workarounds",
    "numbers",
    "graph",
    "run",
    "error",
    "environment",
]


def parts(folder):
    return Parts(page(gather(folder)))


@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_every_kind_has_every_section_and_each_says_something(tmp_path, make):
    found = parts(make(tmp_path))
    assert list(found.sections) == SECTIONS and not found.unclosed
    assert all(len(text.split()) > 3 for text in found.sections.values())


@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_a_page_needs_nothing_else(tmp_path, make):
    text = page(gather(make(tmp_path)))
    outside = [attrs.get(key) for _, attrs in Parts(text).tags for key in ("src", "href", "action")]
    assert all(each.startswith(("#", "data:")) for each in outside if each)
    assert "http://" not in text and "https://" not in text and "@import" not in text


def test_all_that_is_known_is_there(tmp_path):
    found = parts(accuracy(tmp_path)).sections
    assert "F.interpolate" in found["summary"] and "functionalization" in found["summary"]
    assert "interpolate left out" in found["summary"] and "line 5" in found["summary"]
    assert "3 of 3 fresh processes" in found["summary"] and "size 4 instead of 2" in found["repro"]
    assert "F.interpolate" in found["drawn"] and "torch.randn(1, 1, 2, 1)" in found["drawn"]
    assert re.search(r"AOTAutograd with eager kernels\s*fails", found["tried"])
    assert "it fails as before" in found["workarounds"] and "1.50 x" in found["workarounds"]
    assert "0.671742" in found["numbers"] and "1.26239e+06" in found["numbers"]
    assert "self.stem.0.weight" in found["graph"] and "stem" in found["graph"]
    assert "TORCH_LOGS" in found["environment"]


def test_what_is_missing_is_said(tmp_path):
    assert "not made smaller" in parts(compile_error(tmp_path)).sections["drawn"]
    assert "Nothing was tried" in parts(compile_error(tmp_path)).sections["tried"]
    assert "the time was up" in parts(crash(tmp_path)).sections["tried"]
    assert "before there was a graph" in parts(capture_error(tmp_path)).sections["graph"]
    assert "it has a for statement" in parts(capture_error(tmp_path)).sections["drawn"]
    assert "tensor subclass" in parts(hang(tmp_path)).sections["repro"]
    assert "not one of numbers" in parts(crash(tmp_path)).sections["numbers"]
    assert "without the compiler, too" in parts(programs_own(tmp_path)).sections["summary"]
    assert "torchsleuth run --explain" in parts(crash(tmp_path)).sections["run"]


def test_the_culprit_is_marked_and_open_and_what_is_far_from_it_is_folded(tmp_path):
    body = "".join(f"        far_{n} = torch.relu(l_x_)  # f32[2]\n" for n in range(20))
    nodes = {f"far_{n}": {"file": "m.py", "line": 1, "module": "trunk.0"} for n in range(20)}
    near = {
        "near": {"file": "m.py", "line": 2, "module": "head.1"},
        "y": {"file": "m.py", "line": 3, "module": "head.2"},
    }
    graph = "class Repro(torch.nn.Module):\n    def forward(self, l_x_):\n" + body
    graph += "        near = torch.sin(l_x_)\n        y = torch.cos(near)\n        return (y,)\n"
    folder = accuracy(tmp_path)
    put_files(
        folder.path,
        {"graph.py": graph, "record.json": json.dumps({"level": "aot", "nodes": {**nodes, **near}})},
    )
    text = page(gather(folder))
    tree = text[text.index('id="tree"') :]
    assert '<li class="culprit">y = torch.cos(near)' in tree and '<li class="near">near' in tree
    opened = re.findall(r"<details( open)?><summary>([\w.]+) <i>(\d+)</i>", tree)
    assert opened[:2] == [
        (" open", "trunk", "20"),
        (" open", "trunk.0", "20"),
    ]  # far_18, far_19 run right before
    assert opened[2:] == [(" open", "head", "2"), (" open", "head.1", "1"), (" open", "head.2", "1")]


def test_a_graph_of_3000_calls_stays_below_a_megabyte(tmp_path):
    name = "l_self_modules_encoder_modules_layers_modules_{}_parameters_weight_"
    lines = [
        f"        call_{n} = torch.nn.functional.linear(call_{n - 1}, {name.format(n)}, {name.format(n + 1)})  # f32[8, 128, 768]"
        for n in range(1, 3001)
    ]
    nodes = {
        f"call_{n}": {
            "file": f"m{n}.py",
            "line": n,
            "code": "x = self.layer(x) + y " * 4,
            "module": f"encoder.layers.{n // 10}",
        }
        for n in range(1, 3001)
    }
    graph = (
        "class Repro(torch.nn.Module):\n    def forward(self, call_0):\n"
        + "\n".join(lines)
        + "\n        return (call_3000,)\n"
    )
    folder = accuracy(tmp_path)
    svg = "<svg xmlns='http://www.w3.org/2000/svg'>" + "<path d='M0 0'/>" * 8000 + "</svg>"
    files = {
        "graph.py": graph,
        "record.json": json.dumps({"level": "aot", "nodes": nodes}),
        "traceback.txt": "x" * 200_000,
    }
    put_files(folder.path, {**files, "log.txt": "y" * 100_000, "analysis.svg": svg})
    text = page(gather(folder))
    assert len(text.encode()) < 1_000_000
    assert Parts(text).count("li") > 3000


def test_what_analysis_and_observed_runs_left_is_shown(tmp_path):
    words = "aten.erf at model.py:9 is the first that is off"
    folder = accuracy(tmp_path)
    doc = json.loads(folder.text("case.json"))
    put_files(
        folder.path,
        {"case.json": json.dumps({**doc, "run": "20260102-030405-abcdef", "analysis": {"words": words}})},
    )
    folder = open_case(tmp_path, "a0000001")
    put_files(
        folder.path,
        {"analysis.json": json.dumps({"culprit": "call_7", "nodes": [{"name": "call_7", "local": 3.5}]})},
    )
    put_files(
        folder.path,
        {"analysis.svg": "<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>"},
    )
    run = tmp_path / "runs" / "20260102-030405-abcdef"
    put_files(
        run,
        {"breaks.json": json.dumps({"breaks": [{"place": {"file": "/a/model.py", "line": 9}, "runs": 3}]})},
    )
    found = parts(folder)
    assert words in found.sections["numbers"]
    assert "call_7" in found.sections["numbers"] and "3.5" in found.sections["numbers"]
    assert "model.py:9" in found.sections["run"]
    pictures = [attrs["src"] for tag, attrs in found.tags if tag == "img"]
    assert len(pictures) == 1 and pictures[0].startswith("data:image/svg+xml;base64,")
    assert found.count("script") == 1


def test_a_run_that_leads_elsewhere_is_not_followed(tmp_path):
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "breaks.json").write_text('["treasure"]')
    (tmp_path / "cases" / "runs").mkdir(parents=True)
    (tmp_path / "cases" / "runs" / "abc").symlink_to(tmp_path / "private")
    for run in ("abc", "../private", ["abc"]):
        folder = accuracy(tmp_path / "cases", extra={"run": run})
        assert "treasure" not in page(gather(folder))


def test_secrets_and_the_home_folder_are_not_in_it(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/home/ada")
    folder = accuracy(tmp_path)
    (folder.path / "traceback.txt").write_text("open /home/ada/x --token=k3y4567890")
    (folder.path / "log.txt").write_text("postgres://ada:pass@db")
    text = page(gather(folder))
    assert "/home/ada" not in text and "k3y4567890" not in text and "ada:pass" not in text
    assert FILES["repro.py"].splitlines()[-1].replace('"', "&#34;") in text
