import copy
import functools

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from torchsleuth.torch_core.backends import debugging
from torchsleuth.torch_core.backends.debugging import compiling_inside_traces
from torchsleuth.torch_internals.aot_autograd import compiling_inside_traces as can_nest

PEERS = {
    "sleuth_aot_eager": "aot_eager",
    "sleuth_aot_eager_default_partitioner": "aot_eager_default_partitioner",
    "sleuth_aot_eager_decomp_partition": "aot_eager_decomp_partition",
    "sleuth_aot_eager_decomp_partition_crossref": "aot_eager_decomp_partition_crossref",
    "sleuth_invoke_subgraph": "aot_eager",
    "sleuth_aot_ts": "aot_eager",  # torch's own aot_ts fails on every graph in 2.13
}
EVERY = pytest.mark.parametrize("backend", PEERS)


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()


@torch.library.custom_op("sleuthmade::cube", mutates_args=())
def cube(x: torch.Tensor) -> torch.Tensor:
    return x**3


cube.register_fake(lambda x: torch.empty_like(x))
cube.register_autograd(
    lambda ctx, grad: 3 * ctx.saved_tensors[0] ** 2 * grad,
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
)


def custom(x):
    return cube(x).sin()


def changes_its_input(x):
    x.mul_(2)
    return x + 1


def aliases(x):
    return x.view(-1), x, x.t()[1:]


def autocast(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return (x @ x.t()).float()


def branches(x):
    return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))


PROGRAMS = [custom, changes_its_input, aliases, autocast, branches]


def results(function, x, grad):
    """Everything a caller can see: outputs, the input afterwards, its gradient."""
    leaf = x.clone().requires_grad_(grad)
    given = leaf * 1
    torch.manual_seed(0)
    out = function(given)
    out = out if isinstance(out, tuple) else (out,)
    if grad:
        sum(each.float().square().sum() for each in out).backward()
    return [*(each.detach() for each in out), given.detach(), leaf.grad]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda each: each.__name__)
@EVERY
def test_training_and_inference_static_and_dynamic_give_eagers_results(backend, program):
    if backend == "sleuth_aot_ts" and program is branches:
        pytest.skip("TorchScript knows no higher-order operators")
    for grad, dynamic in ((True, False), (False, True)):
        torch.compiler.reset()
        function = torch.compile(program, backend=backend, dynamic=dynamic, fullgraph=True)
        for size in (4, 6) if dynamic else (4,):
            x = torch.randn(size, size)
            torch.testing.assert_close(results(function, x, grad), results(program, x, grad))


@EVERY
def test_a_training_step_with_dropout_and_batch_norm_gives_the_peers_bits(backend):
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(2, 3, 3), torch.nn.BatchNorm2d(3), torch.nn.ReLU(), torch.nn.Dropout(0.5)
    )
    x = torch.randn(2, 2, 5, 5)
    seen = []
    for name in (backend, PEERS[backend]):
        torch.compiler.reset()
        model = copy.deepcopy(net)
        torch.manual_seed(1)
        out = torch.compile(model, backend=name)(x)
        out.square().sum().backward()
        seen.append([out.detach(), *(each.grad for each in model.parameters()), *model.buffers()])
    ours, theirs = seen
    close = {"rtol": 1e-4, "atol": 1e-5} if backend == "sleuth_aot_ts" else {"rtol": 0, "atol": 0}
    torch.testing.assert_close(ours, theirs, **close)


@pytest.mark.parametrize("backend", ["sleuth_aot_eager", "sleuth_aot_eager_default_partitioner"])
def test_dropout_draws_eagers_random_numbers(backend):
    def program(x):
        return torch.nn.functional.dropout(x, 0.5) + torch.rand_like(x)

    x = torch.randn(8, 8)
    assert torch.equal(
        results(torch.compile(program, backend=backend), x, True)[0], results(program, x, True)[0]
    )


def test_with_inductors_decompositions_dropout_draws_eagers_numbers_where_torch_is_told_to():
    def program(x):
        return torch.nn.functional.dropout(x, 0.5)

    x = torch.randn(8, 8)
    function = torch.compile(program, backend="sleuth_aot_eager_decomp_partition")
    with torch._inductor.config.patch(fallback_random=True):
        assert torch.equal(results(function, x, True)[0], results(program, x, True)[0])


def test_a_tensor_subclass_that_aot_autograd_unwraps_is_trained():
    from torch.testing._internal.two_tensor import TwoTensor

    x = TwoTensor(torch.randn(3), torch.randn(3)).requires_grad_()
    out = torch.compile(lambda x: x.sin() * 2, backend="sleuth_aot_eager_decomp_partition")(x)
    out.sum().backward()
    assert isinstance(out, TwoTensor)
    torch.testing.assert_close(x.grad.a, x.a.cos() * 2)


def test_the_rungs_differ_in_what_their_names_say():
    graphs = {}

    def keep(name):
        def compiler(graph, inputs):
            graphs[name] = {str(node.target) for node in graph.graph.nodes if node.op == "call_function"}
            return graph.forward

        return compiler

    from torchsleuth.torch_core.backends.catalog import sleuth_aot_eager

    backend = functools.partial(sleuth_aot_eager, fw_compiler=keep("forward"), bw_compiler=keep("backward"))
    x = torch.randn(3, requires_grad=True)
    torch.compile(torch.nn.functional.silu, backend=backend)(x).sum().backward()
    assert graphs["forward"] == {"aten.silu.default"}
    assert graphs["backward"] == {"aten.silu_backward.default"}

    class Names(TorchDispatchMode):
        names = set()

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.names.add(str(func))
            return func(*args, **(kwargs or {}))

    decomposed = torch.compile(
        lambda x: torch.nn.functional.silu(x),
        backend="sleuth_aot_eager_decomp_partition_with_mode",
        options={"mode": Names()},
    )
    torch.testing.assert_close(decomposed(x), torch.nn.functional.silu(x))
    assert "aten.silu.default" not in Names.names
    assert "aten.exp.default" in Names.names or "aten.sigmoid.default" in Names.names


@EVERY
def test_a_graph_that_returns_a_tensor_is_taken_without_dynamo(backend):

    gm = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh()))
    x = torch.randn(2, 4, requires_grad=True)
    out = getattr(debugging, backend)(gm, [x])(x)
    torch.testing.assert_close(out, gm(x))
    torch.testing.assert_close(torch.autograd.grad(out.sum(), x), torch.autograd.grad(gm(x).sum(), x))


class Counting(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls.append(str(func))
        return func(*args, **(kwargs or {}))


def test_a_dispatch_mode_sees_forward_and_backward_however_it_is_given():
    from torchsleuth.torch_core.backends.catalog import (
        sleuth_aot_eager_decomp_partition_with_mode as with_mode,
    )

    name = "sleuth_aot_eager_decomp_partition_with_mode"
    for give in (
        lambda mode: {"backend": name, "options": {"mode": mode}},
        lambda mode: {"backend": name, "mode": mode},
        lambda mode: {"backend": functools.partial(with_mode, mode=mode)},
    ):
        torch.compiler.reset()
        mode = Counting()
        x = torch.randn(3, requires_grad=True)
        out = torch.compile(lambda x: x.sin(), **give(mode))(x)
        assert mode.calls == ["aten.sin.default"]
        out.sum().backward()
        assert mode.calls[1:] == ["aten.cos.default", "aten.mul.Tensor"]


@pytest.mark.filterwarnings("ignore::torchsleuth.torch_core.backends.errors.UnknownOption")
def test_no_mode_is_an_error_that_says_how_to_give_one():
    name = "sleuth_aot_eager_decomp_partition_with_mode"
    with pytest.raises(
        Exception, match=r'was given None; pass one: torch.compile\(f, backend="sleuth_aot_eager_dec'
    ):
        torch.compile(lambda x: x + 1, backend=name, mode="max-autotune")(torch.ones(1))


@pytest.mark.skipif(can_nest() is None, reason="this torch does not compile inside a trace")
def test_an_outer_trace_shows_forward_and_backward_as_one_subgraph_each():
    function = torch.compile(lambda x: (x.sin() * 2).exp(), backend="sleuth_invoke_subgraph")

    def step(x):
        x = x.detach().requires_grad_()
        return torch.autograd.grad(function(x).sum(), x)[0]

    x = torch.randn(4)
    with compiling_inside_traces():
        outer = make_fx(step)(x)
    calls = [str(node.target) for node in outer.graph.nodes if node.op == "call_function"]
    assert calls.count("invoke_subgraph") == 2
    assert not any(call.startswith(("aten.sin", "aten.exp.", "aten.cos")) for call in calls)
    y = torch.randn(4)
    torch.testing.assert_close(outer(y), 2 * y.cos() * (2 * y.sin()).exp())


@pytest.mark.gpu
@EVERY
def test_a_training_step_on_a_gpu_gives_eagers_results(backend):
    x = torch.randn(8, 8, device="cuda")
    function = torch.compile(custom, backend=getattr(debugging, backend))
    torch.testing.assert_close(results(function, x, True), results(custom, x, True))
