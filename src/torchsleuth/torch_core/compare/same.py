"""Are two results the same? Trees of tensors and plain values, compared leaf by leaf with a tolerance.

The idea: first match structure, naming the path of whatever does not fit; then decide each leaf by one
rule. With a float64 reference the rule is not a tolerance but whether `res` errs more than `ref` does.
Most pieces of healthy results differ by less than the absolute tolerance, which one subtraction and one min-max
decide; only a piece that fails this pays for the full rule (`close`).
"""

from __future__ import annotations

import collections
import dataclasses
import logging
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from torchsleuth.torch_core.compare.reference.trees import SMALL, is_inexact, is_numpy, parts, pieces
from torchsleuth.torch_internals.tensors import is_fake

log = logging.getLogger(__name__)

COSINE_LIMIT = 0.99
"""The similarity torch's own benchmarks ask for; kept so that results can be compared with theirs."""

BETTER_THAN_NAN = 4e-2
"""When ref has NaN and res has none, res passes if it is this close to the float64 reference."""


@dataclasses.dataclass(frozen=True)
class Difference:
    """One leaf that is not the same: where, what kind of difference, and the sentence for a person."""

    path: str
    kind: str
    detail: str

    def __str__(self) -> str:
        return f"{self.path}: {self.detail}"


@dataclasses.dataclass(frozen=True)
class Rules:
    """The options of `same`, passed down as one value."""

    cos_similarity: bool = False
    tol: float = 1e-4
    equal_nan: bool = False
    exact_dtype: bool = True
    relax_numpy_equality: bool = False
    ignore_non_fp: bool = False
    use_larger_multiplier_for_smaller_tensor: bool = False
    strides: bool = False


def same(
    ref: Any,
    res: Any,
    fp64_ref: Any = None,
    cos_similarity: bool = False,
    tol: float = 1e-4,
    equal_nan: bool = False,
    exact_dtype: bool = True,
    relax_numpy_equality: bool = False,
    ignore_non_fp: bool = False,
    log_error: Callable[..., None] = log.error,
    use_larger_multiplier_for_smaller_tensor: bool = False,
) -> bool:
    """Whether `res` is the same as `ref`; the first difference goes to `log_error` with its path.

    Example: `same({"x": torch.ones(2)}, {"x": torch.ones(2) + 1e-6})` is True.
    """
    rules = Rules(
        cos_similarity,
        tol,
        equal_nan,
        exact_dtype,
        relax_numpy_equality,
        ignore_non_fp,
        use_larger_multiplier_for_smaller_tensor,
    )
    for difference in _compare(ref, res, fp64_ref, "outputs", rules):
        log_error(str(difference))
        return False
    return True


def differences(
    ref: Any, res: Any, fp64_ref: Any = None, path: str = "outputs", **rules: Any
) -> list[Difference]:
    """Every difference between two trees; `rules` are the options of `same`, and `strides=True` adds strides.

    Example: `[str(d) for d in differences([1, 2], [1, 3])] == ["outputs[1]: 2 became 3"]`.
    """
    return list(_compare(ref, res, fp64_ref, path, Rules(**rules)))


def _compare(ref: Any, res: Any, truth: Any, path: str, rules: Rules) -> Iterator[Difference]:
    ref_parts, res_parts = parts(ref), parts(res)
    if ref_parts is None and res_parts is None:
        found = _compare_leaf(ref, res, truth, path, rules)
        if found is not None:
            yield found
        return
    structural = _structure(ref, res, ref_parts, res_parts, path)
    if structural is not None:
        yield structural
        return
    assert ref_parts is not None and res_parts is not None
    inner = dict(res_parts)
    truths = dict(parts(truth) or [])
    for suffix, item in ref_parts:
        yield from _compare(item, inner[suffix], truths.get(suffix), path + suffix, rules)


def _structure(
    ref: Any, res: Any, ref_parts: list | None, res_parts: list | None, path: str
) -> Difference | None:
    if ref_parts is None or res_parts is None or not _same_family(ref, res):
        return Difference(path, "type", f"{_name(ref)} became {_name(res)}")
    ours, theirs = [s for s, _ in ref_parts], [s for s, _ in res_parts]
    if set(ours) == set(theirs):
        return None
    if isinstance(ref, (list, tuple, collections.deque, torch.nn.ParameterList, torch.Tensor)):
        return Difference(path, "length", f"length {len(ours)} became {len(theirs)}")
    missing = sorted(set(ours) - set(theirs))
    added = sorted(set(theirs) - set(ours))
    return Difference(path, "keys", f"keys differ: missing {missing}, unexpected {added}")


def _same_family(ref: Any, res: Any) -> bool:
    if type(ref) is type(res):
        return True
    sequences = (list, tuple, collections.deque, torch.nn.ParameterList)
    if isinstance(ref, sequences) and isinstance(res, sequences):
        # Compiled functions return lists where eager returns tuples; named fields must still agree.
        return hasattr(ref, "_fields") == hasattr(res, "_fields")
    return isinstance(ref, dict) and isinstance(res, dict)


def _compare_leaf(ref: Any, res: Any, truth: Any, path: str, rules: Rules) -> Difference | None:
    if isinstance(ref, torch.Tensor) or isinstance(res, torch.Tensor):
        return _compare_tensors(ref, res, truth, path, rules)
    if is_numpy(ref) or is_numpy(res):
        return _compare_numpy(ref, res, truth, path, rules)
    if isinstance(ref, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        ref = ref.node.hint if hasattr(ref, "node") else ref
    if isinstance(ref, (float, complex)) and isinstance(res, type(ref)):
        return _compare_tensors(_scalar(ref), _scalar(res), truth, path, rules)
    if rules.ignore_non_fp and not isinstance(ref, (float, complex)):
        return None
    if isinstance(ref, (set, frozenset)) and isinstance(res, (set, frozenset)):
        odd = sorted(map(repr, ref ^ res))
        return Difference(path, "value", f"elements differ: {odd}") if odd else None
    if isinstance(ref, bool) != isinstance(res, bool) or not isinstance(res, type(ref)):
        return Difference(path, "type", f"{_name(ref)} became {_name(res)}")
    return None if ref == res else Difference(path, "value", f"{ref!r} became {res!r}")


def _compare_numpy(ref: Any, res: Any, truth: Any, path: str, rules: Rules) -> Difference | None:
    relaxed = rules.relax_numpy_equality and not (hasattr(ref, "shape") and ref.shape)
    if not relaxed and type(ref) is not type(res):
        return Difference(path, "type", f"{_name(ref)} became {_name(res)}")
    plain = (v.item() if is_numpy(v) and not v.shape else v for v in (ref, res))
    ours, theirs = (torch.as_tensor(v, device="cpu") for v in plain)
    if truth is not None and not isinstance(truth, torch.Tensor):
        truth = torch.as_tensor(truth, device="cpu")
    return _compare_tensors(ours, theirs, truth, path, rules)


def _compare_tensors(ref: Any, res: Any, truth: Any, path: str, rules: Rules) -> Difference | None:
    if isinstance(ref, float) and isinstance(res, torch.Tensor):
        ref = torch.tensor(ref, dtype=res.dtype, device=res.device)
    if isinstance(res, float) and isinstance(ref, torch.Tensor):
        res = torch.tensor(res, dtype=ref.dtype, device=ref.device)
    if not isinstance(ref, torch.Tensor) or not isinstance(res, torch.Tensor):
        return Difference(path, "type", f"{_name(ref)} became {_name(res)}")
    if is_fake(ref) or is_fake(res):
        return Difference(
            path, "fake", "a FakeTensor has no values to compare; run the model on real tensors"
        )
    found = _compare_metadata(ref, res, path, rules)
    if found is not None or ref.numel() == 0 or ref.device.type == "meta":
        return found
    if rules.ignore_non_fp and not is_inexact(ref) and not ref.is_quantized:
        return None
    ref, res, truth = _dense(ref), _dense(res), _dense(truth)
    if not rules.exact_dtype:
        ref = ref.to(res.dtype)
    return _compare_values(ref, res, truth, path, rules)


def _compare_metadata(ref: torch.Tensor, res: torch.Tensor, path: str, rules: Rules) -> Difference | None:
    checks: list[tuple[str, Any, Any]] = [
        ("layout", ref.layout, res.layout),
        ("shape", tuple(ref.shape), tuple(res.shape)),
        ("device", str(ref.device), str(res.device)),
    ]
    if rules.exact_dtype:
        checks.append(("dtype", ref.dtype, res.dtype))
    if ref.is_quantized and res.is_quantized:
        checks.append(("quantisation scheme", ref.qscheme(), res.qscheme()))
    if rules.strides and ref.layout == torch.strided and ref.dim() == res.dim():
        checks.append(("stride", ref.stride(), res.stride()))
    for kind, ours, theirs in checks:
        if ours != theirs:
            return Difference(path, kind, f"{kind} {ours} became {theirs}")
    return None


def _compare_values(
    ref: torch.Tensor, res: torch.Tensor, truth: torch.Tensor | None, path: str, rules: Rules
) -> Difference | None:
    if close(ref, res, rules.tol, rules.equal_nan or rules.cos_similarity):
        return None
    if rules.cos_similarity:
        score = cosine(ref, res)
        if score >= COSINE_LIMIT:
            return None
        return Difference(path, "value", f"cosine similarity {score:.6f} is below {COSINE_LIMIT}")
    wide = isinstance(truth, torch.Tensor) and truth.dtype in (torch.float64, torch.complex128)
    if is_inexact(ref) and truth is not None and wide and truth.shape == ref.shape:
        return _compare_errors(ref, res, truth, path, rules)
    detail = miss(ref, res, rules.tol, rules.equal_nan)
    if is_inexact(ref):
        detail += f" (tolerance {rules.tol:g})"
    return Difference(path, "value", detail)


def _compare_errors(
    ref: torch.Tensor, res: torch.Tensor, truth: torch.Tensor, path: str, rules: Rules
) -> Difference | None:
    """The float64 rule: `res` may err a small multiple of what `ref` errs."""
    clean = not truth.isnan().any() and not res.isnan().any()
    if clean and ref.isnan().any() and close(truth.to(res.dtype), res, BETTER_THAN_NAN, rules.equal_nan):
        return None
    ref_error, res_error = rmse(truth, ref), rmse(truth, res)
    if math.isnan(ref_error) and math.isnan(res_error) and rules.equal_nan:
        return None
    factor = _multiplier(ref, rules)
    if res_error <= factor * ref_error + rules.tol / 10:
        return None
    detail = (
        f"root mean square error against float64 is {res_error:.6g}, reference has {ref_error:.6g} "
        f"(allowed factor {factor:g}, tolerance {rules.tol:g}); {miss(ref, res, rules.tol, rules.equal_nan)}"
    )
    return Difference(path, "value", detail)


def _multiplier(ref: torch.Tensor, rules: Rules) -> float:
    """How many times ref's error is allowed: more where few elements make the mean itself noisy."""
    if rules.use_larger_multiplier_for_smaller_tensor:
        if ref.numel() <= 10:
            return 10.0
        if ref.numel() <= 500:
            return 8.0
    one_by_one = ref.dim() == 4 and ref.shape[-1] == ref.shape[-2] == 1
    low = ref.dtype in (torch.float16, torch.bfloat16)
    return 3.0 if low or one_by_one or ref.numel() < 1000 or rules.tol >= 2e-2 else 2.0


def _dense(tensor: Any) -> Any:
    if not isinstance(tensor, torch.Tensor):
        return _scalar(tensor) if isinstance(tensor, (float, complex)) else tensor
    if tensor.is_quantized:
        return tensor.dequantize()
    return tensor if tensor.layout in (torch.strided, torch.jagged) else tensor.to_dense()


def _scalar(value: float | complex) -> torch.Tensor:
    dtype = torch.complex128 if isinstance(value, complex) else torch.float64
    return torch.tensor(value, dtype=dtype, device="cpu")


def _name(value: Any) -> str:
    return f"{type(value).__name__}" if not isinstance(value, (bool, int, str, type(None))) else repr(value)


def close(ref: torch.Tensor, res: torch.Tensor, tol: float, equal_nan: bool) -> bool:
    """Whether |ref - res| <= tol + tol * |res| everywhere; exact for integers and booleans.

    Example: `close(torch.ones(2), torch.ones(2) + 1e-6, 1e-4, False)`.
    """
    ref, res = _plain(ref), _plain(res)
    if not is_inexact(ref) and not is_inexact(res):
        return all(torch.equal(a, b) for a, b in pieces(ref, res))
    buffer: torch.Tensor | None = None
    for a, b in pieces(ref, res):
        if a.dtype == b.dtype and not a.is_complex():
            if buffer is None or buffer.shape != a.shape:
                buffer = torch.empty_like(a)
            torch.sub(a, b, out=buffer)
            low, high = torch.aminmax(buffer)
            # Not-a-number (also from inf - inf) fails this comparison and takes the full rule below.
            if max(-low.item(), high.item()) <= tol and not math.isnan(low.item()):
                continue
        for x, y in pieces(a, b, size=SMALL):
            if not torch.allclose(_wide(x), _wide(y), rtol=tol, atol=tol, equal_nan=equal_nan):
                return False
    return True


def miss(ref: torch.Tensor, res: torch.Tensor, tol: float, equal_nan: bool) -> str:
    """What a failed `close` has found, in words: how many elements, the largest difference and where it is."""
    ref, res = _plain(ref), _plain(res)
    exact = not is_inexact(ref) and not is_inexact(res)
    beyond, worst, worst_at = 0, -1.0, -1
    flat_ref, flat_res = ref.reshape(-1), res.reshape(-1)
    start = 0
    for a, b in pieces(flat_ref, flat_res, size=SMALL):
        if exact:
            bad = a != b
        else:
            bad = ~torch.isclose(_wide(a), _wide(b), rtol=tol, atol=tol, equal_nan=equal_nan)
        beyond += int(bad.sum())
        distance = torch.where(bad, (_double(a) - _double(b)).abs(), 0.0).nan_to_num(nan=math.inf)
        peak = float(distance.max())
        if bool(bad.any()) and peak > worst:
            worst, worst_at = peak, start + int(distance.argmax())
        start += a.numel()
    where = list(unravel(max(worst_at, 0), tuple(ref.shape)))
    return f"{beyond} of {ref.numel()} elements differ; largest difference {worst:.6g} at {where}"


def rmse(truth: torch.Tensor, value: torch.Tensor) -> float:
    """Root mean square of the difference, in float64, a piece at a time; 0 for empty tensors."""
    if truth.numel() == 0:
        return 0.0
    total = 0.0
    for a, b in pieces(_plain(truth), _plain(value), size=SMALL):
        total += float((_double(a) - _double(b)).abs().square().sum())
    return math.sqrt(total / truth.numel())


def cosine(ref: torch.Tensor, res: torch.Tensor) -> float:
    """Cosine of the angle between two tensors seen as vectors; 1 when both are zero."""
    dot = norm_ref = norm_res = 0.0
    for a, b in pieces(_plain(ref), _plain(res), size=SMALL):
        x, y = _double(a), _double(b)
        dot += float((x * y.conj()).real.sum()) if x.is_complex() else float((x * y).sum())
        norm_ref += float(x.abs().square().sum())
        norm_res += float(y.abs().square().sum())
    if norm_ref == 0.0 and norm_res == 0.0:
        return 1.0
    return dot / max(math.sqrt(norm_ref) * math.sqrt(norm_res), 1e-300)


def unravel(position: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The index of a flat position; `unravel(5, (2, 3)) == (1, 2)`."""
    return tuple(map(int, torch.unravel_index(torch.tensor(position, device="cpu"), shape)))


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    return tensor.resolve_conj().resolve_neg() if tensor.is_complex() else tensor


def _wide(piece: torch.Tensor) -> torch.Tensor:
    # float8 has no arithmetic; float16 and bfloat16 would round the tolerance itself.
    return piece.float() if piece.is_floating_point() and piece.dtype.itemsize < 4 else piece


def _double(piece: torch.Tensor) -> torch.Tensor:
    return piece.to(torch.complex128 if piece.is_complex() else torch.float64)
