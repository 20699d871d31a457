"""fanin: sums gradients inside the network.

>>> torch.distributed.init_process_group("fanin")   # a stock DDP or FSDP script, nothing else changed

Importing this package does not import torch: ``fanin.Session`` works on numpy arrays alone. PyTorch 2.14 and later
find the backend by themselves; before that, import torch first and then fanin.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from fanin._fanin import FaninError, FaninTimeout, __version__
from fanin.config import Config, ConfigError, init
from fanin.rendezvous import LocalSwitch
from fanin.session import Pending, Session
from fanin.telemetry import Contributions, Explanation, explain, last_contributions, stats

if TYPE_CHECKING:
    from fanin.torch.hook import ddp_hook, ddp_hook_state
    from fanin.torch.record import Recorder, record
    from fanin.torch.record_step import StepRecorder, record_step

__all__ = [
    "Config",
    "ConfigError",
    "Contributions",
    "Explanation",
    "FaninError",
    "FaninTimeout",
    "LocalSwitch",
    "Pending",
    "Recorder",
    "Session",
    "StepRecorder",
    "__version__",
    "ddp_hook",
    "ddp_hook_state",
    "explain",
    "init",
    "last_contributions",
    "record",
    "record_step",
    "stats",
]

#: What needs torch, by the module that has it.
_LAZY = {
    "ddp_hook": "hook",
    "ddp_hook_state": "hook",
    "Recorder": "record",
    "record": "record",
    "StepRecorder": "record_step",
    "record_step": "record_step",
}


def __getattr__(name: str) -> Any:
    # Numpy users must not pay for importing torch.
    if name in _LAZY:
        return getattr(importlib.import_module(f"fanin.torch.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'fanin' has no attribute {name!r}")


if "torch.distributed" in sys.modules:
    from fanin.torch import register as _register

    _register()
