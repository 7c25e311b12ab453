"""The private names of torch that our source rests on: found in every way they are written, and looked for in torch."""

import ast
from textwrap import dedent

import pytest

from program_runs import environment, sleuth
from torchsleuth.torch_internals.check import ROOM, is_there, missing_of, names_in, names_used


def names(source):
    return {name for name, _ in names_in(ast.parse(dedent(source)))}


def test_this_torch_has_every_name_that_we_rest_on():
    assert missing_of(names_used()) == ()


def test_each_hook_rests_on_the_names_that_it_patches():
    found = names_used()
    for name in (
        "torch._dynamo.repro.after_dynamo.WrapBackendDebug.__call__",
        "torch._inductor.compile_fx._compile_fx_inner",
        "torch._dynamo.convert_frame.CatchErrorsWrapper.__call__",
        "torch.autograd._engine_run_backward",
    ):
        assert "hooks.py" in [use.file for use in found[name]], name
    assert {use.file.partition("/")[0] for uses in found.values() for use in uses} <= {
        path.name for path in ROOM.iterdir()
    }


def test_a_made_up_name_is_missing_and_says_what_rests_on_it(tmp_path):
    (tmp_path / "seams.py").write_text(
        '"""Where all compiles pass.\n\nMore."""\nfrom torch._dynamo import made_up, utils\nutils.counters\n'
    )
    (missing,) = missing_of(names_used(tmp_path))
    (use,) = missing.used_by
    assert missing.name == "torch._dynamo.made_up"
    assert (use.file, use.line, use.purpose) == ("seams.py", 4, "Where all compiles pass.")


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import torch\ntorch._x.y()", {"torch._x.y"}),
        ("from torch._x import y as z\nz.w", {"torch._x.y", "torch._x.y.w"}),
        ("import torch._x.y as z\nz.w", {"torch._x.y", "torch._x.y.w"}),
        ("m = importlib.import_module('torch._x')\nm.f = None", {"torch._x", "torch._x.f"}),
        ("m: Any = importlib.import_module('torch._x')\ngetattr(m, 'f', None)", {"torch._x", "torch._x.f"}),
        ("import torch\nsetattr(torch._x, 'f', None)", {"torch._x", "torch._x.f"}),
        (
            "import torch._x as m\nfor n in ('f', 'g'):\n    hasattr(m, n)",
            {"torch._x", "torch._x.f", "torch._x.g"},
        ),
        ("a, b = importlib.import_module('torch._x'), importlib.import_module('torch._y')\nb.f", {"torch._x", "torch._y", "torch._y.f"}),
        ("T = [('torch._x', 'Owner', 'name', 1)]", {"torch._x", "torch._x.Owner.name"}),
        ("T = [('torch._x', '', 'name')]", {"torch._x", "torch._x.name"}),
        ("T = {'torch._x': {'Owner': ('name',)}}", {"torch._x", "torch._x.Owner.name"}),
        ("T = {'torch._x.config': {'key': False}}", {"torch._x.config", "torch._x.config.key"}),
        ("for m, n in (('torch._x', 'f'), ('torch._y', 'g')):\n    getattr(importlib.import_module(m), n)",
         {"torch._x", "torch._x.f", "torch._y", "torch._y.g"}),
        ("import torch\ndef f(torch):\n    torch._x", set()),
        ("import torch\ntorch.fx.Graph, torch.__version__", set()),
        ("'torch is 2.13', 'torch.nn'", set()),
    ],
)  # fmt: skip
def test_a_name_is_found_however_it_is_written(source, found):
    assert names(source) == found


@pytest.mark.parametrize(
    ("name", "there"),
    [
        ("torch._inductor.graph.GraphLowering.run_node", True),
        ("torch._inductor.graph.GraphLowering.made_up", False),
        ("torch._made_up.graph", False),
        ("torch._dynamo.utils.counters.whatever_it_holds", True),
    ],
)
def test_modules_and_classes_are_looked_into_and_other_objects_are_not(name, there):
    assert is_there(name) is there


# A stand-in for a release that has moved one of the places that every compile passes, and what is lost with it.
MOVED = {
    "torch._dynamo.repro.after_dynamo:WrapBackendDebug": "graphs as Dynamo captured them are not recorded",
    "torch._dynamo.convert_frame:CatchErrorsWrapper": "failures of graph capture are not seen",
    "torch._inductor.compile_fx:_compile_fx_inner": "graphs after AOTAutograd are not recorded",
    "torch._dynamo.convert_frame:_compile": "what Dynamo gives up is not told",
}
WATCHED = """
import sys
import torch
torch.__version__ = "2.16.0"
from torchsleuth.torch_internals import hooks, places, frames
moved = sys.argv[1].split(":")

def replaced(module, owner, name, make, *, needed=None, put=places.replaced):
    name = "moved_in_2_16" if [module, owner or name] == moved else name
    return put(module, owner, name, make, needed=needed)

hooks.replaced = frames.replaced = replaced

def backend(graph, inputs):
    return graph.forward

print(torch.compile(torch.sin, backend=backend)(torch.zeros(2)).tolist())
import torch._inductor.compile_fx
"""


@pytest.mark.parametrize("moved", MOVED)
def test_a_release_that_moved_a_place_is_told_in_a_sentence_and_the_rest_is_watched(moved, tmp_path):
    script = tmp_path / "program.py"
    script.write_text(WATCHED)
    done = sleuth("run", "--level", "3", script, moved, cwd=tmp_path, env=environment(tmp_path))
    assert done.status == 0 and done.stdout == "[0.0, 0.0]\n", done.stderr
    (sentence,) = [line for line in done.ours() if "2.16.0" in line]
    assert MOVED[moved] in sentence and "the rest is watched" in sentence
    assert "Traceback" not in done.stderr
