"""What a check of a result hands on to the script that repeats it."""

from torchsleuth.watched.shadow import tolerances_again


def test_a_changed_input_that_was_wrong_is_wrong_again_at_half_the_distance():
    apart = {"outputs[0]": 1e-6, "outputs[1]": 2.0, "inputs[3]": 1.0, "inputs[4]": 1e-6}
    wrong = ("outputs[1]", "inputs[3] (mutated)")
    assert tolerances_again(apart, wrong) == {
        "outputs[0]": 4e-6,
        "outputs[1]": 1.0,
        "inputs[3]": 0.5,
        "inputs[4]": 4e-6,
    }
