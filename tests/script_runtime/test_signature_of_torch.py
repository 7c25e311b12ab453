"""Signatures of real exceptions of torch.compile: the same bug in two graphs, and different bugs.

One module-wide set of failures, because each takes a real compile.
"""

from collections.abc import Callable, Iterator

import pytest
import torch

from torchsleuth.script_runtime.signature import (
    Signature,
    fails_the_same_way,
    fingerprint,
    signature_of_exception,
)


class InjectedFault(RuntimeError):
    pass


def raising(*args: object, **kwargs: object) -> None:
    raise InjectedFault("the fault of sin")


def asserting(*args: object, **kwargs: object) -> None:
    raise AssertionError


def stumbling(*args: object, **kwargs: object) -> None:
    raise AssertionError


def no_relu(gm: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable:
    for node in gm.graph.nodes:
        if node.target == "relu":
            raise ValueError(f"this backend cannot do node {node.name} of {len(gm.graph.nodes)}")
    return gm.forward


def small(x: torch.Tensor) -> torch.Tensor:
    return x.sin().relu()


def large(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = (x @ y).cos().relu() * 2
    return (z.relu().sin() + y.sum()).relu()


def failure(fn: Callable, backend: object, kind: str, phase: str) -> Signature:
    torch.compiler.reset()
    inputs = (torch.randn(3),) if fn is small else (torch.randn(7, 7), torch.randn(7, 7))
    with pytest.raises(Exception) as caught:
        torch.compile(fn, backend=backend)(*inputs)
    return signature_of_exception(caught.value, kind, phase)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[Signature, Signature]]]:
    from torch._functorch import config as functorch
    from torch._inductor import config as inductor
    from torch._inductor.lowering import lowerings

    def both(
        backend: object, kind: str = "compile_error", phase: str = "compile"
    ) -> tuple[Signature, Signature]:
        return failure(small, backend, kind, phase), failure(large, backend, kind, phase)

    sin = torch.ops.aten.sin.default
    results = {"backend": both(no_relu)}
    with pytest.MonkeyPatch.context() as env:
        env.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("inductor")))
        with inductor.patch(fx_graph_cache=False), functorch.patch(enable_autograd_cache=False):
            for lowering in (raising, asserting, stumbling):
                with pytest.MonkeyPatch.context() as patch:
                    patch.setitem(lowerings, sin, lowering)
                    results[lowering.__name__] = both("inductor")
            with inductor.patch({"cpp.inject_relu_bug_TESTING_ONLY": "compile_error"}):
                results["c++"] = both("inductor")
            with inductor.patch({"cpp.inject_relu_bug_TESTING_ONLY": "runtime_error"}):
                results["runtime"] = both("inductor", "runtime_error", "run")
    yield results
    torch.compiler.reset()


NAMES = ["backend", "raising", "asserting", "stumbling", "c++", "runtime"]


@pytest.mark.parametrize("name", NAMES)
def test_the_same_bug_in_two_graphs_fails_the_same_way(found: dict, name: str) -> None:
    one, other = found[name]
    assert fails_the_same_way(one, other), (one, other)
    assert fingerprint(one) == fingerprint(other)


@pytest.mark.parametrize("name", NAMES)
def test_different_bugs_do_not(found: dict, name: str) -> None:
    for other in set(NAMES) - {name}:
        assert not fails_the_same_way(found[name][0], found[other][1]), (found[name][0], found[other][1])


def test_the_root_cause_is_named_and_not_its_wrappers(found: dict) -> None:
    assert found["raising"][0].exceptions[-1].endswith("InjectedFault")
    assert found["raising"][0].summary == "LoweringException: InjectedFault: the fault of sin"
    assert found["backend"][0].message == "this backend cannot do node relu of #"
    assert found["asserting"][0].exceptions[-1] == "AssertionError"
    assert found["c++"][0].exceptions[-1].endswith("CppCompileError")
    assert found["c++"][0].message == "'compile' was not declared in this scope"


def test_frames_lie_in_the_compiler_in_generated_code_or_in_the_users_backend(found: dict) -> None:
    assert found["raising"][0].frames[:2] == (
        "test_signature_of_torch.py:raising",
        "torch/_inductor/graph.py:call_function",
    )
    assert found["backend"][0].frames[0] == "test_signature_of_torch.py:no_relu"
    assert found["c++"][0].frames[0].startswith("torch/_inductor/")
    assert found["runtime"][0].frames[0] == "<generated>:call"


def test_an_exception_that_dynamo_stands_in_for_is_told_with_what_torch_says_of_it() -> None:
    # As it ended for a `functools.partialmethod` up to 2.13; which programs end so is another in each release.
    words = "Observed exception\n  Explanation: Dynamo found no exception handler at the top-level compiled function"
    with pytest.raises(torch._dynamo.exc.Unsupported) as raised:
        try:
            raise torch._dynamo.exc.ObservedAttributeError
        except torch._dynamo.exc.ObservedAttributeError as error:
            raise torch._dynamo.exc.Unsupported(words) from error
    found = signature_of_exception(raised.value, "capture_error", "capture")
    assert found.exceptions[-1] == "torch._dynamo.exc.ObservedAttributeError"
    assert found.message.startswith("Observed exception Explanation: Dynamo found no exception handler")
    raised.value.__cause__.__traceback__ = None  # as torch leaves it where the program's own code is asked
    assert fails_the_same_way(found, signature_of_exception(raised.value, "capture_error", "capture"))
