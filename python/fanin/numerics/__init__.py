"""Accumulators by name, on tensors of one process: the sums that workers would get from a switch, without any network.

>>> fanin.numerics.sum([gradient0, gradient1], accumulator="fpisa-a")

The names, and what each does to a value, are those of ``fanin numerics compare``
(docs/guides/comparing-accumulators.md). Nothing here needs torch; tensors of torch are taken as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy

from fanin import _fanin

#: Names of all accumulators.
ACCUMULATORS: Final[tuple[str, ...]] = tuple(_fanin.accumulator_names())


class Accumulator:
    """One way of adding `workers` tensors of a data type: float32, float16 or bfloat16.

    Raises ``ValueError`` for a name, a type or a number of workers that there is no accumulator for.
    """

    def __init__(self, name: str, *, workers: int, dtype: str = "float32") -> None:
        self.name, self.workers, self.dtype = name, workers, dtype
        self._inner = _fanin.Accumulator(name, dtype, workers)

    @property
    def counts(self) -> dict[str, int]:
        """Additions and read-outs by cause, over all sums so far: an element counts once for each.

        The causes are overflow, saturation, overwrite, left_shift, flushed_to_zero and lost_bits.
        """
        return self._inner.counts()

    def sum(self, tensors: Sequence[Any]) -> Any:
        """The sum of numpy arrays or torch tensors of one shape, in the order given, as a new one of the first's kind.

        Each is rounded to the accumulator's data type first. Of numpy arrays the sum is float16 where that is the
        accumulator's type, else float32, which holds every bfloat16; of torch tensors it has their type.

        Raises ``ValueError`` if there are not as many tensors as workers, or their shapes differ.
        """
        arrays = [_floats(tensor) for tensor in tensors]
        if any(array.shape != arrays[0].shape for array in arrays):
            raise ValueError(f"tensors of shapes {sorted({array.shape for array in arrays})}: give equal ones")
        total = numpy.frombuffer(self._inner.sum([array.tobytes() for array in arrays]), "<f4")
        total = total.reshape(arrays[0].shape)
        if hasattr(tensors[0], "detach"):
            import torch

            return torch.from_numpy(total.copy()).to(tensors[0].device, tensors[0].dtype)
        return total.astype(numpy.float16 if self.dtype == "float16" else numpy.float32)


def sum(tensors: Sequence[Any], *, accumulator: str = "block-fixed", dtype: str = "float32") -> Any:
    """The sum of tensors by one accumulator: ``Accumulator(...).sum(tensors)``."""
    return Accumulator(accumulator, workers=len(tensors), dtype=dtype).sum(tensors)


def _floats(tensor: Any) -> Any:
    if hasattr(tensor, "detach"):
        tensor = tensor.detach().float().cpu().numpy()
    array = numpy.asarray(tensor)
    if array.dtype.kind != "f":
        raise ValueError(f"a tensor of {array.dtype} has no float sum: give floats")
    return numpy.ascontiguousarray(array, "<f4")
