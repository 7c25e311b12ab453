"""CUDA graphs as `explain` and `profile` tell them: what was recorded again, what runs without, and why."""

from torchsleuth.front.observe.events import Event
from torchsleuth.front.observe.profile import cuda_graph_lines, cuda_graphs_of

FRAME = Event("frame", 1.0, 7, {"id": "0/0", "function": "step", "file": "/home/me/model.py", "line": 12})
MUTATED = """skipping cudagraphs due to mutated inputs (6 instances). Found from :
   File "/site-packages/transformers/llama.py", line 467, in forward
    outputs = self.model(
   File "/home/me/model.py", line 31, in forward
    self.seen.add_(1)
"""


def recorded(why="", number=0, graph="0/0"):
    return Event("cuda_graph", 2.0, 7, {"number": number, "graph": graph, "why": why})


def test_a_graph_without_a_cuda_graph_is_told_with_torchs_reason_and_the_line():
    left_out = Event("cuda_graph_left_out", 2.0, 7, {"graph": "0/0", "why": MUTATED})
    assert list(cuda_graph_lines(cuda_graphs_of([FRAME, left_out]))) == [
        "CUDA graphs: 0 recordings; 1 graph run without",
        "   step (model.py:12) runs without a CUDA graph: mutated inputs (6 instances) (model.py:31)",
    ]


def test_a_graph_that_is_recorded_once_more_is_told_with_what_changed():
    why = "static input data pointer changed.\ninput name: w. data pointer changed from 0x7f0 to 0x8a1.\n"
    found = cuda_graphs_of([FRAME, recorded(), recorded(why), recorded(why), recorded(number=1)])
    first, again = cuda_graph_lines(found)
    assert first == "CUDA graphs: 4 recordings, 2 of them once more"
    assert "step (model.py:12) recorded 3 times: static input data pointer changed. input name: w" in again
    assert "0x" not in again


def test_where_there_are_none_nothing_is_said():
    assert list(cuda_graph_lines(cuda_graphs_of([FRAME]))) == []


def test_torch_tells_recordings_and_what_is_left_out(monkeypatch):
    import torch._inductor.cudagraph_trees as trees
    import torch._inductor.cudagraph_utils as utils

    from torchsleuth.torch_internals.compile_events import (
        hook_cuda_graphs_left_out,
        hook_recorded_cuda_graphs,
    )

    moved = trees.CheckInvariantStatus.StaticInputIdxMismatch, lambda: "static input data pointer changed"
    monkeypatch.setattr(trees.CUDAGraphNode, "check_invariants", lambda self, inputs: moved)
    monkeypatch.setattr(
        trees.CUDAGraphTreeManager, "record_function", lambda self, inputs, number: "recorded"
    )
    manager = object.__new__(trees.CUDAGraphTreeManager)
    manager.id_to_compile_id = {trees.FunctionID(3): "0/1"}
    told = []
    undo = [
        hook_cuda_graphs_left_out(told.append),
        hook_recorded_cuda_graphs(lambda *seen: told.append(seen)),
    ]
    try:
        utils.log_cudagraph_skip_and_bump_counter("skipping cudagraphs due to a test")
        assert manager.record_function([], trees.FunctionID(3)) == "recorded"
        assert object.__new__(trees.CUDAGraphNode).check_invariants([]) is moved
        manager.record_function([], trees.FunctionID(3))
    finally:
        for each in undo:
            each()
    again = (3, "0/1", "static input data pointer changed")
    assert told == ["skipping cudagraphs due to a test", (3, "0/1", ""), again]
