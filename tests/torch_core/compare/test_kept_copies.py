"""Copies that are taken once, and inputs of which only what is written is copied."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.fx.experimental.proxy_tensor import make_fx

from torchsleuth.torch_core.compare.reference.cloning import (
    KeptCopies,
    alone_in_memory,
    for_one_run,
    memory_of,
    positions_written,
    same_bits,
    snapshot,
)

aten = torch.ops.aten


def test_weights_that_did_not_change_are_not_copied_again():
    weight, x = torch.nn.Parameter(torch.randn(4, 4)), torch.randn(4)
    taken = snapshot([weight])
    kept = KeptCopies(taken)
    (first, other), (second, _) = kept.of([weight, x]), kept.of([weight, x])
    assert memory_of(first) == memory_of(second) == memory_of(taken.copies[0])
    assert isinstance(first, torch.nn.Parameter) and first.requires_grad
    assert memory_of(other) not in (0, memory_of(x)) and same_bits(other, x)
    assert kept.weights_among([x, weight]) == [1]


def test_a_weight_that_changed_meanwhile_is_copied_anew():
    weight = torch.zeros(4)
    kept = KeptCopies(snapshot([weight]))
    weight.add_(1)
    (now,) = kept.of([weight])
    assert now.tolist() == [1.0] * 4 and memory_of(now) != memory_of(weight)


def test_what_a_graph_was_given_is_at_hand_for_the_graphs_that_are_made_of_it():
    x = torch.randn(4)
    kept = KeptCopies(snapshot([]))
    (copy,) = kept.of([x])
    with kept.remembered([x], [copy]):
        assert memory_of(kept.of([x])[0]) == memory_of(copy)
    assert memory_of(kept.of([x])[0]) != memory_of(copy)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(1, 4)), max_size=6))
def test_copies_share_memory_where_the_values_do_and_have_their_elements(views):
    bases = [torch.arange(8.0) + place for place in range(3)]
    values = [bases[base][start : start + length] for base, start, length in views]
    copies = KeptCopies(snapshot(bases)).of(values)
    assert all(same_bits(value, copy) for value, copy in zip(values, copies))
    assert not {*map(memory_of, values)} & {*map(memory_of, copies)}
    groups = {tuple(memory_of(v) == memory_of(w) for w in values) for v in values}
    assert groups == {tuple(memory_of(v) == memory_of(w) for w in copies) for v in copies}


def test_only_what_a_graph_writes_is_copied_for_its_run():
    def step(x, y, z):
        aten.copy_.default(x, aten.sin.default(y))
        return (z,)

    values = [torch.zeros(4), torch.ones(4), torch.ones(4)]
    graph = make_fx(step)(*(value.clone() for value in values))
    assert positions_written(graph, values) == {0}
    base = torch.zeros(8)
    sharing = [base[:4], torch.ones(4), base[4:]]
    assert positions_written(graph, sharing) == {0, 2}
    fresh = for_one_run(graph, values)
    graph(*fresh)
    assert values[0].tolist() == [0.0] * 4 and fresh[0][0] != 0.0
    assert fresh[1] is values[1] and fresh[2] is values[2]
    assert alone_in_memory(sharing) == [1]


def test_a_view_of_what_is_written_is_copied_with_it_also_where_it_is_conjugate():
    def step(x, y, z):
        aten.copy_.default(x, aten.mul.Tensor(y, 2))
        return (z,)

    base, other = torch.zeros(4, dtype=torch.complex64), torch.ones(4, dtype=torch.complex64)
    graph = make_fx(step)(base.clone(), other, base.clone())
    assert positions_written(graph, [base, other, base.conj()]) == {0, 2}
    assert alone_in_memory([base, other, base.conj()]) == [1]
    assert alone_in_memory([other.conj()]) == []
