"""The table of reducers: each is a pure function from a state to edits, and has its turn in this order.

Only the search over nodes (`nodes.py`) is no row: its candidates are sets, and it decides itself what to ask next.
"""

from __future__ import annotations

from torchsleuth.search.minify.contract import Reducer
from torchsleuth.search.minify.reducers.calls import (
    bypass,
    drop_outputs,
    inline_nested,
    merge_inputs,
    plainer_arguments,
    plainer_calls,
)
from torchsleuth.search.minify.reducers.gradients import plain_gradients
from torchsleuth.search.minify.reducers.plainer import (
    contiguous,
    default_settings,
    for_inference,
    on_the_cpu,
    plain_dtypes,
    plainer_values,
    without_gradients,
)
from torchsleuth.search.minify.reducers.sizes import fewer_dimensions, smaller_sizes, static_sizes

# What changes the graph's calls, and so gives the search over nodes something new.
STRUCTURE: dict[str, Reducer] = {
    "nested": inline_nested,
    "derivatives": plain_gradients,
    "bypass": bypass,
    "calls": plainer_calls,
}
# The rest, those first that make every later trial cheaper.
DETAILS: dict[str, Reducer] = {
    "device": on_the_cpu,
    "outputs": drop_outputs,
    "settings": default_settings,
    "inference": for_inference,
    "gradients": without_gradients,
    "static": static_sizes,
    "inputs": merge_inputs,
    "values": plainer_values,
    "shapes": smaller_sizes,
    "dimensions": fewer_dimensions,
    "strides": contiguous,
    "dtypes": plain_dtypes,
    "arguments": plainer_arguments,
}
