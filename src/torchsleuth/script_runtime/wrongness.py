"""Which outputs of a compiled run are wrong, given eager's: the plain check a written script carries along.

The text of this file is pasted into written scripts: torch and the standard library only. Where the recorded
verdict measured how far rounding can move an output, that distance is the tolerance; else one is derived from
the dtype.
"""

import torch

# Per dtype: relative to the largest magnitude of the output, what fused and reordered arithmetic may differ by.
_WRONG_RELATIVE = {torch.float64: 1e-9, torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 6e-2}


def wrong_outputs(eager, compiled, tolerances=None, strict=False):
    """(path, sentence) for each leaf of (outputs, inputs after the run, gradients) that is too far from eager's.

    >>> wrong_outputs(([torch.ones(2)], []), ([torch.zeros(2)], []))
    [('outputs[0]', 'differs from eager by up to 1 at [0], 0.001 allowed')]
    """
    found = []
    for label, wanted, got in zip(("outputs", "inputs", "gradients"), eager, compiled):
        for path, a, b in _wrong_pairs(label, wanted, got):
            why = _wrong_leaf(a, b, None if strict else (tolerances or {}).get(path), strict)
            if why:
                found.append((path, why))
    return found


def _wrong_pairs(path, a, b):
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        if len(a) != len(b):
            yield path, len(a), len(b)
            return
        for i, (x, y) in enumerate(zip(a, b)):
            yield from _wrong_pairs(f"{path}[{i}]", x, y)
    elif isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        for key in a:
            yield from _wrong_pairs(f"{path}[{key!r}]", a[key], b[key])
    else:
        yield path, a, b


def _wrong_leaf(a, b, allowed, strict):
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        same = type(a) is type(b) and (a == b or a != a)
        return (
            None
            if same or isinstance(a, torch.Tensor) == isinstance(b, torch.Tensor)
            else "is another kind of value"
        )
    if a.shape != b.shape or a.dtype != b.dtype:
        return f"is {b.dtype}{list(b.shape)}, eager's is {a.dtype}{list(a.shape)}"
    if a.numel() == 0:
        return None
    a, b = a.detach(), b.detach()
    if not (a.is_floating_point() or a.is_complex()):
        count = int((a != b).sum())
        return f"differs from eager in {count} of {a.numel()} elements" if count > (allowed or 0) else None
    if allowed is None:
        finite = a.abs()[torch.isfinite(a)]
        scale = float(finite.max()) if finite.numel() else 0.0
        real = a.dtype if not a.is_complex() else a.real.dtype
        allowed = 0.0 if strict else _WRONG_RELATIVE.get(real, 0.25) * max(scale, 1e-30)
    wide = torch.complex128 if a.is_complex() else torch.float64
    distance = (a.to(wide) - b.to(wide)).abs()
    # Equal infinities and NaN in the same place are agreement; NaN or infinity in one alone is not.
    agree = (a == b) | (torch.isnan(a) & torch.isnan(b))
    distance = torch.where(agree, torch.zeros_like(distance), torch.nan_to_num(distance, nan=float("inf")))
    worst = int(distance.argmax())
    largest = float(distance.flatten()[worst])
    if largest <= allowed:
        return None
    index = [int(i) for i in torch.unravel_index(torch.tensor(worst, device="cpu"), a.shape)]
    return f"differs from eager by up to {largest:.4g} at {index}, {allowed:.4g} allowed"
