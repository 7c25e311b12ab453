"""What kind of step a graph node is, as far as rounding goes: exact, rounding, accumulating, random.

The idea: kinds are decided by the plain name of an operation (`softmax`, `add`, `mm`), which aten-level
graphs, Dynamo graphs and Tensor methods share; an unknown name counts as rounding once.
"""

from __future__ import annotations

import torch
from torch.fx import Node

from torchsleuth.torch_internals.operators import is_higher_order
from torchsleuth.torch_internals.schemas import IN_PLACE_OPERATORS, argument_of, is_torchs_own, result_names


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


EXACT = _names(
    """abs alias amax amin as_strided atleast_1d atleast_2d broadcast_to cat ceil chunk clamp clamp_max
    clamp_min clone column_stack concat contiguous copy copysign detach diagonal dstack embedding empty
    empty_like expand expand_as eye fill flatten flip floor full full_like gather getitem hardtanh
    hstack index index_copy index_put index_select lift_fresh_copy lift_fresh masked_fill masked_select
    max maximum min minimum moveaxis movedim narrow neg negative new_empty new_full new_ones new_zeros
    numel one_hot ones ones_like pad permute ravel real imag relu relu6 repeat repeat_interleave reshape
    resolve_conj roll round scalar_tensor scatter select select_scatter setitem sign size slice
    slice_scatter sort split split_with_sizes squeeze stack swapaxes t take take_along_dim tensor
    threshold tile topk transpose tril triu trunc unbind unflatten unfold unsafe_split unsqueeze view
    view_as view_as_complex view_as_real where zero zeros zeros_like mT T max_pool1d max_pool2d
    max_pool3d max_pool2d_with_indices constant_pad_nd fmax fmin vstack msort kthvalue median nan_to_num
    heaviside cummax cummin arange linspace iota squeeze_copy argmax argmin eq ne lt le gt ge
    logical_and logical_or logical_not isnan isinf isfinite bitwise_and bitwise_or bitwise_not
    getattr sym_size shape item unsafe_view _unsafe_view _unsafe_index _reshape_alias lift"""
)
"""Steps that move, select or negate values and never round them."""

CONVERT = _names("""to _to_copy convert_element_type type type_as half float double bfloat16""")
"""Steps that round only when the target dtype is narrower."""

PRODUCT = _names(
    """mm bmm matmul addmm baddbmm addbmm addmv addr mv dot vdot einsum linear bilinear conv1d conv2d conv3d
    convolution conv_transpose1d conv_transpose2d conv_transpose3d convolution_backward tensordot inner
    chain_matmul scaled_dot_product_attention _scaled_dot_product_flash_attention
    _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_efficient_attention
    _scaled_dot_product_cudnn_attention flex_attention
    _scaled_dot_product_flash_attention_for_cpu_backward _scaled_dot_product_flash_attention_backward
    _scaled_dot_product_efficient_attention_backward _scaled_mm multi_head_attention_forward imatmul
    mkldnn_rnn_layer lstm gru cdist _linear"""
)
"""Sums of products; on accelerators these may also use shorter formats for their inputs."""

REDUCE = _names(
    """sum mean var std var_mean std_mean nansum nanmean logsumexp norm vector_norm linalg_vector_norm softmax
    _softmax log_softmax _log_softmax layer_norm native_layer_norm group_norm native_group_norm
    batch_norm native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional
    _native_batch_norm_legit_no_training instance_norm rms_norm _fused_rms_norm cumsum cumprod
    logcumsumexp prod avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d
    _adaptive_avg_pool2d scatter_add index_add scatter_reduce trace nll_loss cross_entropy mse_loss
    kl_div l1_loss smooth_l1_loss binary_cross_entropy binary_cross_entropy_with_logits
    cosine_similarity normalize native_layer_norm_backward native_group_norm_backward
    native_batch_norm_backward _softmax_backward_data _log_softmax_backward_data embedding_bag
    embedding_dense_backward sum_to_size renorm dist count_nonzero _batch_norm_with_update
    upsample_bilinear2d interpolate grid_sampler_2d nll_loss_forward"""
)
"""Sums of many terms, whose error grows with the number of terms."""

SEQUENTIAL = frozenset(["cumsum", "cumprod", "logcumsumexp"])
"""Reductions that no implementation can block into lanes."""

TRANSCENDENTAL = _names(
    """exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh
    erf erfc erfinv sigmoid logit silu gelu softplus mish elu selu celu gelu_backward tanh_backward
    sigmoid_backward silu_backward pow rsqrt logaddexp logaddexp2 xlogy lgamma digamma log_sigmoid
    logsigmoid hardswish sinc i0 special_erf special_expm1 float_power cumprod softmax _softmax
    log_softmax _log_softmax logsumexp softsign tanhshrink polygamma hypot addcdiv"""
)
"""Functions that vector libraries compute to a few units in the last place, each library differently."""

BOUNDED = _names(
    """erf erfc gelu gelu_backward tanh sigmoid silu softplus sin cos log1p log logsumexp log_softmax
    _log_softmax mish logaddexp log_sigmoid logsigmoid atan elu selu celu expm1 tan log2 log10
    silu_backward special_erf atan2 asinh sinc scaled_dot_product_attention"""
)
"""Functions whose error is a few units of 1.0 rather than of their own small value."""

NORMALISE = _names(
    """layer_norm native_layer_norm group_norm native_group_norm batch_norm native_batch_norm instance_norm
    softmax _softmax log_softmax _log_softmax rms_norm _fused_rms_norm _native_batch_norm_legit
    normalize _native_batch_norm_legit_functional _native_batch_norm_legit_no_training
    native_layer_norm_backward native_group_norm_backward native_batch_norm_backward
    _softmax_backward_data _log_softmax_backward_data _batch_norm_with_update"""
)
"""Steps that subtract or divide by one rounded number per row, so that a whole row errs together."""

VARIANCE = NORMALISE.union(_names("var std var_mean std_mean")) - _names(
    "softmax _softmax log_softmax _log_softmax"
)
"""Steps that compute a variance, which compilers like to compute in one running pass."""

DISCRETE = _names(
    """argmax argmin argsort sort topk kthvalue median mode eq ne lt le gt ge sign round floor ceil trunc frac
    heaviside bucketize searchsorted nonzero unique where masked_fill max min amax amin cummax cummin
    floor_divide fmod remainder isnan isinf isfinite signbit histc bincount multinomial max_pool2d
    max_pool2d_with_indices clamp threshold logical_and logical_or logical_not fix max_pool1d max_pool3d
    threshold_backward msort sgn"""
)
"""Steps that can turn a rounding difference into a jump."""

TIED = _names("argmax argmin argsort sort topk kthvalue median mode msort max min")
"""Steps that choose among equal values; which one is for each implementation to say."""

DROPOUT = _names("dropout native_dropout dropout1d dropout2d dropout3d feature_dropout")
"""Random steps that multiply their input by a mask."""

RANDOM = DROPOUT | _names(
    """rand randn rand_like randn_like randint randint_like randperm bernoulli multinomial normal poisson
    uniform exponential geometric cauchy log_normal random alpha_dropout feature_alpha_dropout rrelu
    rrelu_with_noise gumbel_softmax philox_rand inductor_random inductor_randint run_and_save_rng_state
    binomial run_with_rng_state standard_gamma native_dropout scaled_dot_product_attention"""
)
"""Steps that draw random numbers."""

DRAWS_INSIDE = _names(
    """lstm gru rnn_tanh rnn_relu multi_head_attention_forward fractional_max_pool2d fractional_max_pool3d
    fractional_max_pool2d_with_indices fractional_max_pool3d_with_indices svd_lowrank pca_lowrank lobpcg"""
)
"""Steps that compute something else and draw random numbers on the way, some of them only when told to."""


def plain_name(node: Node) -> str:
    """The name of a node's operation without module, overload, trailing underscore: `aten.add_.Tensor` is `add`.

    Example: `plain_name(node_of(torch.ops.aten.mm.default)) == "mm"`.
    """
    target = node.target
    if isinstance(target, str):
        name = target.rsplit(".", 1)[-1]
    else:
        packet = getattr(target, "overloadpacket", target)
        name = getattr(packet, "__name__", str(packet)).split(".")[0]
    if name in IN_PLACE_OPERATORS:
        return name if name == "setitem" else name[1:]
    return name.rstrip("_") if name.endswith("_") and not name.startswith("__") else name


def sums(node: Node) -> bool:
    """Whether a node adds up many terms: a reduction, or writes that accumulate where they meet."""
    name = plain_name(node)
    if name in ("index_put", "_unsafe_index_put", "_index_put_impl"):
        return argument_of(node, "accumulate") is True
    return name in REDUCE


def draws(node: Node) -> bool:
    """Whether a node draws random numbers."""
    if node.op == "call_module":
        return any(_active_dropout(m) for m in _module(node).modules())
    if node.op not in ("call_function", "call_method"):
        return False
    tags = getattr(node.target, "tags", ())
    if torch.Tag.nondeterministic_seeded in tags:
        # The backward of attention is told which numbers its forward drew, whatever its tag says.
        return not _never_drops(node) and not plain_name(node).endswith("_backward")
    rate, training = DROPS_INSIDE.get(plain_name(node), (None, None))
    if rate is not None and training is not None:
        return bool(_argument(node, *rate, 0.0)) and _argument(node, *training, True) is not False
    return plain_name(node) in RANDOM and not _never_drops(node)


def fills_memory(node: Node) -> bool:
    """Whether a node that draws writes over what it is given without reading it: `x.bernoulli_(0.5)`."""
    target = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return draws(node) and target.split(".")[0].endswith("_") and plain_name(node) not in DROPOUT


def may_draw(node: Node) -> bool:
    """Whether a node may draw from torch's global generators, itself or somewhere inside; in doubt, True."""
    if node.op not in ("call_function", "call_method", "call_module"):
        return False
    opaque = node.op == "call_module" or is_higher_order(node.target) or not is_torchs_own(node.target)
    return opaque or draws(node) or plain_name(node) in DRAWS_INSIDE


DROPS_INSIDE = {
    "multi_head_attention_forward": ((10, "dropout_p"), (13, "training")),
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), ((5, "dropout"), (6, "train"))),
}
"""Steps with a dropout of their own: where they are given its rate, and whether they train."""


def _argument(node: Node, place: int, name: str, default: object) -> object:
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, default)


def dropout_rate(node: Node) -> float | None:
    """The probability of a dropout-like node, `None` when it is not one or drops nothing."""
    if node.op == "call_module":
        module = _module(node)
        return float(module.p) if _active_dropout(module) else None
    if plain_name(node) not in DROPOUT or _never_drops(node):
        return None
    rate = _argument(node, 1, "p", 0.5)
    return float(rate) if isinstance(rate, (int, float)) else None


def _module(node: Node) -> torch.nn.Module:
    owner = node.graph.owning_module
    return owner.get_submodule(str(node.target)) if owner is not None else torch.nn.Module()


def _active_dropout(module: torch.nn.Module) -> bool:
    return module.training and getattr(module, "p", 0.0) > 0.0 and "Dropout" in type(module).__name__


def _never_drops(node: Node) -> bool:
    if plain_name(node) == "dropout":
        training = _argument(node, 2, "training", node.kwargs.get("train", True))
        # At a rate of 0 it hands on what it is given and asks no generator.
        return training is False or _argument(node, 1, "p", 0.5) == 0.0
    if plain_name(node) == "scaled_dot_product_attention":
        return _argument(node, 4, "dropout_p", 0.0) == 0.0
    return "attention" in plain_name(node) and argument_of(node, "dropout_p") == 0.0


MEANS_NOTHING_UNDROPPED = frozenset(
    ["philox_seed", "philox_offset", "rng_state", "unused", "debug_attn_mask"]
)
"""What attention returns for the sake of dropout, as torch's schemas call it: without dropout, any memory."""


def means_nothing(node: Node) -> bool:
    """Whether a node is a part of attention's results that only dropout gives a meaning, where nothing is dropped."""
    if plain_name(node) != "getitem" or not isinstance(node.args[0], Node):
        return False
    source, place = node.args[0], node.args[1]
    attention = "attention" in plain_name(source)
    if not attention or not _never_drops(source) or not isinstance(place, int):
        return False
    names = result_names(source.target)
    return place < len(names) and names[place] in MEANS_NOTHING_UNDROPPED
