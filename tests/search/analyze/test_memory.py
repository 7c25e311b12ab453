"""What a comparison takes beside the model itself, in processes of their own: peaks are those of a whole process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from program_runs import environment

PROGRAM = """
import json, resource, sys
import torch, torchsleuth
from planted import aten, wrong_lowering

device, kind, blocks = sys.argv[1], sys.argv[2], int(sys.argv[3])
width, rows = (2048, 16) if kind == "weights" else (512, 32768)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(blocks))

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x)) + x.sin()
        return x.relu()


def peak():
    if device == "cuda":
        return torch.cuda.max_memory_reserved()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


torch.manual_seed(0)
model, x = Model().to(device), torch.randn(rows, width, device=device)
with torch.no_grad():
    model(x)
    own = peak()
    with wrong_lowering(aten.relu.default):
        found = torchsleuth.compare_models(model, torch.compile(model), [x])
print(json.dumps({"node": found.node, "own": own, "taken": peak()}))
"""


def peaks(tmp_path, *arguments):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    env = environment(tmp_path)
    env["PYTHONPATH"] = f"{Path(__file__).parent}:{env.get('PYTHONPATH', '')}"
    ran = subprocess.run(
        [sys.executable, str(program), *map(str, arguments)], env=env, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


@pytest.mark.slow
def test_weights_are_copied_once(tmp_path):
    found = peaks(tmp_path, "cpu", "weights", 8)  # 128 MiB
    assert found["node"] == "relu"
    assert found["taken"] <= 2 * found["own"], found


@pytest.mark.gpu
@pytest.mark.parametrize("kind, blocks", [("weights", 128), ("values", 12)])
def test_neither_weights_nor_values_pile_up_on_a_device(tmp_path, kind, blocks):
    found = peaks(tmp_path, "cuda", kind, blocks)  # weights of 2 GiB, or values of 64 MiB
    assert found["node"] == "relu"
    assert found["taken"] <= 2 * found["own"] + (1 << 30), found
