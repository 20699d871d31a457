"""Which collectives go through the switch. Pure: every rank must reach the same answer.

The answer may depend only on what c10d requires to be equal on all ranks: kind, data type, operator, layout class and
world size. It must never look at contiguity, addresses, load or anything else local, or ranks would take different
paths and wait for each other until the timeout.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch.distributed import ReduceOp

#: Ranks that one job can have (the contributed-set of a slot has 256 bits).
WORLD_SIZE_MAX: Final = 256

_OPERATOR_NAMES: Final = {
    ReduceOp.RedOpType.SUM: "sum",
    ReduceOp.RedOpType.AVG: "average",
    ReduceOp.RedOpType.MAX: "max",
    ReduceOp.RedOpType.MIN: "min",
    ReduceOp.RedOpType.BAND: "band",
    ReduceOp.RedOpType.BOR: "bor",
    ReduceOp.RedOpType.BXOR: "bxor",
}

_FLOAT: Final = frozenset({"sum", "average", "max", "min"})
_BITS: Final = frozenset({"band", "bor", "bxor"})
#: 64-bit sums travel as four limbs; an order over limbs does not exist, so max and min do not.
_OPERATORS: Final = {
    torch.float32: ("float32", _FLOAT),
    torch.float16: ("float16", _FLOAT),
    torch.bfloat16: ("bfloat16", _FLOAT),
    torch.int32: ("int32", _FLOAT | _BITS),
    torch.int64: ("int64", frozenset({"sum", "average"}) | _BITS),
}


P4APP_REASON: Final = "the p4app wire format only has all-reduce sums of float32 and int32"


class Plan(NamedTuple):
    """`reason` is None for the switch; then `data_type` and `operator` are the runtime's words.

    `label` tells the tensor from others of its size, in messages and in what the switch counts; the same at all ranks.
    """

    data_type: str
    operator: str
    reason: str | None = None
    label: str = ""


def _fall_back(reason: str) -> Plan:
    return Plan("", "", reason)


def operator_name(operator: object) -> str:
    """``"sum"`` for ``ReduceOp.SUM``, whether torch hands over the class or its enum value."""
    # Compare the enum value: `ReduceOp in (...)` is always False because of its reversed comparison.
    kind = getattr(operator, "op", operator)
    return _OPERATOR_NAMES.get(kind, str(kind).rpartition(".")[2].lower())


def plan_group(world_size: int) -> str | None:
    """Why a group of this size cannot use the switch at all, or None."""
    if world_size == 1:
        return "a group of one rank has nothing to exchange"
    if world_size > WORLD_SIZE_MAX:
        return f"a group of {world_size} ranks is larger than the {WORLD_SIZE_MAX} of one job"
    return None


def plan_all_reduce_p4app(dtype: torch.dtype, layout: torch.layout, operator: object) -> Plan:
    """For all-reduce over the p4app-switchML layout, which sums 32-bit words and does nothing else."""
    plan = plan_reduction(dtype, layout, operator)
    if plan.reason is None and (plan.data_type not in ("float32", "int32") or plan.operator not in ("sum", "average")):
        return _fall_back(f"{P4APP_REASON}: {plan.operator} of {plan.data_type}")
    return plan


def plan_reduction(dtype: torch.dtype, layout: torch.layout, operator: object) -> Plan:
    """For all-reduce, reduce and reduce-scatter."""
    if layout != torch.strided:
        return _fall_back(f"layout {_short(layout)} is not dense")
    if dtype not in _OPERATORS:
        return _fall_back(f"dtype {_short(dtype)} is not summed by the switch")
    data_type, operators = _OPERATORS[dtype]
    name = operator_name(operator)
    if name not in operators:
        return _fall_back(f"operator {name} of {_short(dtype)} is not done by the switch")
    return Plan(data_type, name)


def plan_move(layout: torch.layout) -> Plan:
    """For broadcast and all-gather: bytes move unchanged, so any data type does."""
    if layout != torch.strided:
        return _fall_back(f"layout {_short(layout)} is not dense")
    return Plan("bytes", "sum")


def _short(value: object) -> str:
    return str(value).removeprefix("torch.")
