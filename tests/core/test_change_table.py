"""What holds for every row of the table of changes: it goes to another process and back, and can be pasted."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from torchsleuth.core import change_table as table
from torchsleuth.core.changes import NOTHING, Change
from torchsleuth.torch_internals.configuration import default_setting
from torchsleuth.torch_internals.hooks import torch_release

NODES = frozenset({"sin"})
NEW_IN_2_15 = {
    "numerics",
    "triton.scalar_accumulators",
    "aten_distributed_optimizations.enable_simple_overlap",
}
OPS = ["aten.sin.default", "aten.erf.default"]
# Rows that unfold from what a run has shown.
UNFOLDED = (
    table.kept_eager(OPS),
    table.not_decomposed(OPS),
    table.not_decomposed_in_python("aten.dropout"),
    table.not_decomposed_in_python("aten.dropout", fallback=True),
    table.without_patterns(["pointless_view"], "pointless_view"),
    table.without_passes([("post_grad_passes", "b2b_gemm"), ("patterns", "pointless_view")]),
    table.call_eager("mul_", "m.py:3", "torch.compiler.disable(x.mul_)(2)", NODES),
    table.modules_eager({"layers.3": "model.layers[3]"}, NODES),
    table.class_eager("nn.ReLU", NODES),
    table.functions_eager({("/m.py", "f", 3): "m.py:2"}, NODES),
    table.break_before("m.py:3", "y = f(x)", "sin"),
    table.default_settings(["freezing"], {"freezing": "False"}),
    table.other_backend("aot_eager"),
)
NAMED = [each for each in vars(table).values() if isinstance(each, Change) and each != NOTHING]
ROWS = [*NAMED, *table.CAUTIOUS, *UNFOLDED]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.what or row.name)
def test_a_row_arrives_as_it_was_sent_without_its_words(row):
    sent = json.loads(json.dumps(row.to_json()))
    assert json.loads(json.dumps(Change.from_json(sent).to_json())) == sent
    assert not {"what", "name", "how", "disables", "reach", "component", "part"} & sent.keys()


@pytest.mark.parametrize("row", [row for row in ROWS if row.how], ids=lambda row: row.name)
def test_what_a_person_pastes_is_python_and_what_it_gives_up_is_said(row):
    above_a_function = "\ndef f(): ..." if row.how.startswith("@") else ""
    within = "\n    pass" if row.how.startswith("with ") else ""
    compile(row.how + above_a_function + within, "pasted", "exec")
    assert row.name and row.disables
    assert not row.snippet or row.snippet == row.how


def test_a_setting_is_pasted_as_it_is_tried_and_torch_knows_it():
    for row in [*table.CAUTIOUS, *table.SETTINGS]:
        lines = [f"{m}.{k} = {v}" for m, values in row.config.items() for k, v in values.items()]
        assert row.how.splitlines() == lines
        known = [default_setting(m, k) is not None for m, values in row.config.items() for k in values]
        assert all(known) or (torch_release() < (2, 15) and {*row.keys} <= NEW_IN_2_15)


PROGRAM = """import torch
{paste}

@torch.compile
def f(x):
    return torch.nn.functional.silu(x).sum(0) + x.cummin(0)[0] + x.logsumexp(0)

f(torch.ones(4, 4))
from torch._dynamo.utils import counters
answers = counters["aot_autograd"]["autograd_cache_hit"] + counters["inductor"]["fxgraph_cache_hit"]
print("from the cache" if answers else "compiled")
"""


@pytest.fixture(scope="module")
def warm_cache(tmp_path_factory):
    """What a run of the program without any paste leaves."""
    cache = tmp_path_factory.mktemp("bare") / "cache"
    assert run_with("", cache) == "compiled"
    assert run_with("", cache) == "from the cache"
    return cache


def run_with(paste, cache):
    """Whether the program with these lines compiles, or is answered by the cache."""
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(cache)}
    program = PROGRAM.replace("{paste}", paste)
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


INTO_TABLES = (
    table.kept_eager(["aten.silu.default"]),
    table.not_decomposed(["aten.silu.default"]),
    table.not_decomposed_in_python("aten.logsumexp"),
    table.not_decomposed_in_python("aten.logsumexp", fallback=True),
    table.without_patterns(["pointless_view"], "pointless_view"),
)


@pytest.mark.slow
@pytest.mark.parametrize("row", [*INTO_TABLES, table.NO_FUSION], ids=lambda row: row.name)
def test_what_is_pasted_takes_effect_although_the_program_was_compiled_before(row, warm_cache, tmp_path):
    cache = shutil.copytree(warm_cache, tmp_path / "cache")
    assert run_with(row.how, cache) == "compiled"
    # What it leaves is its own: the program without the lines is answered as before, and so is the one with them.
    assert run_with(row.how, cache) == "from the cache"
