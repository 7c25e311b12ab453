import made_ops
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchsleuth.torch_core.backends.checked_ops import Steps, checked_call
from torchsleuth.torch_core.backends.errors import FakeMismatch

CROSSREF = "sleuth_aot_eager_decomp_partition_crossref"


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()


def compiled(function, **options):
    return torch.compile(function, backend=CROSSREF, fullgraph=True, **options)


def checked(op, *args):
    steps = Steps(torch.fx.symbolic_trace(lambda: 0))
    return checked_call(op, args, {}, lambda: op(*args), steps)


@pytest.mark.parametrize(
    ("op", "field", "said", "did"),
    [
        (made_ops.wrong_shape, "shape", "[2, 3]", "[3, 2]"),
        (made_ops.wrong_stride, "stride", "[3, 1]", "[1, 2]"),
        (made_ops.wrong_dtype, "dtype", "torch.float32", "torch.float64"),
        (made_ops.wrong_offset, "storage offset", "0", "6"),
        (made_ops.too_many, "outputs", "2", "3"),
        (made_ops.hidden_view, "aliasing", "memory of its own", "memory shared with argument 'x'"),
        (made_ops.hidden_change, "mutation", "it stays as it is", "another value"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_custom_operator_that_lies_is_named_with_what_fake_said_and_what_the_real_call_did(
    op, field, said, did
):
    with pytest.raises(FakeMismatch) as caught:
        compiled(lambda x: op(x * 1)[0] + 1)(torch.randn(2, 3))
    error = caught.value
    assert error.op == str(op)
    assert (error.difference.field, error.difference.said, error.difference.did) == (field, said, did)
    message = str(error)
    assert "\n" not in message
    assert message.startswith(f"{op} (test_backend_crossref.py:")
    assert f"fake said {said}, the real call gave {did}" in message


def test_torchs_own_check_for_aliases_does_not_come_first():
    with torch._functorch.config.patch(error_on_custom_op_aliasing=True), pytest.raises(FakeMismatch):
        compiled(made_ops.hidden_view)(torch.ones(2, 3))


@pytest.mark.parametrize("dynamic", [False, True])
def test_operators_that_say_what_they_do_pass_with_the_values_of_eager(dynamic):
    def program(x):
        x = made_ops.double(x)
        made_ops.declared_change(x)
        return x.sin(), made_ops.values_only(x).sum()

    x = torch.randn(3, 4)
    torch.testing.assert_close(compiled(program, dynamic=dynamic)(x), program(x))


def test_a_lie_inside_a_branch_of_cond_is_found():
    def program(x):
        return torch.cond(x.sum() > 0, lambda x: made_ops.wrong_stride(x).sin(), lambda x: x.cos(), (x,))

    torch.testing.assert_close(compiled(program)(-torch.ones(2, 3)), torch.ones(2, 3).cos())
    with pytest.raises(FakeMismatch, match="wrong_stride"):
        compiled(program)(torch.ones(2, 3))


def test_a_lie_in_the_backward_is_found():
    @torch.library.custom_op("sleuthmade::gentle", mutates_args=())
    def gentle(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    gentle.register_fake(lambda x: torch.empty_like(x))
    gentle.register_autograd(lambda ctx, grad: made_ops.wrong_stride(grad))
    x = torch.randn(2, 3, requires_grad=True)
    out = compiled(gentle)(x)
    with pytest.raises(FakeMismatch) as caught:
        out.sin().sum().backward()
    assert caught.value.op == "sleuthmade.wrong_stride.default"


def test_torchs_own_operators_are_looked_at_only_when_asked_and_then_pass():
    seen = []
    from torchsleuth.torch_core.backends import checked_ops

    original = checked_ops.checked_call
    checked_ops.checked_call = lambda op, *rest: (seen.append(str(op)), original(op, *rest))[1]
    try:
        x = torch.randn(3, 4)
        compiled(lambda x: x.sin() + 1)(x)
        assert seen == []
        compiled(lambda x: x.sin() + 2, options={"ops": "all"})(x)
        assert seen == ["aten.sin.default", "aten.add.Tensor"]
        with torch._functorch.config.patch(fake_tensor_crossref="all"):
            compiled(lambda x: x.sin() + 3)(x)
        assert len(seen) == 4
    finally:
        checked_ops.checked_call = original


def test_a_training_step_of_a_transformer_layer_has_no_mismatch_in_any_operator():
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    x = torch.randn(2, 3, 8, requires_grad=True)
    out = compiled(layer, options={"ops": "all"})(x)
    out.sum().backward()
    torch.testing.assert_close(out, layer(x))
    assert x.grad.isfinite().all()


def test_an_unknown_choice_of_operators_is_refused_with_the_choices():
    with pytest.raises(Exception, match=r"does not know ops='some'; choose one of 'custom', 'all'"):
        compiled(lambda x: x + 1, options={"ops": "some"})(torch.ones(2))


def test_a_fake_kernel_that_raises_where_the_real_call_runs_is_a_mismatch():
    def refuse(x):
        raise ValueError("only\nsquares")

    op = made_ops.made("refused(Tensor x) -> Tensor", lambda x: x + 1, refuse)
    with pytest.raises(
        FakeMismatch, match=r"fake said ValueError \(only squares\), the real call gave a result"
    ):
        checked(op, torch.ones(2))


sizes = st.lists(st.integers(0, 3), max_size=3)


@given(real=sizes, fake=sizes)
@settings(max_examples=40, deadline=None)
def test_a_shape_is_a_mismatch_exactly_where_it_differs(real, fake):
    if real == fake:
        assert list(checked(made_ops.sized, torch.ones(1), real, fake).shape) == real
        return
    with pytest.raises(FakeMismatch) as caught:
        checked(made_ops.sized, torch.ones(1), real, fake)
    assert caught.value.difference.field == "shape"


@given(data=st.data(), size=st.lists(st.integers(1, 3), min_size=1, max_size=3))
@settings(max_examples=40, deadline=None)
def test_a_stride_is_a_mismatch_exactly_where_it_is_used_and_differs(data, size):
    real = data.draw(st.lists(st.integers(1, 3), min_size=len(size), max_size=len(size)))
    fake = data.draw(st.lists(st.integers(1, 3), min_size=len(size), max_size=len(size)))
    same = all(one == other for n, one, other in zip(size, real, fake) if n > 1)
    if same:
        checked(made_ops.strided, torch.ones(1), size, real, fake)
        return
    with pytest.raises(FakeMismatch) as caught:
        checked(made_ops.strided, torch.ones(1), size, real, fake)
    assert caught.value.difference.field == "stride"
