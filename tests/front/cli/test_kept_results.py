"""A result of a CUDA graph that was kept: which call made it, which overwrote it, and what helps.

A stand-in takes the place of the device: torch's own manager of CUDA graphs is asked as compiled code asks it, and all
results of the function lie in one memory.
"""

import pytest

from program_runs import run_watched

GRAPHS = """
import collections

import torch
import torch._inductor.cudagraph_trees as trees


class Step:
    def __init__(self):
        self._path_from_root, self.tensor_weakrefs = [self], [None]
        self.outputs_weakrefs, self.stack_traces = [lambda: memory if kept else None], ["  in forward"]

    wrapped_function = type("Function", (), {"id": 0})

    def path_live_weakrefs(self):
        return []


class Manager:
    disable_invalidate_aliases, current_node = True, None
    format_dealloc_msg = staticmethod(lambda *args, **kwargs: "")

    def __getattr__(self, name):  # whatever torch looks up by the number of a function
        return collections.defaultdict(lambda: trees.CompilationMode.INFERENCE)

    def _run(self, new_inputs, function_id):
        self.current_node = Step()
        return memory.copy_(torch.relu(new_inputs[0]))


def on_device(graph, inputs):
    def run(x):
        if manager.current_node is not None:
            trees.CUDAGraphTreeManager.dealloc_current_path_weakrefs(manager)
        return (trees.CUDAGraphTreeManager.run(manager, new_inputs=[x], function_id=0),)

    return run


def used(tensors):
    if sum(each is memory for each in tensors) > 1:
        raise RuntimeError(
            "Error: accessing tensor output of CUDAGraphs that has been overwritten by a subsequent run. "
            "Stack trace:   in forward. To prevent overwriting, clone the tensor outside of torch.compile() or call "
            "torch.compiler.cudagraph_mark_step_begin() before each model invocation."
        )
    return torch.stack(tensors)


memory, manager, kept = torch.zeros(4), Manager(), []


@torch.compile(backend=on_device)
def forward(x):
    return torch.relu(x)
"""
AT_TOP_LEVEL = """
for step in range(3):
    kept.append(forward(torch.ones(4) * step))
print(used(kept).sum().item())
"""
IN_A_FUNCTION = """
def main():
    for step in range(3):
        kept.append(
            forward(torch.ones(4) * step)
        )
    return used(kept)


print(main().sum().item())
"""


@pytest.mark.parametrize(
    "loop",
    [
        pytest.param(AT_TOP_LEVEL, marks=pytest.mark.slow, id="top level"),
        pytest.param(IN_A_FUNCTION, id="in a function"),
    ],
)
def test_who_keeps_a_result_of_a_cuda_graph_is_shown_the_line_and_a_clone_that_was_tried(tmp_path, loop):
    ran = run_watched(tmp_path, GRAPHS + loop, "--minify")
    assert len(ran.cases) == 1, ran.stderr
    found, lines = ran.case["triage"], (tmp_path / "program.py").read_text().splitlines()
    made = next(n for n, line in enumerate(lines, 1) if "forward(torch.ones" in line)
    used = next(n for n, line in enumerate(lines, 1) if "raise RuntimeError" in line)
    assert (found["component"], found["user_line"]) == ("program", f"program.py:{made}"), ran.stderr
    assert "the next call there overwrote" in found["detail"] and f"program.py:{used}" in found["detail"]
    assert "the program itself: it keeps a result of a CUDA graph without a copy" in ran.stderr
    best = ran.case["workarounds"][0]
    assert (best["verified"], best["program"]) == (True, True), ran.stderr
    assert "forward(torch.ones(4) * step).clone()" in best["how"]
    assert ran.case["no_repro"].startswith("it takes several calls")
    assert "internal error" not in ran.stderr
