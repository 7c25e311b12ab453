"""What autotuning chose is told apart: the template, one choice for it, a configuration of the user's own kernel."""

import torch
from test_ladder import Runner, result

from torchsleuth.core.change_table import WITHOUT_TEMPLATES
from torchsleuth.search.blame.inductor import narrowed
from torchsleuth.search.minify.states import state_of
from torchsleuth.torch_internals.compiler_switches import is_off

CHOICES = ["triton_mm_0 for mm", "triton_mm_1 for mm", "triton_mm_2 for mm"]


def products(calls=2):
    def f(x, y):
        return torch.mm(x, y).cos() if calls == 2 else torch.mm(x, y)

    return state_of(torch.fx.symbolic_trace(f), [torch.ones(2, 2), torch.ones(2, 2)]).setting(level="aot")


def blamed(fails, state, **applied):
    """Who is at fault where an experiment fails with these choices left."""
    ((subsystem, choices),) = applied.items()

    def answer(change):
        left = [c for place, c in enumerate(choices) if not is_off(change.off.get(subsystem), place, (c,))]
        return result(change, fails(left), **applied)

    runner = Runner(answer)
    runner.out_of_time = False
    return narrowed(runner, state, answer(WITHOUT_TEMPLATES))


def test_a_template_whose_every_choice_is_wrong_is_at_fault():
    found = blamed(lambda left: bool(left), products(), templates=CHOICES)
    assert (found.component, found.part, found.subsystem) == ("inductor", "template", "templates")
    assert "in place of triton_mm" in found.detail and found.pinned


def test_one_wrong_choice_is_named_with_those_that_are_right():
    found = blamed(lambda left: CHOICES[1] in left, products(), templates=CHOICES)
    assert found.part == "autotune choice"
    assert (
        "fails with triton_mm_1 for mm, and passes with triton_mm_0 for mm, triton_mm_2 for mm"
        in found.detail
    )


def test_a_template_that_nothing_can_replace_is_named_where_it_is_all_that_is_left():
    found = blamed(
        lambda left: True, products(calls=1), templates=["triton_flex_attention_0 for flex_attention"]
    )
    assert found.part == "template" and "triton_flex_attention" in found.detail
    assert (
        blamed(lambda left: True, products(), templates=["triton_flex_attention_0 for flex_attention"])
        is None
    )


def test_a_template_that_is_right_is_not_blamed_for_what_is_wrong_beside_it():
    assert blamed(lambda left: True, products(), templates=CHOICES) is None


def test_a_configuration_of_the_users_kernel_that_is_wrong_by_itself_is_named():
    configurations = ["add: BLOCK: 256, num_warps: 2", "add: BLOCK: 1024, num_warps: 4"]
    found = blamed(lambda left: configurations[1] in left, products(), configurations=configurations)
    assert found.part == "autotune choice" and "fails with add: BLOCK: 1024" in found.detail
