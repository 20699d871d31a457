"""Adapter for one device of a mixed group (torch 2.14 and later), such as ``"cpu:fanin,cuda:nccl"``."""

from __future__ import annotations

from torch._C._distributed_c10d import Backend

from fanin.torch.collectives import Collectives
from fanin.torch.group import Group

#: c10d's debug wrapper holds only the C++ half of a Python backend, so somebody must hold this half.
_alive: list[FaninBackend] = []


class FaninBackend(Collectives, Backend):
    """A c10d ``Backend``. Handles pass through C++, which forwards only ``wait`` and ``get_future``."""

    def __init__(self, group: Group) -> None:
        super().__init__(group.rank, group.size)
        self._group = group
        _alive.append(self)

    def getBackendName(self) -> str:
        """Shown by c10d in messages."""
        return "fanin"

    def shutdown(self) -> None:
        """Leaves the job; called by ``destroy_process_group``."""
        self._group.close()
