import json

import pytest
import torch

from torchsleuth.torch_core.compare.verdict.calibrate import calibrate, healthy_graph
from torchsleuth.torch_core.compare.verdict.judge import judge
from torchsleuth.torch_core.compare.verdict.limits import (
    Calibration,
    Quantiles,
    calibration_from,
    calibration_path,
    limits_for,
    load_calibration,
    save_calibration,
)

MEASURED = Calibration("a machine", torch.__version__, {"cpu/float32": Quantiles(9, 0, 1.0, 2.0, 40.0, 3.0)})


def test_calibrating_measures_every_dtype_over_all_graphs():
    seen = []
    found = calibrate(
        seeds=[2000, 2001],
        backend="eager",
        on_graph=lambda case, verdict: seen.append((case.seed, verdict.kind)),
    )
    assert set(found.measured) == {"cpu/float32", "cpu/bfloat16", "cpu/float16"}
    assert all(
        q.graphs == 2 and q.false_alarms == 0 and q.z_max >= q.z_median for q in found.measured.values()
    )
    assert len(seen) == 6


@pytest.mark.slow
def test_inductor_raises_no_false_alarm_on_healthy_graphs():
    found = calibrate(seeds=[2000, 2001, 2002])
    assert all(q.false_alarms == 0 for q in found.measured.values())


def test_a_calibration_is_stored_in_the_cache_folder_and_read_back(monkeypatch, tmp_path):
    monkeypatch.delenv("TORCHSLEUTH_CALIBRATION", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert load_calibration() is None
    file = save_calibration(MEASURED)
    assert file == tmp_path / "torchsleuth" / "calibration.json" == calibration_path()
    assert load_calibration() == MEASURED


def test_a_stored_calibration_raises_the_limits_and_is_named_in_the_verdict(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHSLEUTH_CALIBRATION", str(tmp_path / "here.json"))
    save_calibration(MEASURED)
    case = healthy_graph(5, torch.float32)
    verdict = judge(case.graph, case.inputs, case.graph)
    assert verdict.calibrated == "a machine" and verdict.leaves[0].limit == 60.0


@pytest.mark.parametrize("content", ["", "{}", '{"schema": 99}', "[]"])
def test_an_unreadable_calibration_is_as_good_as_none(tmp_path, content):
    file = tmp_path / "calibration.json"
    file.write_text(content)
    assert load_calibration(file) is None


def test_another_version_of_torch_does_not_use_it(tmp_path):
    file = tmp_path / "calibration.json"
    save_calibration(Calibration("old", "1.0", MEASURED.measured), file)
    assert load_calibration(file) is None


def test_another_schema_is_told_with_the_remedy():
    with pytest.raises(ValueError, match="run calibrate again"):
        calibration_from({"schema": 2})


def test_a_calibration_goes_to_json_and_back():
    assert calibration_from(json.loads(json.dumps(MEASURED.to_json()))) == MEASURED


def test_limits_grow_with_the_number_of_elements():
    small, large = (limits_for(torch.bfloat16, n).z for n in (10, 10_000_000))
    assert 5 < small < large < 15
    assert limits_for(torch.float32, 10).z > small
