"""The same trials on a Ray cluster of two nodes on this machine."""

from __future__ import annotations

import builtins
import dataclasses
import os
import socket
import time
from pathlib import Path

import pytest

import faulty
from faulty import FAILS, trial
from torchsleuth.core.cases.record import AmbientState, CompileSettings
from torchsleuth.core.processes.limits import Limits
from torchsleuth.core.protocol.trials import Trial
from torchsleuth.script_runtime.signature import Signature
from torchsleuth.search.workers.cluster import (
    ClusterUnfit,
    RayWorkers,
    join_cluster,
    open_workers,
    storages_of,
)


def test_without_ray_the_sentence_says_what_to_install(monkeypatch):
    real = builtins.__import__

    def without_ray(name, *rest, **more):
        if name == "ray":
            raise ImportError("No module named 'ray'")
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without_ray)
    with pytest.raises(ClusterUnfit, match="pip install"):
        open_workers("ray")


@pytest.mark.parametrize("wanted", ["0", "-1", "many", "ray:/x", ""])
def test_a_number_of_workers_that_is_none_is_refused(wanted):
    with pytest.raises(ClusterUnfit, match="ray://host"):
        open_workers(wanted)


def test_the_values_a_trial_needs_are_those_its_inputs_and_constants_name():
    facts = {
        "inputs": {"inputs": [{"storage": "a"}, {"storage": None}, {"storage": "a"}, {"kind": "int"}]},
        "constants": {"description": {"inputs": [{"storage": "b"}]}},
    }
    kept = dataclasses.replace(trial("pass", **facts), store="somewhere")
    assert list(storages_of(kept)) == ["a", "b"]
    assert list(storages_of(trial("pass", **facts))) == []


def test_an_address_where_nobody_listens_is_said_before_anyone_tries_to_join(monkeypatch):
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray, "init", lambda *_, **__: pytest.fail("that takes a minute to say the same"))
    with pytest.raises(ClusterUnfit, match="Nothing listens at ray"):
        open_workers("ray://127.0.0.1:9")


def test_ray_alone_starts_a_cluster_here_and_joins_none_that_is_found(monkeypatch):
    class Ray:
        def init(self, **options):
            self.options = options

    monkeypatch.setenv("RAY_ADDRESS", "ray://a-stranger:10001")
    ray = Ray()
    join_cluster(ray, None)
    assert ray.options["address"] == "local" and ray.options["include_dashboard"] is False


def test_joining_a_cluster_is_warned_of(capsys, monkeypatch):
    from torchsleuth.front.cli import options

    monkeypatch.setattr(options.importlib.util, "find_spec", lambda name: object())
    assert options._workers(None, None, "ray://head:10001") == "ray://head:10001"
    assert "name only a cluster that you trust" in capsys.readouterr().err
    options._workers(None, None, "2")
    assert capsys.readouterr().err == ""


class BusyRay:
    """A Ray whose head answers only at the `at`-th time."""

    def __init__(self, at):
        self.at, self.tries, self.left = at, 0, 0

    def init(self, **options):
        self.tries += 1
        if self.tries < self.at:
            raise ConnectionError("ray client connection timeout")

    def shutdown(self):
        self.left += 1


def test_a_busy_head_is_asked_again_and_one_that_never_answers_is_given_up():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"ray://127.0.0.1:{server.getsockname()[1]}"
        slow, deaf = BusyRay(at=2), BusyRay(at=99)
        join_cluster(slow, address)
        assert (slow.tries, slow.left) == (2, 1)
        with pytest.raises(ClusterUnfit, match="connection timeout"):
            join_cluster(deaf, address)
        assert deaf.tries == 3


@pytest.fixture(scope="module")
def cluster_of_two():
    ray = pytest.importorskip("ray")
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(faulty.__file__).parent), *filter(None, [before])])
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    for _ in range(2):
        cluster.add_node(num_cpus=1, object_store_memory=100 << 20)
    ray.init(address=cluster.address, log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()
    os.environ["PYTHONPATH"] = before or ""


@pytest.fixture
def workers(cluster_of_two, tmp_path):
    options = {"call": "faulty:run", "warm_up": None, "still_good": "faulty:good"}
    with RayWorkers(folder=tmp_path, limits=Limits(setup=60, compile=30, run=30), **options) as made:
        yield made


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_trials_run_on_both_nodes_and_no_crash_takes_a_ray_worker_down(workers):
    assert workers.nodes == 2 and workers.count == 2
    names = ["segv", "abort", "exit 7", "fail", "pass"] * 3
    outcomes = [ticket.result() for ticket in [workers.submit(trial(n), fresh=True) for n in names]]
    signals = [o.signature and (o.signature.signal or o.signature.kind) for o in outcomes]
    assert signals == ["SIGSEGV", "SIGABRT", "exit 7", "runtime_error", None] * 3
    assert workers.nodes == 2


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_hang_on_a_node_is_ended_there_and_a_cancelled_trial_frees_its_place(workers):
    hung = workers.run(trial("native_hang"), limits=Limits(run=0.5))
    assert hung.signature == Signature("hang", "run")
    tickets = [workers.submit(trial(f"sleep {n}")) for n in (301, 302)]
    time.sleep(1)
    for ticket in tickets:
        assert ticket.cancel()
    assert workers.submit(trial("fail")).result(timeout=60).fails_like(FAILS)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_kept_values_reach_a_node_without_a_shared_folder(workers, tmp_path):
    (tmp_path / "store" / "storages").mkdir(parents=True)
    (tmp_path / "store" / "storages" / "abc.safetensors").write_bytes(b"values")
    facts = {"inputs": {"inputs": [{"storage": "abc"}]}}
    asked = dataclasses.replace(trial("read_store", **facts), store=str(tmp_path / "store"))
    outcome = workers.run(asked)
    assert outcome.error is None
    place, text = outcome.text.split("|")
    assert text == "values" and not place.startswith(str(tmp_path))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_a_trial_writes_on_a_node_comes_back_with_its_answer(workers, tmp_path):
    asked = dataclasses.replace(trial("write_store"), store=str(tmp_path / "store"))
    place = workers.run(asked).text
    assert not place.startswith(str(tmp_path))
    assert (tmp_path / "store" / "storages" / "new.safetensors").read_text() == "new values"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_answers_from_the_cluster_are_remembered_here(workers):
    assert not workers.run(trial("fail")).cached
    assert workers.run(trial("fail")).cached


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_real_compile_is_tried_on_the_cluster_and_its_values_are_the_right_ones(cluster_of_two, tmp_path):
    import torch

    from torchsleuth.torch_core.tensors import ContentStoreWriter, describe_inputs

    values = torch.arange(8.0)
    described = describe_inputs([values], store=ContentStoreWriter(str(tmp_path / "store"))).to_json()
    settings = CompileSettings(backend="backend", state=AmbientState(grad=False))
    graph = "class Repro(torch.nn.Module):\n    def forward(self, a):\n        b = torch.relu(a)\n        return (b,)\n"
    backend = "def backend(gm, inputs):\n    raise ValueError(f'the values are {inputs[0].tolist()}')\n"
    expected = Signature("compile_error", "compile", ("ValueError",), "the values are [#]")
    asked = Trial(
        graph,
        expected,
        settings,
        placeholders=("a",),
        inputs=described,
        embedded=backend,
        store=str(tmp_path / "store"),
    )
    with RayWorkers() as workers:
        outcome = workers.run(asked)
    assert outcome.fails_like(expected)
    assert str(values.tolist()) in outcome.text
