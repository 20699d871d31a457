"""Accuracy curves of data-parallel training whose gradients are summed by an accumulator.

All workers live in one process: each computes the gradient of its own mini-batch on the same weights, and the sum is
what a switch would have answered. Runs of one seed see the same weights and the same batches, so that nothing but the
sums differs. ``fanin reproduce fpisa fig9`` drives this over stdin and stdout, as :mod:`fanin.bench_gloo` is driven.

With ``format`` float16, the model computes with weights that are rounded to float16, the loss is scaled, and each
worker's gradient is rounded to float16; the weights that are updated are float32 (mixed precision with master weights,
as apex does it, but that arithmetic inside the model is float32).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from fanin import bench_gloo, recording
from fanin.numerics import Accumulator
from fanin.numerics.models import TASKS, Task

#: Keeps float16's small gradients away from zero.
LOSS_SCALE = 1024.0
_MOMENTUM = 0.9


class Run:
    """One training run. `request` has model, format, accumulator, workers, batch, rate, steps, points and seed."""

    def __init__(self, request: dict[str, Any]) -> None:
        torch.manual_seed(request["seed"])
        folder = request.get("data")
        self.task: Task = TASKS[request["model"]](Path(folder) if folder else None)
        self.model = self.task.make()
        self.parameters = list(self.model.parameters())
        self.master = [parameter.detach().clone() for parameter in self.parameters]
        self.velocity = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.is_half = request["format"] == "float16"
        self.workers, self.batch, self.rate = request["workers"], request["batch"], request["rate"]
        self.accumulator = Accumulator(request["accumulator"], workers=self.workers, dtype=request["format"])
        self.generators = [torch.Generator().manual_seed(1000 * request["seed"] + rank) for rank in range(self.workers)]
        self.losses: list[float] = []
        #: Elements whose sum was no number, left out of the update.
        self.lost_elements = 0

    def step(self) -> list[list[Any]]:
        """One step; returns each worker's gradients, by parameter, as they were summed."""
        if self.is_half:
            self._load([value.half().float() for value in self.master])
        gradients = [self._gradient(generator) for generator in self.generators]
        flat = [torch.cat([part.flatten() for part in parts]) for parts in gradients]
        total = self.accumulator.sum(flat)
        is_number = torch.isfinite(total)
        self.lost_elements += int((~is_number).sum())
        scale = self.workers * (LOSS_SCALE if self.is_half else 1.0)
        self._update(torch.where(is_number, total, 0.0) / scale)
        return gradients

    def _gradient(self, generator: torch.Generator) -> list[Any]:
        inputs, answers = self.task.batch(self.batch, generator)
        loss = nn.functional.cross_entropy(self.model(inputs), answers)
        gradients = torch.autograd.grad(loss * LOSS_SCALE if self.is_half else loss, self.parameters)
        self.losses.append(loss.item())
        return [gradient.half().float() for gradient in gradients] if self.is_half else list(gradients)

    def _update(self, mean: torch.Tensor) -> None:
        parts = mean.split([parameter.numel() for parameter in self.parameters])
        for value, velocity, part in zip(self.master, self.velocity, parts, strict=True):
            velocity.mul_(_MOMENTUM).add_(part.view_as(velocity))
            value.sub_(self.rate * velocity)
        self._load(self.master)

    def _load(self, values: list[Any]) -> None:
        with torch.no_grad():
            for parameter, value in zip(self.parameters, values, strict=True):
                parameter.copy_(value)

    def accuracy(self) -> float:
        """The share of right answers on the test data."""
        right = count = 0
        with torch.no_grad():
            for inputs, answers in self.task.test:
                right += int((self.model(inputs).argmax(-1) == answers).sum())
                count += answers.numel()
        return right / count

    def take_loss(self) -> float:
        """The mean training loss since the last call."""
        loss = sum(self.losses) / len(self.losses) if self.losses else float("nan")
        self.losses.clear()
        return loss


class Recorder:
    """Keeps some steps' gradients and writes them as ``fanin.record`` does."""

    def __init__(self, run: Run, folder: str, steps: list[int]) -> None:
        self._run, self._folder, self._steps = run, Path(folder), frozenset(steps)
        self._names = [name for name, _ in run.model.named_parameters()]
        self._kept: dict[int, list[list[Any]]] = {}

    def offer(self, step: int, gradients: list[list[Any]]) -> None:
        """Keeps them if the step is to be recorded."""
        if step in self._steps:
            self._kept[step] = gradients

    def close(self) -> None:
        """Writes a file for each worker."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for rank in range(self._run.workers):
            tensors = (
                (recording.tensor_name(step, rank, name), gradient.numpy())
                for step, gradients in self._kept.items()
                for name, gradient in zip(self._names, gradients[rank], strict=True)
            )
            metadata = {"rank": str(rank), "world_size": str(self._run.workers), "every": "0"}
            recording.write(self._folder / f"rank-{rank}.safetensors", tensors, metadata)


def train(request: dict[str, Any]) -> dict[str, Any]:
    """One run: points ``[step, training loss, test accuracy]``, the accumulator's counts, elements that were left out.

    `request` may name a folder in ``record``, for the gradients of the steps in ``record_steps``.
    """
    run = Run(request)
    steps, points = request["steps"], []
    recorder = Recorder(run, request["record"], request["record_steps"]) if request.get("record") else None
    every = max(1, steps // request["points"])
    for step in range(steps):
        gradients = run.step()
        if recorder is not None:
            recorder.offer(step, gradients)
        if (step + 1) % every == 0 or step + 1 == steps:
            points.append([step + 1, run.take_loss(), run.accuracy()])
    if recorder is not None:
        recorder.close()
    elements = sum(value.numel() for value in run.master)
    reply = {"points": points, "counts": run.accumulator.counts, "lost_elements": run.lost_elements}
    return {**reply, "additions": elements * steps * (run.workers - 1), "elements": elements * steps}


def _probe(_: dict[str, Any], __: dict[str, Any]) -> dict[str, Any]:
    return {"version": torch.__version__}


def _train(_: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    torch.set_num_threads(request.get("threads", 1))
    return train(request)


if __name__ == "__main__":
    bench_gloo.main({"probe": _probe, "train": _train})
