"""Error bounds that tests compare against, computed from the inputs alone."""

from __future__ import annotations

import math

import torch
from fanin.config import load


def sum_bound(inputs: list[torch.Tensor], divisor: float = 1.0) -> float:
    """Largest |fanin sum − exact sum| that block fixed point allows (SwitchML App. C: n/f), plus one rounding.

    `inputs` are all ranks' tensors; the block's scale is at least that of the whole tensor's largest value.
    """
    size = len(inputs)
    largest = max(float(tensor.double().abs().max()) for tensor in inputs)
    if largest == 0:
        return 0.0
    scale = 2.0 ** (31 - math.ceil(math.log2(size)) - (math.floor(math.log2(largest)) + 1))
    rounding = size * largest * torch.finfo(inputs[0].dtype).eps
    # ATP's fixed point has one step for all tensors, 10^-8 (ATP §3.8); what leaves its range is added as floats.
    step = max(1 / scale, 1e-8) if load().algorithm == "atp" else 1 / scale
    return (size * step + rounding) / divisor
