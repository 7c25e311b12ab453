"""`run` of a program whose compile takes twice as long with each line: from the clock of the watchdog to a workaround."""

import pytest

from program_runs import run_watched

DOUBLING = """
    import torch

    class Mixer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = torch.nn.Linear(16, 16), torch.nn.Linear(16, 4)

        def forward(self, x):
            x = torch.nn.functional.layer_norm(self.first(x), (16,))
            y = torch.sigmoid(x)
            for _ in range(22):
                y = y * (1.0 - y)
            return self.last(x + y)

    with torch.no_grad():
        torch.compile(Mixer())(torch.randn(4, 16))
"""


@pytest.mark.slow
def test_a_compile_of_exponential_time_is_made_small_blamed_and_worked_around(tmp_path):
    ran = run_watched(tmp_path, DOUBLING, "--timeout", "20", "--budget", "400", "--minify")
    case = ran.case
    assert (case["kind"], case["phase"], case["triage"]["component"]) == ("hang", "compile", "inductor")
    assert case["verified"] == {**case["verified"], "times": 3, "reproduced": 3, "eager_passes": True}
    assert case["minified"]["calls"] < case["graph"]["calls"] - 5 and case["minified"]["lines"] <= 60
    assert "not done after" in ran.file("repro.py").splitlines()[0]
    assert any(each["verified"] and "backend" not in each["name"] for each in case["workarounds"])
