import random

import numpy
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchsleuth.torch_core.compare.reference.cloning import (
    clone_inputs,
    restore,
    same_bits,
    snapshot,
)
from torchsleuth.torch_core.compare.reference.rng import rng_kept


@given(st.permutations([0, 1, 2]), st.integers(0, 2), st.integers(1, 3))
def test_a_clone_has_the_values_and_strides_of_any_view(order, offset, step):
    view = torch.arange(5 * 6 * 7.0).view(5, 6, 7).permute(order)[offset::step]
    clone = clone_inputs([view])[0]
    assert torch.equal(clone, view) and clone.stride() == view.stride()
    assert clone.untyped_storage().data_ptr() != view.untyped_storage().data_ptr()


def test_tensors_that_share_memory_share_it_in_the_clone():
    base = torch.zeros(6)
    a, b, c = clone_inputs([base, base[2:4], base])
    a[3] = 1.0
    assert b.tolist() == [0.0, 1.0] and c is a and base.sum() == 0


def test_a_small_view_of_a_large_storage_copies_only_what_it_sees():
    view = torch.zeros(1_000_000)[500_000:500_010]
    assert clone_inputs(view).untyped_storage().nbytes() < 1000


def test_views_with_other_dtypes_share_the_same_bytes():
    base = torch.zeros(4)
    ints, floats = clone_inputs([base.view(torch.int32), base])
    floats[0] = 1.0
    assert ints[0] == 0x3F800000


def test_grad_and_parameter_and_container_kinds_survive():
    leaf, parameter = torch.ones(2, requires_grad=True), torch.nn.Parameter(torch.ones(2))
    tree = clone_inputs({"a": (leaf * 2, [parameter, None, 3])})
    product, (kept, none, three) = tree["a"]
    assert product.requires_grad and not product.is_leaf and kept.is_leaf
    assert isinstance(kept, torch.nn.Parameter) and none is None and three == 3


def test_sparse_quantised_conjugated_and_empty_tensors_are_cloned():
    values = [
        torch.eye(2).to_sparse(),
        torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
        torch.tensor([1 + 2j]).conj(),
        torch.empty(0, 3),
        torch.tensor(2.0),
    ]
    for value, clone in zip(values, clone_inputs(values)):
        assert clone is not value
        assert torch.equal(
            clone.to_dense() if clone.is_sparse else clone, value.to_dense() if value.is_sparse else value
        )


def test_restore_undoes_changes_and_leaves_alone_what_did_not_change():
    first, second = torch.ones(3), torch.full((2,), float("nan"))
    taken = snapshot([first, second])
    first.add_(1)
    version = second._version
    restore(taken)
    assert first.tolist() == [1.0, 1.0, 1.0] and second.isnan().all() and second._version == version


def test_nan_has_the_same_bits_as_itself():
    nan = torch.tensor([float("nan")])
    assert same_bits(nan, nan.clone()) and not same_bits(nan, torch.zeros(1))
    assert not same_bits(torch.zeros(1), torch.zeros(2))


def test_every_generator_is_put_back():
    def draw():
        return torch.rand(1).item(), random.random(), numpy.random.rand()

    with rng_kept():
        inside = draw()
    assert draw() == inside


def test_channels_last_tensors_with_a_size_of_one_are_compared():
    one = torch.full((2, 8, 1, 1), torch.nan).to(memory_format=torch.channels_last)
    assert one.stride(-1) == 8 and same_bits(one, one.clone()) and not same_bits(one, torch.zeros_like(one))


def test_tensors_without_memory_are_cloned_as_what_they_are():
    zero, opaque = clone_inputs([torch._efficientzerotensor((2,)), torch.ones(2, 2).to_mkldnn()])
    assert zero._is_zerotensor() and opaque.is_mkldnn
    assert same_bits(opaque, torch.ones(2, 2).to_mkldnn())
