"""fanin: sums gradients inside the network.

>>> torch.distributed.init_process_group("fanin")   # a stock DDP or FSDP script, nothing else changed

Importing this package does not import torch: ``fanin.Session`` works on numpy arrays alone. PyTorch 2.14 and later
find the backend by themselves; before that, import torch first and then fanin.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from fanin._fanin import FaninError, FaninTimeout, __version__
from fanin.config import Config, ConfigError, init
from fanin.rendezvous import LocalSwitch
from fanin.session import Pending, Session
from fanin.telemetry import Explanation, explain, stats

if TYPE_CHECKING:
    from fanin.torch.hook import ddp_hook, ddp_hook_state

__all__ = [
    "Config",
    "ConfigError",
    "Explanation",
    "FaninError",
    "FaninTimeout",
    "LocalSwitch",
    "Pending",
    "Session",
    "__version__",
    "ddp_hook",
    "ddp_hook_state",
    "explain",
    "init",
    "stats",
]

_LAZY = ("ddp_hook", "ddp_hook_state")


def __getattr__(name: str) -> Any:
    # The hook needs torch, and numpy users must not pay for importing it.
    if name in _LAZY:
        from fanin.torch import hook

        return getattr(hook, name)
    raise AttributeError(f"module 'fanin' has no attribute {name!r}")


if "torch.distributed" in sys.modules:
    from fanin.torch import register as _register

    _register()
