import collections
import dataclasses
import math

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchsleuth.torch_core.compare.reference.trees import leaves, pieces
from torchsleuth.torch_core.compare.same import close, differences, rmse, same

SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)
DTYPES = st.sampled_from(
    [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.complex64]
)


@st.composite
def tensors(draw):
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    values = torch.randn(draw(SHAPES), generator=generator) * 10
    dtype = draw(DTYPES)
    return values > 0 if dtype == torch.bool else values.to(dtype)


PLAIN = st.one_of(
    tensors(), st.integers(), st.floats(allow_nan=False), st.text(max_size=5), st.none(), st.booleans()
)
TREES = st.recursive(
    PLAIN,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.tuples(inner, inner),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
    ),
    max_leaves=8,
)


def changed_leaf(value):
    """A value of the same kind that no tolerance lets pass, or None when there is none."""
    if isinstance(value, torch.Tensor):
        if value.numel() == 0:
            return None
        twin = value.clone()
        flat = twin.view(-1)
        # Away from the value whatever it is: -7 * 2 + 7 is -7 again.
        flat[-1] = ~flat[-1] if value.dtype == torch.bool else flat[-1] * 2 + (8 if flat[-1] == -7 else 7)
        return twin
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value + max(1.0, abs(value)) if math.isfinite(value) else 0.0
    return value + "x" if isinstance(value, str) else None


def replaced(tree, path, new, here="outputs"):
    if here == path:
        return new
    if isinstance(tree, dict):
        return {k: replaced(v, path, new, f"{here}[{k!r}]") for k, v in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(replaced(v, path, new, f"{here}[{i}]") for i, v in enumerate(tree))
    return tree


@given(TREES)
def test_every_tree_is_the_same_as_itself(tree):
    assert same(tree, tree, log_error=pytest.fail)


@given(TREES, TREES)
def test_sameness_of_exact_trees_is_symmetric(left, right):
    assert same(left, right, tol=0.0, log_error=lambda _: None) == same(
        right, left, tol=0.0, log_error=lambda _: None
    )


@given(TREES, st.data())
def test_any_single_changed_leaf_is_found_and_its_path_is_named(tree, data):
    found = list(leaves(tree))
    if not found:
        return
    path, value = data.draw(st.sampled_from(found))
    new = changed_leaf(value)
    if new is None:
        return
    said = []
    assert not same(tree, replaced(tree, path, new), log_error=said.append)
    assert said[0].startswith(path + ":")


@given(tensors())
@settings(max_examples=50)
def test_neither_tensor_is_changed_by_comparing(tensor):
    other = tensor.clone()
    same(tensor, other, tensor.to(torch.float64) if tensor.is_floating_point() else None)
    assert torch.equal(tensor, other)


@pytest.mark.parametrize(
    ("ref", "res", "kind"),
    [
        (torch.ones(2), torch.ones(3), "shape"),
        (torch.ones(2), torch.ones(2, dtype=torch.float64), "dtype"),
        (torch.ones(2, 2), torch.ones(2, 2).to_sparse(), "layout"),
        (torch.ones(2), torch.ones(2, device="meta"), "device"),
        (torch.ones(2), torch.zeros(2), "value"),
        (torch.ones(2), "ones", "type"),
        ([1, 2], [1], "length"),
        ({"a": 1}, {"b": 1}, "keys"),
        ({"a": 1}, [1], "type"),
        (1, True, "type"),
        (None, 0, "type"),
    ],
)
def test_each_kind_of_difference_has_its_name(ref, res, kind):
    assert [d.kind for d in differences(ref, res)] == [kind]


def test_strides_are_compared_only_when_asked_for():
    ref, res = torch.ones(2, 3), torch.ones(3, 2).t()
    assert differences(ref, res) == []
    assert [d.kind for d in differences(ref, res, strides=True)] == ["stride"]


def test_the_path_names_the_leaf_as_a_person_would_write_it():
    ref = [0, 1, {"logits": torch.zeros(2)}]
    res = [0, 1, {"logits": torch.ones(2)}]
    assert str(differences(ref, res)[0]).startswith("outputs[2]['logits']: 2 of 2 elements differ")


def test_integers_are_exact_where_a_relative_tolerance_would_let_them_pass():
    assert not same(torch.tensor([100_000]), torch.tensor([100_001]), log_error=lambda _: None)


def test_nan_equals_nan_only_when_asked():
    value = torch.tensor([math.nan, 1.0])
    assert not same(value, value.clone(), log_error=lambda _: None)
    assert same(value, value.clone(), equal_nan=True)


def test_equal_infinities_are_the_same_and_opposite_ones_are_not():
    value = torch.tensor([math.inf, 1.0])
    assert same(value, value.clone())
    assert not same(value, torch.tensor([-math.inf, 1.0]), log_error=lambda _: None)


def test_with_a_float64_reference_a_result_as_good_as_eager_passes():
    truth = torch.linspace(1, 2, 2000, dtype=torch.float64)
    ref, res = (truth + 0.01).to(torch.float32), (truth - 0.015).to(torch.float32)
    assert not same(ref, res, log_error=lambda _: None)
    assert same(ref, res, truth)
    assert not same(ref, (truth + 0.05).float(), truth, log_error=lambda _: None)


def test_a_finite_result_near_the_truth_passes_where_eager_has_nan():
    truth = torch.ones(4, dtype=torch.float64)
    assert same(torch.tensor([math.nan, 1, 1, 1]), torch.ones(4) * 1.001, truth)


def test_cosine_similarity_forgives_size_but_not_direction():
    value = torch.randn(100)
    assert same(value, value * 1.5, cos_similarity=True)
    assert not same(value, -value, cos_similarity=True, log_error=lambda _: None)


def test_ignore_non_fp_looks_at_floats_only():
    assert same(
        [1, torch.tensor([1]), torch.ones(1)], [2, torch.tensor([2]), torch.ones(1)], ignore_non_fp=True
    )
    assert not same([torch.ones(1)], [torch.zeros(1)], ignore_non_fp=True, log_error=lambda _: None)


def test_inexact_dtype_compares_values_across_dtypes():
    assert same(torch.ones(3), torch.ones(3, dtype=torch.bfloat16), exact_dtype=False)


def test_sparse_quantised_complex_and_nested_tensors_are_compared_by_value():
    sparse = torch.eye(3).to_sparse()
    assert same(sparse, sparse.clone()) and not same(sparse, (sparse * 2), log_error=lambda _: None)
    quantised = torch.quantize_per_tensor(torch.arange(4.0), 0.5, 0, torch.qint8)
    other = torch.quantize_per_tensor(torch.arange(4.0) + 1, 0.5, 0, torch.qint8)
    assert same(quantised, quantised.clone()) and not same(quantised, other, log_error=lambda _: None)
    complex_value = torch.tensor([1 + 2j])
    assert same(complex_value, complex_value.conj().conj())
    assert not same(complex_value, complex_value.conj(), log_error=lambda _: None)
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    wrong = torch.nested.nested_tensor([torch.ones(2), torch.zeros(3)])
    assert same(nested, nested.clone())
    assert differences(nested, wrong)[0].path == "outputs[1]"


def test_numpy_values_need_equal_types_unless_relaxed():
    assert same(numpy.ones(3), numpy.ones(3))
    assert not same(numpy.ones(3), numpy.zeros(3), log_error=lambda _: None)
    assert not same(numpy.int64(3), 3, log_error=lambda _: None)
    assert same(numpy.int64(3), 3, relax_numpy_equality=True)


@dataclasses.dataclass
class Output:
    loss: torch.Tensor
    logits: torch.Tensor


def test_dataclasses_named_tuples_deques_sizes_and_sets_are_containers_or_values():
    good, bad = Output(torch.ones(()), torch.ones(2)), Output(torch.ones(()), torch.zeros(2))
    assert same(good, good) and differences(good, bad)[0].path == "outputs.logits"
    Pair = collections.namedtuple("Pair", "x y")
    assert differences(Pair(1, 2), Pair(1, 3))[0].path == "outputs.y"
    assert same(collections.deque([1]), collections.deque([1]))
    assert same(torch.Size([1, 2]), torch.Size([1, 2]))
    assert differences({1, 2}, {1, 3})[0].detail == "elements differ: ['2', '3']"


def test_model_outputs_of_transformers_are_compared_by_field():
    from transformers.modeling_outputs import MaskedLMOutput

    good = MaskedLMOutput(logits=torch.ones(2))
    assert same(good, MaskedLMOutput(logits=torch.ones(2)))
    assert differences(good, MaskedLMOutput(logits=torch.zeros(2)))[0].path == "outputs['logits']"


def test_a_fake_tensor_is_told_apart_from_a_wrong_value():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        fake = mode.from_tensor(torch.ones(2))
    assert differences(torch.ones(2), fake)[0].kind == "fake"


@given(
    st.integers(1, 40), st.integers(1, 40), st.sampled_from(["plain", "transposed", "strided", "expanded"])
)
@settings(max_examples=40)
def test_pieces_cover_every_element_once(rows, columns, layout):
    import torchsleuth.torch_core.compare.reference.trees as chunks

    base = torch.arange(rows * columns * 2.0).view(rows, columns * 2)
    tensor = {
        "plain": base,
        "transposed": base.t(),
        "strided": base[:, ::2],
        "expanded": base[:1].expand(rows, columns * 2),
    }[layout]
    old, chunks.CHUNK = chunks.CHUNK, 7
    try:
        seen = torch.cat([p[0].reshape(-1) for p in pieces(tensor, tensor.contiguous())])
    finally:
        chunks.CHUNK = old
    assert torch.equal(seen.sort().values, tensor.reshape(-1).sort().values)


@given(st.integers(0, 100), st.floats(0, 0.1), st.booleans())
def test_close_agrees_with_allclose(seed, tol, equal_nan):
    torch.manual_seed(seed)
    left = torch.randn(50)
    right = left + torch.randn(50) * 0.01
    if seed % 3 == 0:
        left[3] = right[3] = math.nan
    assert close(left, right, tol, equal_nan) == torch.allclose(left, right, tol, tol, equal_nan)


def test_root_mean_square_error_is_taken_in_float64():
    assert rmse(torch.zeros(4, dtype=torch.float64), torch.full((4,), 1e-30)) == pytest.approx(1e-30)
