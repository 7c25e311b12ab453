import made_ops
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchsleuth.torch_core.backends.checked_ops import after_call, before_call
from torchsleuth.torch_core.backends.errors import SchemaMismatch


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()


def debugged(function):
    return torch.compile(function, backend="sleuth_eager_debug", fullgraph=True)


def found(op, *args):
    before = before_call(op, args, {})
    return [(each.field, each.what, each.did) for each in after_call(before, op(*args))]


@pytest.mark.parametrize(
    ("op", "field", "words"),
    [
        (made_ops.hidden_change, "mutation", "argument 'x': its schema said it stays as it is"),
        (made_ops.hidden_view, "aliasing", "the real call gave memory shared with argument 'x'"),
    ],
    ids=["mutation", "alias"],
)
def test_an_undeclared_mutation_or_alias_is_an_error_that_names_operator_line_and_remedy(op, field, words):
    with pytest.raises(SchemaMismatch) as caught:
        debugged(lambda x: op(x * 1).sum())(torch.ones(2, 2))
    assert caught.value.op == str(op)
    assert caught.value.difference.field == field
    assert str(caught.value).startswith(f"{op} (test_backend_schema.py:")
    assert words in str(caught.value)
    assert "clone" in str(caught.value)


def test_declared_changes_views_and_torchs_own_special_cases_pass_with_eagers_values_and_gradients():
    norm = torch.nn.BatchNorm1d(4)  # changes its statistics, which its schema does not say

    def program(x):
        y = norm(x) * 1
        made_ops.declared_change(y)
        y = torch.nn.functional.dropout(y, 0.5, training=False).reshape(-1)
        one, two = y.view(-1).split(10)
        return (one * two).relu_(), x.t()[1:], torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))

    x = torch.randn(5, 4, requires_grad=True)
    got = debugged(program)(x)
    (gradient,) = torch.autograd.grad(sum(each.sum() for each in got), x)
    want = program(x)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(gradient, torch.autograd.grad(sum(each.sum() for each in want), x)[0])


def test_outputs_that_share_memory_are_found_in_tuples_and_in_lists():
    x = torch.ones(2, 2)
    assert found(made_ops.twins, x) == [("aliasing", "output 0", "memory shared with output 1")]
    assert found(made_ops.twin_list, x) == [("aliasing", "output 0", "a list whose tensors share memory")]
    assert found(torch.ops.aten.split.Tensor, x, 1) == []


def test_a_declared_alias_may_be_a_view_but_not_the_argument_itself():
    same = made_ops.made("same(Tensor(a) x) -> Tensor(a)", lambda x: x)
    x = torch.ones(2, 2)
    assert found(made_ops.declared_view, x) == []
    assert found(same, x) == [("aliasing", "output 0", "argument 'x' itself instead of a view")]


def test_an_argument_that_shares_memory_with_a_declared_one_may_change_with_it():
    op = made_ops.made("fill(Tensor(a!) out, Tensor x) -> ()", lambda out, x: (out.fill_(7), None)[1])
    x = torch.ones(4)
    assert found(op, x[:2], x) == []
    assert x.tolist() == [7, 7, 1, 1]


numbers = st.floats(width=32, allow_nan=True)


@given(values=st.lists(numbers, min_size=1, max_size=6), data=st.data(), value=numbers)
@settings(max_examples=60, deadline=None)
def test_a_change_is_found_exactly_where_the_bits_change(values, data, value):
    x = torch.tensor(values)
    index = data.draw(st.integers(0, len(values) - 1))
    before = x.clone()
    mutated = [each for each in found(made_ops.poke, x, index, value) if each[0] == "mutation"]
    changed = not torch.equal(before.view(torch.int32), x.view(torch.int32))
    assert bool(mutated) == changed
