"""Records when the gradients of a training step are ready and how long they take to be summed, for ``fanin advise``.

>>> with fanin.record_step(ddp_model, "step.json"):
...     train(ddp_model)
"""

# No `from __future__ import annotations` here: DDP compares the hook's annotations as objects.

import json
import os
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn

#: What the file's ``content`` says.
CONTENT: Final = "fanin step 1"
#: DDP cuts its buckets anew after the first step, and the second pays for that.
WARM_UP_STEPS: Final = 3


class _Moment:
    """Now, or on a GPU when what has been submitted so far is done."""

    def __init__(self, device: torch.device) -> None:
        self.event: Any = None
        self.seconds = 0.0
        if device.type == "cuda":
            self.event = torch.cuda.Event(enable_timing=True)
            self.event.record(torch.cuda.current_stream(device))
        else:
            self.seconds = time.perf_counter()

    def since(self, start: "_Moment") -> float:
        """Seconds from `start`; on a GPU only once both have passed."""
        if self.event is None:
            return self.seconds - start.seconds
        self.event.synchronize()
        return float(start.event.elapsed_time(self.event)) / 1e3


@dataclass
class _Bucket:
    element_count: int
    element_bytes: int
    ready: _Moment
    done: _Moment | None = None


@dataclass
class _Step:
    start: _Moment
    buckets: list[_Bucket] = field(default_factory=list)
    end: _Moment | None = None


class StepRecorder:
    """A recording under way; a context manager. Made by ``fanin.record_step``."""

    def __init__(self, model: nn.parallel.DistributedDataParallel, file: Path, steps: int, label: str) -> None:
        self.file = file
        """Where ``close`` puts the step of rank 0."""
        self._label, self._wanted = label, steps
        self._group = model.process_group
        self._device = next(parameter.device for parameter in model.parameters() if parameter.requires_grad)
        self._steps: list[_Step] = []
        self._seen = 0
        self._is_closed = False
        self._current: _Step | None = None
        model.register_comm_hook(None, self._reduce)
        # A step begins where the model is called; calls without gradients (validation) are none.
        self._hook = model.register_forward_pre_hook(lambda *_: self._begin())

    @property
    def is_complete(self) -> bool:
        """Whether as many steps as were asked for have been recorded; training goes on unchanged."""
        return len(self._steps) >= self._wanted

    def close(self) -> None:
        """Ends the recording; rank 0 writes the file. Harmless twice.

        Raises ``RuntimeError`` if no whole step was seen.
        """
        if self._is_closed:
            return
        self._is_closed = True
        self._hook.remove()
        self._current = None
        if dist.get_rank(self._group) != 0:
            return
        profile = self._profile()
        self.file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self.file.with_name(f"{self.file.name}.{os.getpid()}.tmp")
        unfinished.write_text(json.dumps(profile, indent=1) + "\n")
        unfinished.replace(self.file)

    def __enter__(self) -> "StepRecorder":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            # What stopped the training is the news, not that too few steps were seen.
            self._is_closed = True
            self._hook.remove()

    def _begin(self) -> None:
        if not torch.is_grad_enabled() or self._is_closed:
            return
        moment = _Moment(self._device)
        if self._current is not None and not self._current.buckets:
            # A call of the same step: gradients are being accumulated (`no_sync`), or the loss needs several calls.
            return
        step, self._current = self._current, None
        if step is not None:
            step.end = moment
            self._seen += 1
            if self._seen > WARM_UP_STEPS and not self.is_complete:
                self._steps.append(step)
        if not self.is_complete:
            self._current = _Step(moment)

    def _reduce(self, _state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """What DDP does without a hook: the mean over all ranks; it notes when."""
        gradients = bucket.buffer()
        noted = None
        if self._current is not None:
            noted = _Bucket(gradients.numel(), gradients.element_size(), _Moment(self._device))
            self._current.buckets.append(noted)
        gradients.div_(dist.get_world_size(self._group))
        work = dist.all_reduce(gradients, group=self._group, async_op=True)

        def finish(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
            if noted is not None:
                noted.done = _Moment(self._device)
            return future.value()[0]

        return work.get_future().then(finish)

    def _profile(self) -> dict[str, Any]:
        counts = [len(step.buckets) for step in self._steps]
        if not counts:
            raise RuntimeError(
                f"fanin.record_step saw {self._seen} whole steps and leaves out the first {WARM_UP_STEPS}: train at "
                f"least {WARM_UP_STEPS + 2} steps within it"
            )
        # Steps in which some parameters had no part have other buckets; the usual ones are kept.
        usual = statistics.mode(counts)
        steps = [step for step in self._steps if len(step.buckets) == usual]
        ready = [[bucket.ready.since(step.start) for bucket in step.buckets] for step in steps]
        done = [[_done(bucket).since(step.start) for bucket in step.buckets] for step in steps]
        ends = [_end(step).since(step.start) for step in steps]
        tails = [max(0.0, end - max(*at, *finished)) for end, at, finished in zip(ends, ready, done, strict=True)]
        busy = [_union(list(zip(at, finished, strict=True))) for at, finished in zip(ready, done, strict=True)]
        return {
            "content": CONTENT,
            "model": self._label,
            "steps": len(steps),
            "world_size": dist.get_world_size(self._group),
            "element_bytes": 4 if steps[0].buckets[0].element_bytes >= 4 else 2,
            "buckets": [
                {"bytes": 4 * bucket.element_count, "ready_seconds": statistics.median(at[k] for at in ready)}
                for k, bucket in enumerate(steps[0].buckets)
            ],
            "tail_seconds": statistics.median(tails),
            "step_seconds": statistics.median(ends),
            "communication_seconds": statistics.median(busy),
        }


def _done(bucket: _Bucket) -> _Moment:
    # A step that has an end has waited for all of its buckets.
    assert bucket.done is not None
    return bucket.done


def _end(step: _Step) -> _Moment:
    assert step.end is not None
    return step.end


def _union(spans: list[tuple[float, float]]) -> float:
    """The time that the spans cover, seconds."""
    covered, until = 0.0, 0.0
    for begin, end in sorted(spans):
        covered += max(0.0, end - max(begin, until))
        until = max(until, end)
    return covered


def record_step(
    model: nn.parallel.DistributedDataParallel,
    file: str | Path,
    *,
    steps: int = 20,
    label: str | None = None,
) -> StepRecorder:
    """Begins to record `model`'s training steps; rank 0 writes their medians as JSON, for ``fanin advise --step FILE``.

    Every rank calls it, before training, with a model under DDP and any backend. A step is from the first call of the
    model with gradients to the first call after buckets were reduced, so that accumulated gradients (``no_sync``) make
    one step; `steps` of them are recorded after three that are left out. The recorder takes the place
    of DDP's communication hook and averages the gradients as DDP does without one. `label` names the model in the
    advice, and is its class's name if not given.

    Raises ``TypeError`` for a model that is not under DDP, ``ValueError`` for `steps` below 1, and ``RuntimeError``,
    from DDP, where the model has a communication hook already.
    """
    if not isinstance(model, nn.parallel.DistributedDataParallel):
        raise TypeError(
            "fanin.record_step needs a model under DistributedDataParallel, which cuts gradients into buckets; this is"
            f" a {type(model).__name__}"
        )
    if steps < 1:
        raise ValueError(f"steps={steps} records nothing: give 1 or more")
    return StepRecorder(model, Path(file), steps, label or type(model.module).__name__)
