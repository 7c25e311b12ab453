"""`sweep`, which makes failures small, on a real Ray cluster here, joined by its address; skipped where there is no Ray."""

import contextlib
import json
import os
import socket

import pytest

from program_runs import environment, sleuth, write_program

WRONG = """
    import torch

    @torch.compile(backend="sleuth_relu_accuracy_error")
    def f(x):
        return {what}

    f(torch.linspace(-1, 1, 6))
"""
PROGRAMS = {
    "good.py": WRONG.format(what="x.cos()"),
    "one.py": WRONG.format(what="torch.relu(x.sin()).sum()"),
    "other.py": WRONG.format(what="torch.relu(x.reshape(2, 3)) * 2, x.cos()"),
    "uncaptured.py": WRONG.format(what="x if x.sum() > 0 else -x").replace(
        '_error"', '_error", fullgraph=True'
    ),
}


@pytest.fixture(scope="module")
def address():
    pytest.importorskip("ray")
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    from ray.cluster_utils import Cluster

    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    head = {"num_cpus": 2, "object_store_memory": 100 << 20, "ray_client_server_port": port}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    yield f"ray://127.0.0.1:{port}"
    cluster.shutdown()


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_programs_run_on_a_cluster_and_what_they_show_is_made_small_there(address, tmp_path):
    for name, text in PROGRAMS.items():
        write_program(tmp_path / "models", text, name)
    command = ["sweep", "models", "--backends", "as-is", "--check-accuracy", "--workers", address, "--json"]
    ran = sleuth(*command, "--timeout", "200", cwd=tmp_path, env=environment(tmp_path), timeout=1100)
    assert ran.status == 1, ran.stderr
    found = json.loads(ran.stdout)
    assert (found["counts"]["passes"], found["counts"]["fails"]) == (1, 3), ran.stderr
    kinds = {bucket["kind"]: bucket for bucket in found["buckets"]}
    wrong, uncaptured = kinds["accuracy"], kinds["capture_error"]
    # Two programs, two signatures without a place: that they are one bug shows once they are small.
    assert [program for program, _ in wrong["cells"]] == ["one.py", "other.py"], ran.stderr
    assert [each["case"]["minified"]["calls"] for each in (wrong, *wrong["same"])] == [1, 1], ran.stderr
    assert uncaptured["case"]["verified"]["same_signature"], ran.stderr
    assert "same bug" in ran.stderr
