"""The torch backend: ``torch.distributed.init_process_group("fanin")``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy
import torch
import torch.distributed as dist

from fanin.torch.group import Group, live_groups
from fanin.torch.process_group import FaninProcessGroup

__all__ = ["empty", "register"]


def register() -> None:
    """Makes ``"fanin"`` known to c10d; torch 2.14 and later call it through an entry point. Safe to call twice."""
    if "FANIN" in dist.Backend._plugins:
        return
    # A name registered for cuda makes c10d touch the device even on machines without one.
    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    dist.Backend.register_backend("fanin", _create, extended_api=True, devices=devices)


def empty(size: int | Sequence[int], dtype: torch.dtype = torch.float32, group: Any = None) -> torch.Tensor:
    """A CPU tensor, zeroed, that the ranks of one host sum where it lies, without a copy.

    That takes effect where all ranks of `group` (default: the world) are on one host and use such tensors for input and
    output of a collective; elsewhere it is a tensor like any other.
    Raises ``ValueError`` for a group of another backend.
    """
    name = (group or dist.group.WORLD).group_name
    session = next((found.session(torch.device("cpu")) for found in live_groups() if found.name == name), None)
    if session is None:
        raise ValueError(
            f"process group {name!r} has no fanin session on this rank: it has one rank, or another backend"
        )
    shape = (size,) if isinstance(size, int) else tuple(size)
    byte_count = prod(shape) * dtype.itemsize
    memory = torch.from_numpy(numpy.asarray(session.allocate(max(1, byte_count))))
    return memory[:byte_count].view(dtype).reshape(shape)


def _create(options: Any, _: Any) -> Any:
    """c10d's constructor hook; collective over the group."""
    name = str(options.group_id or "default")
    group = Group(options.store, options.group_rank, options.group_size, options.timeout, name)
    if _is_whole_group(options):
        return FaninProcessGroup(group)
    from fanin.torch.backend import FaninBackend

    return FaninBackend(group)


def _is_whole_group(options: Any) -> bool:
    """Whether no other backend shares the group; then the adapter may be the group itself."""
    if not _has_python_backends():
        return True
    group = getattr(options, "process_group", None)
    if group is None:
        return True
    # DETAIL wraps backends, not groups, to compare what the ranks call.
    if dist.get_debug_level() == dist.DebugLevel.DETAIL or os.environ.get("TORCH_DISTRIBUTED_DEBUG") == "DETAIL":
        return False
    # In "cpu:fanin,cuda:nccl" c10d takes the other device's backend for the default one.
    return group._get_backend_name() == "custom" and not group._device_types


def _has_python_backends() -> bool:
    major, minor = (int(part) for part in torch.__version__.split(".")[:2])
    return (major, minor) >= (2, 14)
