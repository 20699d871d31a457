"""The choice between switch and gloo: complete, and the same on every rank."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from fanin.torch.policy import plan_all_reduce_p4app, plan_group, plan_move, plan_reduction  # noqa: E402
from torch.distributed import ReduceOp  # noqa: E402

TYPES = [
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float64,
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.bool,
    torch.complex64,
]
OPERATORS = [
    ReduceOp.SUM,
    ReduceOp.AVG,
    ReduceOp.PRODUCT,
    ReduceOp.MIN,
    ReduceOp.MAX,
    ReduceOp.BAND,
    ReduceOp.BOR,
    ReduceOp.BXOR,
]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("operator", OPERATORS)
def test_every_pair_has_a_path_or_a_reason(dtype: torch.dtype, operator: object) -> None:
    plan = plan_reduction(dtype, torch.strided, operator)
    assert (plan.reason is None) == bool(plan.data_type)


def test_the_switch_sums_five_types() -> None:
    summed = [dtype for dtype in TYPES if plan_reduction(dtype, torch.strided, ReduceOp.SUM).reason is None]
    assert summed == [torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64]


def test_operator_may_be_the_class_or_its_value() -> None:
    for operator in (ReduceOp.SUM, ReduceOp(ReduceOp.SUM)):
        assert plan_reduction(torch.float32, torch.strided, operator).operator == "sum"


def test_reasons_name_the_cause() -> None:
    assert "sparse_coo" in str(plan_reduction(torch.float32, torch.sparse_coo, ReduceOp.SUM).reason)
    assert "float64" in str(plan_reduction(torch.float64, torch.strided, ReduceOp.SUM).reason)
    assert "product" in str(plan_reduction(torch.float32, torch.strided, ReduceOp.PRODUCT).reason)
    assert "max" in str(plan_reduction(torch.int64, torch.strided, ReduceOp.MAX).reason)
    assert "band" in str(plan_reduction(torch.float32, torch.strided, ReduceOp.BAND).reason)
    assert "sparse" in str(plan_move(torch.sparse_coo).reason)


def test_group_sizes() -> None:
    assert plan_group(1) and plan_group(257)
    assert plan_group(2) is None and plan_group(256) is None


def test_p4app_sums_words_only() -> None:
    assert plan_all_reduce_p4app(torch.float32, torch.strided, ReduceOp.AVG).reason is None
    for dtype, operator in ((torch.float16, ReduceOp.SUM), (torch.int32, ReduceOp.MAX), (torch.int64, ReduceOp.SUM)):
        assert "p4app" in str(plan_all_reduce_p4app(dtype, torch.strided, operator).reason)
