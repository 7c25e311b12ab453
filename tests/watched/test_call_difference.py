"""What a call leaves behind, and how two calls are told apart."""

import collections

import torch

from torchsleuth.watched.call_failures import differences
from torchsleuth.watched.call_state import leaves_of, roots_of


def sentences(eager, captured):
    return [
        d.sentence
        for d in differences(leaves_of([("result", eager)], {}), leaves_of([("result", captured)], {}))
    ]


def test_the_type_of_a_value_counts():
    assert sentences((torch.Size([2]), 1), ((2,), 1)) == [
        "result[0] is a torch.Size of [2] in eager and a tuple of [2] when compiled"
    ]
    assert sentences([True], [torch.tensor(True)]) == [
        "result[0] is a bool True in eager and a Tensor, bool tensor of shape () when compiled"
    ]


def test_only_the_first_of_what_follows_from_a_difference_is_said():
    assert len(sentences({"a": [1, 2, 3]}, {"a": [1, 2]})) == 1


def test_numbers_may_differ_by_rounding_only():
    ones = torch.ones(4)
    assert sentences(ones, ones + 1e-6) == []
    assert sentences(ones, ones + 1e-2) == ["result differs in 4 of 4 elements, by up to 0.01, from eager"]
    assert sentences(torch.tensor([float("nan"), 1]), torch.tensor([float("nan"), 1])) == []
    assert len(sentences(torch.tensor([1, 2]), torch.tensor([1, 3]))) == 1


def test_one_list_twice_is_not_two_equal_lists():
    one = [1]
    assert sentences((one, one), ([1], [1])) == [
        "result[1] is the same object as result[0] in eager and a list of [1] when compiled"
    ]


def test_the_order_of_a_set_says_nothing_and_that_of_a_dict_does():
    assert sentences({1, 5, 8}, {8, 5, 1}) == []
    assert len(sentences({"a": 1, "b": 2}, {"b": 2, "a": 1})) == 1


calls: list[int] = []


def helper(x):
    calls.append(x)


def test_a_call_reaches_closures_globals_of_helpers_attributes_and_modules():
    class Net(torch.nn.Module):
        seen = 0

        def __init__(self):
            super().__init__()
            self.steps = collections.deque([1])
            self.layer = torch.nn.BatchNorm1d(2)

        def forward(self, x):
            Net.seen += 1
            helper(x)
            return other(x)

    notes = {}

    def other(x):
        notes["x"] = x
        return x

    found = leaves_of(roots_of(Net().__call__, (torch.ones(2),), {}), {})
    assert {"args[0]", "self.steps[0]", "self.layer.running_mean", "calls (global)"} <= found.keys()
    assert {"notes (closure)", "Net.seen"} <= found.keys()


def test_bits_are_compared_whatever_the_strides():
    odd = torch.tensor([[float("nan")], [1.0]]).as_strided((2, 1), (1, 7))
    assert sentences(odd, odd.clone()) == []
    assert len(sentences(torch.zeros(1).as_strided((1,), (5,)), torch.ones(1))) == 1
