"""`%%torchsleuth` in a kernel as Jupyter starts it: what a cell prints arrives, and a cell that dies leaves the kernel alive."""

import queue
import sys
import time

import pytest

CELL = "%%torchsleuth\nimport os, sys\nprint('from the cell', 6 * 7)\nsys.stdout.flush()\nos.abort()"


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    pytest.importorskip("ipykernel", reason="ipykernel is not installed: pip install ipykernel")
    manager = pytest.importorskip("jupyter_client.manager")
    started = manager.KernelManager()
    started.kernel_spec.argv[0] = sys.executable  # where several Pythons have kernels, this one's
    started.start_kernel(cwd=str(tmp_path_factory.mktemp("notebook")))
    client = started.client()
    client.start_channels()
    client.wait_for_ready(timeout=120)
    yield client
    client.stop_channels()
    started.shutdown_kernel(now=True)


def run_cell(client, cell):
    """What a cell says, and its status."""
    asked = client.execute(cell)
    said, ends = [], time.monotonic() + 150
    while time.monotonic() < ends:
        try:
            message = client.get_iopub_msg(timeout=5)
        except queue.Empty:
            continue
        if message["parent_header"].get("msg_id") != asked:
            continue
        content = message["content"]
        if message["msg_type"] == "stream":
            said.append(content["text"])
        elif message["msg_type"] == "execute_result":
            said.append(content["data"].get("text/html") or content["data"]["text/plain"])
        elif message["msg_type"] == "status" and content["execution_state"] == "idle":
            return "".join(said), client.get_shell_msg(timeout=30)["content"]["status"]
    raise AssertionError(f"the cell did not end: {said}")


def test_a_cell_that_dies_is_told_and_the_kernel_lives(kernel):
    assert run_cell(kernel, "%load_ext torchsleuth")[1] == "ok"
    said, status = run_cell(kernel, CELL)
    assert "from the cell 42" in said and status == "ok"
    said, status = run_cell(kernel, "%torchsleuth list")
    assert "no cases in" in said and status == "ok"
    assert run_cell(kernel, "print('alive')") == ("alive\n", "ok")


def test_what_the_library_returns_is_shown(kernel):
    said, _ = run_cell(
        kernel, "import torchsleuth\nfrom torchsleuth.front.observe.breaks import breaks_of\nbreaks_of([])"
    )
    assert "0 graph breaks" in said


def test_explain_called_at_once_says_how_it_is_called(kernel):
    said, status = run_cell(
        kernel,
        "import torch\ntry:\n    torchsleuth.explain(lambda x: x, torch.ones(2))\nexcept TypeError as why:\n    print(why)",
    )
    assert status == "ok" and "explain(f)(x)" in said, said
