"""One rank of ``fanin bench ddp``, driven over stdin and stdout as :mod:`fanin.bench_gloo` is.

A decoder-only transformer is trained on random tokens in three copies with the same weights: under DDP over a fanin
group, under DDP over gloo, and alone. ``round`` times steps of one of them, or the all-reduces of its gradients without
a model around them, in DDP's buckets. The steps alone tell how much of the communication the backward pass hid.
"""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fanin import bench_gloo

_BATCH = 4
_TOKENS = 64
_VOCABULARY = 2048
_WIDTH = 256


class Transformer(nn.Module):
    """Token embedding, four causal layers of 256 with 4 heads, a head over the vocabulary: 4.2 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_VOCABULARY, _WIDTH)
        layer = nn.TransformerEncoderLayer(_WIDTH, 4, 4 * _WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(_WIDTH, _VOCABULARY)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(_TOKENS), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Scores of the next token, ``(batch, tokens, vocabulary)``."""
        hidden = self.layers(self.embedding(tokens), mask=self.mask, is_causal=True)
        scores: torch.Tensor = self.head(hidden)
        return scores


class Trainer:
    """One copy of the model with its optimizer."""

    def __init__(self, group: dist.ProcessGroup | None, bucket_bytes: int) -> None:
        torch.manual_seed(1)
        self.model: nn.Module = Transformer()
        if group is not None:
            bucket_mb = bucket_bytes / (1 << 20)
            self.model = DistributedDataParallel(self.model, process_group=group, bucket_cap_mb=bucket_mb)
        # Rates that change nothing visible: all copies must go on computing the same.
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-6)

    def step(self, tokens: torch.Tensor) -> None:
        """Forward, backward, update."""
        self.optimizer.zero_grad()
        scores = self.model(tokens[:, :-1])
        nn.functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        self.optimizer.step()

    def gradients(self) -> torch.Tensor:
        """All of them, flat."""
        return torch.cat(
            [parameter.grad.flatten() for parameter in self.model.parameters() if parameter.grad is not None]
        )


def _connect(state: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    import fanin.torch

    fanin.torch.register()
    bench_gloo.OPERATIONS["connect"](state, request)
    # Ranks share the cores; a pool of threads in each would only wait for the others'.
    torch.set_num_threads(1)
    state["groups"] = {"fanin": dist.new_group(backend="fanin"), "gloo": dist.group.WORLD}
    generator = torch.Generator().manual_seed(request["rank"])
    state["tokens"] = torch.randint(_VOCABULARY, (_BATCH, _TOKENS + 1), generator=generator)
    return {}


def _build(state: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    bucket_bytes = state["bucket_bytes"] = request["bucket_bytes"]
    trainers = {name: Trainer(group, bucket_bytes) for name, group in state["groups"].items()}
    state["trainers"] = trainers | {"local": Trainer(None, bucket_bytes)}
    for trainer in state["trainers"].values():
        trainer.step(state["tokens"])
    size = state["trainers"]["local"].gradients().numel()
    return {"gradient_bytes": 4 * size, "wrong_elements": _count_different(state)}


def _count_different(state: dict[str, Any]) -> int:
    """Gradient elements that fanin and gloo do not agree on within what float32 sums may differ by."""
    ours, theirs = (state["trainers"][name].gradients() for name in ("fanin", "gloo"))
    bound = 1e-4 * theirs.abs() + 1e-5 * theirs.abs().max()
    return int(((ours - theirs).abs() > bound).sum())


def _round(state: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    name, steps = request["contender"], request["repeat"]
    starts_ns, ends_ns = [], []
    buckets = list(state["trainers"]["local"].gradients().split(state["bucket_bytes"] // 4))
    for _ in range(steps):
        dist.barrier()
        starts_ns.append(time.monotonic_ns())
        if request["alone"]:
            works = [dist.all_reduce(bucket, group=state["groups"][name], async_op=True) for bucket in buckets]
            for work in works:
                work.wait()
        else:
            state["trainers"][name].step(state["tokens"])
        ends_ns.append(time.monotonic_ns())
    return {"starts_ns": starts_ns, "ends_ns": ends_ns, "wrong_elements": 0}


if __name__ == "__main__":
    bench_gloo.main(bench_gloo.OPERATIONS | {"connect": _connect, "build": _build, "round": _round})
