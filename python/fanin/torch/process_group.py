"""Adapter that is the whole process group: every torch since 2.9, and the cheapest path.

Python callers reach the methods without passing through C++, so their handles answer ``is_completed`` too. Whatever is
not overridden here runs on the gloo backend registered inside.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from fanin.torch.collectives import Collectives
from fanin.torch.group import Group

_CUSTOM = ProcessGroup.BackendType.CUSTOM


class FaninProcessGroup(Collectives, ProcessGroup):
    """A c10d ``ProcessGroup`` that consists of this group alone."""

    def __init__(self, group: Group) -> None:
        # The form with a store builds the C++ base class instead of the overridable one.
        super().__init__(group.rank, group.size)
        self._group = group
        self._set_default_backend(_CUSTOM)
        for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
            self._register_backend(torch.device(device), _CUSTOM, group.gloo)

    def getBackendName(self) -> str:
        """Shown by c10d in messages."""
        return "fanin"

    def shutdown(self) -> None:
        """Leaves the job; called by ``destroy_process_group``."""
        self._group.close()

    # The binding also takes one tensor and plain arguments; C++ turns those into the list form and calls back.

    def allreduce(self, tensors: Any, opts: Any = None, **keywords: Any) -> Any:
        """All-reduce; see ``Collectives.allreduce``."""
        if keywords or isinstance(tensors, Tensor) or not _is_options(opts):
            return ProcessGroup.allreduce(self, tensors, *_given(opts), **keywords)
        return Collectives.allreduce(self, tensors, opts)

    def broadcast(self, tensors: Any, opts: Any = None, **keywords: Any) -> Any:
        """Broadcast; see ``Collectives.broadcast``."""
        if keywords or isinstance(tensors, Tensor):
            return ProcessGroup.broadcast(self, tensors, *_given(opts), **keywords)
        return Collectives.broadcast(self, tensors, opts)

    def barrier(self, opts: Any = None, **keywords: Any) -> Any:
        """Barrier; see ``Collectives.barrier``."""
        if keywords or not _is_options(opts):
            return ProcessGroup.barrier(self, *_given(opts), **keywords)
        return Collectives.barrier(self, opts)


def _is_options(opts: Any) -> bool:
    return opts is None or hasattr(opts, "timeout")


def _given(opts: Any) -> tuple[Any, ...]:
    return () if opts is None else (opts,)
