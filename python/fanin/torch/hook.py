"""A DDP communication hook: gradients through the switch, everything else on the user's own backend.

>>> model.register_comm_hook(fanin.ddp_hook_state(), fanin.ddp_hook)
"""

# No `from __future__ import annotations` here: DDP compares the hook's annotations as objects.

import itertools
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import AllreduceOptions, PrefixStore

from fanin.torch.collectives import Collectives
from fanin.torch.group import Group

_counter = itertools.count()


class DdpHookState(Collectives):
    """A session beside the user's process group; made by ``ddp_hook_state``."""

    def __init__(self, group: Group) -> None:
        self._group = group

    def average(self, bucket: dist.GradBucket) -> Any:
        """The work of averaging a bucket, which messages and the switch's counts name by its number."""
        options = AllreduceOptions()
        options.reduceOp = dist.ReduceOp.AVG
        return self._all_reduce_each([bucket.buffer()], options, f"bucket {bucket.index()}")

    def close(self) -> None:
        """Leaves the job; process exit does it too."""
        self._group.close()


def ddp_hook_state(process_group: Any = None, timeout: timedelta = timedelta(minutes=5)) -> DdpHookState:
    """Joins a job with the ranks of `process_group` (default: all); collective over that group.

    Raises ``DistBackendError`` that names the missing ranks after `timeout`.
    """
    group = process_group or dist.group.WORLD
    if group is None:
        raise RuntimeError("call torch.distributed.init_process_group before fanin.ddp_hook_state")
    # Every rank makes its hooks in the same order, so the counter is the same on all of them.
    name = f"ddp-hook-{group.group_name}-{next(_counter)}"
    store = PrefixStore(f"{name}/", dist.distributed_c10d._get_default_store())
    return DdpHookState(Group(store, group.rank(), group.size(), timeout, name))


def ddp_hook(state: DdpHookState, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """Averages one gradient bucket through the switch: with a hook set, DDP does not divide by itself."""
    return state.average(bucket).get_future().then(_first)


def _first(future: torch.futures.Future[Any]) -> Tensor:
    return future.value()[0]
