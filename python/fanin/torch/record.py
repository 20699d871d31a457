"""Records the gradients of a training run, each rank its own, before they are summed.

>>> with fanin.record(model, "gradients", every=50):
...     train(model)
"""

from __future__ import annotations

import atexit
import re
import sys
from pathlib import Path
from typing import Any

import numpy
import torch
import torch.distributed as dist
from torch import Tensor, nn

from fanin.recording import tensor_name, write

#: What one rank keeps in memory until the recording is closed, bytes.
BYTES_MAX = 64 << 20


class Recorder:
    """A recording under way; a context manager. Made by ``fanin.record``."""

    def __init__(
        self, parameters: dict[str, nn.Parameter], file: Path, rank: int, world_size: int, every: int, bytes_max: int
    ) -> None:
        self.file = file
        """Where ``close`` puts the gradients of this rank."""
        self.is_full = False
        """Whether a step was left out because it would have exceeded ``bytes_max``; none is recorded after it."""
        self._parameters = parameters
        self._rank, self._world_size, self._every = rank, world_size, every
        self._bytes_left = bytes_max
        self._step_bytes = sum(4 * parameter.numel() for parameter in parameters.values())
        self._step = -1
        #: Parameters with a gradient in the backward pass under way.
        self._fired: set[str] = set()
        self._steps: dict[int, dict[str, Any]] = {}
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._hook(name)) for name, parameter in parameters.items()
        ]
        atexit.register(self.close)

    @property
    def steps(self) -> list[int]:
        """The steps that were recorded so far, counted from 0."""
        return sorted(self._steps)

    def close(self) -> None:
        """Ends the recording and writes the file; the end of the program does it too. Harmless twice."""
        if not self._hooks:
            return
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        atexit.unregister(self.close)
        # A parameter that a step did not use gets zeros: readers want the same parameters of all ranks at all steps.
        tensors = (
            (tensor_name(step, self._rank, name), self._steps[step].get(name, numpy.zeros(parameter.shape, "f4")))
            for step in self.steps
            for name, parameter in self._parameters.items()
        )
        metadata = {"rank": str(self._rank), "world_size": str(self._world_size), "every": str(self._every)}
        self.file.parent.mkdir(parents=True, exist_ok=True)
        write(self.file, tensors, metadata)
        if self.is_full:
            print(
                f"fanin.record: {self.file} is full with {len(self._steps)} steps; raise bytes_max or every for more",
                file=sys.stderr,
            )

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _hook(self, name: str) -> Any:
        def take(parameter: Tensor) -> None:
            # The second condition is for a backward pass that failed half-way, which tells nobody of its end.
            if not self._fired or name in self._fired:
                self._fired.clear()
                torch.autograd.Variable._execution_engine.queue_callback(self._fired.clear)
                self._begin()
            self._fired.add(name)
            gradients = self._steps.get(self._step)
            if gradients is not None and parameter.grad is not None:
                dense = parameter.grad.detach().to_dense()
                gradients[name] = dense.to("cpu", torch.float32, copy=True).contiguous().numpy()

        return take

    def _begin(self) -> None:
        self._step += 1
        if self._step % self._every or self.is_full:
            return
        if self._bytes_left < self._step_bytes:
            self.is_full = True
            return
        self._bytes_left -= self._step_bytes
        self._steps[self._step] = {}


def record(
    model: nn.Module,
    folder: str | Path,
    *,
    every: int = 1,
    bytes_max: int = BYTES_MAX,
    only: str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
) -> Recorder:
    """Begins to record `model`'s gradients, as float32, to ``folder/rank-R.safetensors``; every rank calls it.

    What is recorded is each rank's own gradient, before DDP averages it. A step is a backward pass; every `every`-th is
    recorded, whole, until the next would exceed `bytes_max` bytes of this rank. `only` is a regular expression that is
    searched for in the parameters' names. `rank` and `world_size` default to those of ``torch.distributed``, or 0, 1.

    Raises ``ValueError`` for a setting that records nothing, and ``TypeError`` for parameters that ranks hold parts of
    (FSDP), whose gradients have been summed already.
    """
    inner = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
    found = {name: parameter for name, parameter in inner.named_parameters() if parameter.requires_grad}
    parameters = {name: parameter for name, parameter in found.items() if only is None or re.search(only, name)}
    if not parameters:
        raise ValueError(f"no parameter to record: only={only!r} matches none of {', '.join(found) or 'no parameters'}")
    if every < 1:
        raise ValueError(f"every={every} records nothing: give 1 or more")
    step_bytes = sum(4 * parameter.numel() for parameter in parameters.values())
    if bytes_max < step_bytes:
        raise ValueError(
            f"bytes_max={bytes_max} does not hold one step, which has {step_bytes} bytes: raise it, or name some "
            "layers with only="
        )
    for name, parameter in parameters.items():
        if hasattr(parameter, "placements") or "FlatParameter" in type(parameter).__name__:
            raise TypeError(f"{name} is a part of a parameter (FSDP): record the model without FSDP")
    is_distributed = dist.is_available() and dist.is_initialized()
    if rank is None:
        rank = dist.get_rank() if is_distributed else 0
    if world_size is None:
        world_size = dist.get_world_size() if is_distributed else 1
    return Recorder(parameters, Path(folder) / f"rank-{rank}.safetensors", rank, world_size, every, bytes_max)
