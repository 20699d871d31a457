"""Every collective × type × operator against exact arithmetic or gloo; run by ``test_collectives``."""

from __future__ import annotations

import threading
from datetime import timedelta

import torch
import torch.distributed as dist
from bounds import sum_bound
from fanin.config import load
from torch.distributed import ReduceOp
from worlds import World, has_python_backends

FLOATS = [torch.float32, torch.float16, torch.bfloat16]
INTEGERS = [torch.int32, torch.int64]
#: Around and across the packet sizes: empty, one, odd, one packet, several packets and lanes.
SIZES = [0, 1, 7, 256, 1000, 70_001]


def _all_inputs(world: World, size: int, dtype: torch.dtype, seed: int = 0) -> list[torch.Tensor]:
    """The tensors of all ranks, computed alike everywhere."""
    made = []
    for rank in range(world.size):
        generator = torch.Generator().manual_seed(1000 * seed + rank)
        if dtype.is_floating_point:
            made.append((torch.randn(size, generator=generator) * 3).to(dtype))
        else:
            limit = 2**30 // world.size if dtype == torch.int32 else 2**60 // world.size
            made.append(torch.randint(-limit, limit, (size,), generator=generator, dtype=dtype))
    return made


def _close(actual: torch.Tensor, inputs: list[torch.Tensor], op: object) -> None:
    if actual.numel() == 0:
        return
    exact = torch.stack([tensor.double() for tensor in inputs]).sum(0)
    divisor = len(inputs) if op == ReduceOp.AVG else 1
    error = float((actual.double() - exact / divisor).abs().max())
    assert error <= sum_bound(inputs, divisor), f"error {error} above {sum_bound(inputs, divisor)}"


def scenario_all_reduce_floats(world: World) -> None:
    for dtype in FLOATS:
        for size in SIZES:
            for op in (ReduceOp.SUM, ReduceOp.AVG):
                inputs = _all_inputs(world, size, dtype)
                mine = inputs[world.rank].clone()
                with world.through_switch("all_reduce"):
                    dist.all_reduce(mine, op)
                _close(mine, inputs, op)


def scenario_all_reduce_floats_largest_and_smallest(world: World) -> None:
    for dtype in FLOATS:
        for op, name in ((ReduceOp.MAX, "amax"), (ReduceOp.MIN, "amin")):
            inputs = _all_inputs(world, 1000, dtype)
            mine = inputs[world.rank].clone()
            with world.through_switch("all_reduce"):
                dist.all_reduce(mine, op)
            assert torch.equal(mine, getattr(torch.stack(inputs), name)(0)), f"{dtype} {name}"


def scenario_all_reduce_integers(world: World) -> None:
    for dtype in INTEGERS:
        operators = [ReduceOp.SUM, ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR]
        operators += [ReduceOp.MAX, ReduceOp.MIN] if dtype == torch.int32 else []
        for op in operators:
            for size in SIZES:
                mine = _all_inputs(world, size, dtype)[world.rank]
                reference = mine.clone()
                dist.all_reduce(reference, op, group=world.gloo)
                with world.through_switch("all_reduce"):
                    dist.all_reduce(mine, op)
                assert torch.equal(mine, reference), f"{dtype} {op} {size}"


def scenario_all_reduce_integer_average_truncates(world: World) -> None:
    for dtype in INTEGERS:
        inputs = _all_inputs(world, 333, dtype)
        mine = inputs[world.rank].clone()
        dist.all_reduce(mine, ReduceOp.AVG)
        assert torch.equal(mine, torch.stack(inputs).sum(0).div(world.size, rounding_mode="trunc"))


def scenario_all_reduce_extreme_values(world: World) -> None:
    # Sums that leave the range must wrap for integers and keep their bound for floats of very different size.
    top = torch.full((5,), 2**63 - 1, dtype=torch.int64)
    dist.all_reduce(top)
    reference = torch.full((5,), 2**63 - 1, dtype=torch.int64)
    dist.all_reduce(reference, group=world.gloo)
    assert torch.equal(top, reference)
    for scale in (1e-30, 1e-3, 1e30):
        inputs = [tensor * scale for tensor in _all_inputs(world, 4096, torch.float32)]
        mine = inputs[world.rank].clone()
        dist.all_reduce(mine)
        _close(mine, inputs, ReduceOp.SUM)


def scenario_non_finite_values_are_reported(world: World) -> None:
    import fanin

    mine = torch.ones(10_000)
    if world.rank == 0:
        mine[5] = float("inf")
    dist.all_reduce(mine)
    assert not torch.isfinite(mine[5])
    groups = fanin.stats()["groups"]
    rows = [group["collectives"].get("all_reduce", {}) for group in groups]
    # Shared memory adds floats as they are: an infinity stays one, and there is no block that it could spoil.
    # So do ATP's servers.
    stays_on_host = all(session["transport"] == "shared memory" for group in groups for session in group["sessions"])
    stays = stays_on_host or load().algorithm == "atp"
    assert not stays or mine[5] == float("inf")
    assert stays or world.rank != 0 or sum(row.get("non_finite_blocks", 0) for row in rows) > 0
    # The next collective is sound again.
    again = torch.ones(10_000)
    dist.all_reduce(again)
    assert torch.allclose(again, torch.full_like(again, world.size))


def scenario_reduce(world: World) -> None:
    for root in range(world.size):
        for dtype in (torch.float32, torch.int64):
            inputs = _all_inputs(world, 777, dtype, seed=root)
            mine = inputs[world.rank].clone()
            with world.through_switch("reduce"):
                dist.reduce(mine, root)
            if world.rank != root:
                continue
            if dtype == torch.int64:
                assert torch.equal(mine, torch.stack(inputs).sum(0))
            else:
                _close(mine, inputs, ReduceOp.SUM)


def scenario_reduce_scatter(world: World) -> None:
    for dtype in [*FLOATS, *INTEGERS]:
        for shard in (0, 1, 33, 5000):
            inputs = _all_inputs(world, shard * world.size, dtype)
            output = torch.empty(shard, dtype=dtype)
            with world.through_switch("reduce_scatter"):
                dist.reduce_scatter_tensor(output, inputs[world.rank].clone())
            mine = [tensor.chunk(world.size)[world.rank] if shard else tensor for tensor in inputs]
            if dtype.is_floating_point:
                _close(output, mine, ReduceOp.SUM)
            else:
                assert torch.equal(output, torch.stack(mine).sum(0))
    parts = [torch.full((3, 2), float(world.rank + part)) for part in range(world.size)]
    output = torch.empty(3, 2)
    dist.reduce_scatter(output, parts)
    expected = sum(rank + world.rank for rank in range(world.size))
    assert torch.allclose(output, torch.full((3, 2), float(expected)))


def scenario_all_gather_any_type(world: World) -> None:
    types = [*FLOATS, *INTEGERS, torch.float64, torch.uint8, torch.bool, torch.int16, torch.complex64]
    for dtype in types:
        for size in (0, 1, 3, 1001):
            mine = (torch.arange(size) + world.rank).to(dtype)
            if mine.is_floating_point() and size:
                mine[0] = float("nan")
            output = torch.empty(size * world.size, dtype=dtype)
            parts = [torch.empty(size, dtype=dtype) for _ in range(world.size)]
            with world.through_switch("all_gather"):
                dist.all_gather_into_tensor(output, mine)
            dist.all_gather(parts, mine)
            for rank in range(world.size):
                expected = (torch.arange(size) + rank).to(dtype)
                if expected.is_floating_point() and size:
                    expected[0] = float("nan")
                assert torch.equal(parts[rank].view(torch.uint8), expected.view(torch.uint8)), f"{dtype} {size}"
            assert torch.equal(output.view(torch.uint8), torch.cat(parts).view(torch.uint8)), f"{dtype} {size}"


def scenario_broadcast_any_type(world: World) -> None:
    for root in range(world.size):
        for dtype in [*FLOATS, *INTEGERS, torch.float64, torch.uint8, torch.bool]:
            for size in (0, 1, 5, 4099):
                mine = (torch.arange(size) * (world.rank + 1)).to(dtype)
                with world.through_switch("broadcast"):
                    dist.broadcast(mine, root)
                assert torch.equal(mine, (torch.arange(size) * (root + 1)).to(dtype)), f"{dtype} {size}"


def scenario_barrier(world: World) -> None:
    slow = torch.ones(400_000)
    work = dist.all_reduce(slow, async_op=True)
    with world.through_switch("barrier"):
        dist.barrier()
    # A barrier covers what this rank issued before it.
    assert torch.allclose(slow, torch.full_like(slow, world.size))
    work.wait()


def scenario_not_contiguous(world: World) -> None:
    base = torch.arange(24.0).reshape(4, 6)
    mine = base.clone().t()
    if world.rank == 0:
        # Layout is local: a rank with another one must not take another path.
        mine = mine.contiguous()
    with world.through_switch("all_reduce"):
        dist.all_reduce(mine)
    assert torch.allclose(mine, base.t() * world.size)
    output = torch.zeros(world.size * 6, 4).t()
    piece = base if world.rank else base.t().contiguous().t()
    dist.all_gather_into_tensor(output.t(), piece.t())
    assert torch.equal(output, torch.cat([base.t()] * world.size).t())
    strided = torch.zeros(10)[::2]
    if world.rank == 1:
        strided += 3
    dist.broadcast(strided, 1)
    assert torch.equal(strided, torch.full((5,), 3.0))


def scenario_coalesced(world: World) -> None:
    tensors = [torch.full((size,), float(world.rank + 1)) for size in (3, 1000, 1)]
    expected = sum(range(1, world.size + 1))
    with world.through_switch("all_reduce"):
        dist.all_reduce_coalesced(tensors)
    assert all(torch.allclose(tensor, torch.full_like(tensor, expected)) for tensor in tensors)
    doubles = [torch.ones(4, dtype=torch.float64), torch.ones(2, dtype=torch.float64)]
    with world.fell_back("all_reduce", "float64"):
        dist.all_reduce_coalesced(doubles)
    assert torch.equal(torch.cat(doubles), torch.full((6,), float(world.size), dtype=torch.float64))
    with dist.distributed_c10d._coalescing_manager(async_ops=True) as manager:
        outputs = [torch.empty(world.size * 2), torch.empty(world.size * 5)]
        for output in outputs:
            dist.all_gather_into_tensor(output, torch.full((output.numel() // world.size,), float(world.rank)))
    manager.wait()
    assert torch.equal(outputs[0], torch.arange(float(world.size)).repeat_interleave(2))
    with dist.distributed_c10d._coalescing_manager(async_ops=True) as manager:
        shards = [torch.empty(2), torch.empty(5)]
        for shard in shards:
            dist.reduce_scatter_tensor(shard, torch.ones(shard.numel() * world.size))
    manager.wait()
    assert all(torch.allclose(shard, torch.full_like(shard, world.size)) for shard in shards)


def scenario_fall_backs(world: World) -> None:
    ones = torch.ones(4, dtype=torch.float64)
    with world.fell_back("all_reduce", "float64"):
        dist.all_reduce(ones)
    assert torch.equal(ones, torch.full((4,), float(world.size), dtype=torch.float64))
    product = torch.full((3,), 2.0)
    with world.fell_back("all_reduce", "product"):
        dist.all_reduce(product, ReduceOp.PRODUCT)
    assert torch.equal(product, torch.full((3,), 2.0**world.size))
    largest = torch.tensor([world.rank], dtype=torch.int64)
    with world.fell_back("all_reduce", "max"):
        dist.all_reduce(largest, ReduceOp.MAX)
    assert int(largest) == world.size - 1
    shard = torch.empty(2, dtype=torch.float64)
    with world.fell_back("reduce_scatter", "float64"):
        dist.reduce_scatter_tensor(shard, torch.ones(2 * world.size, dtype=torch.float64))
    assert torch.equal(shard, torch.full((2,), float(world.size), dtype=torch.float64))
    _fall_back_point_to_point(world)


def _fall_back_point_to_point(world: World) -> None:
    with world.fell_back("all_to_all", "different data"):
        output = torch.empty(world.size)
        dist.all_to_all_single(output, torch.arange(float(world.size)) + 10 * world.rank)
    assert torch.equal(output, torch.arange(world.size) * 10.0 + world.rank)
    with world.fell_back("gather", "different data"):
        parts = [torch.empty(2) for _ in range(world.size)] if world.rank == 0 else None
        dist.gather(torch.full((2,), float(world.rank)), parts, dst=0)
    if parts:
        assert [int(part[0]) for part in parts] == list(range(world.size))
    with world.fell_back("scatter", "different data"):
        mine = torch.empty(2)
        dist.scatter(
            mine, [torch.full((2,), float(rank)) for rank in range(world.size)] if world.rank == 0 else None, src=0
        )
    assert int(mine[0]) == world.rank
    if world.rank == 0:
        with world.fell_back("send", "different data"):
            dist.send(torch.arange(5.0), 1)
        _receive_from_anybody(torch.empty(1))
    elif world.rank == 1:
        received = torch.empty(5)
        with world.fell_back("recv", "different data"):
            dist.recv(received, 0)
        assert torch.equal(received, torch.arange(5.0))
        dist.send(torch.ones(1), 0)
    if has_python_backends():
        # Earlier torch refuses it for every backend but its own.
        dist.monitored_barrier(timeout=timedelta(seconds=60))


def _receive_from_anybody(tensor: torch.Tensor) -> None:
    if type(dist.group.WORLD).__module__.startswith("fanin"):
        assert dist.recv(tensor) == 1
    else:
        # c10d's holder of a Python backend's handle does not pass the source on.
        dist.recv(tensor, 1)


def scenario_objects(world: World) -> None:
    found: list[object] = [None] * world.size
    with world.through_switch("all_gather"):
        dist.all_gather_object(found, {"rank": world.rank, "text": "x" * world.rank})
    assert found == [{"rank": rank, "text": "x" * rank} for rank in range(world.size)]
    things = [["a", 1], None] if world.rank == 0 else [None, None]
    with world.through_switch("broadcast"):
        dist.broadcast_object_list(things, src=0)
    assert things == [["a", 1], None]


def scenario_asynchronous(world: World) -> None:
    works, tensors = [], []
    for step in range(20):
        tensor = torch.full((step * 137 + 1,), float(world.rank + step))
        works.append(dist.all_reduce(tensor, async_op=True))
        tensors.append(tensor)
    futures = [work.get_future() for work in works[10:]]
    for work in works[:10]:
        work.wait(timedelta(seconds=30))
    values = [future.wait() for future in futures]
    for step, tensor in enumerate(tensors):
        expected = sum(rank + step for rank in range(world.size))
        assert torch.allclose(tensor, torch.full_like(tensor, expected)), step
    assert values[0][0].data_ptr() == tensors[10].data_ptr()
    chained = dist.all_reduce(torch.ones(5), async_op=True).get_future().then(lambda future: future.value()[0] * 2)
    assert torch.allclose(chained.wait(), torch.full((5,), 2.0 * world.size))


def scenario_handle_answers_when_done(world: World) -> None:
    work = dist.all_reduce(torch.ones(50_000), async_op=True)
    if type(work).__module__.startswith("fanin"):
        while not work.is_completed():
            pass
        assert work.is_success() and work.exception() is None
        assert torch.allclose(work.result()[0], torch.full((50_000,), float(world.size)))
    work.wait()


def scenario_handle_dropped(world: World) -> None:
    tensors = []
    for step in range(8):
        tensor = torch.full((20_000,), float(step))
        strided = torch.full((600, 2), float(step)).t()
        dist.all_reduce(tensor, async_op=True)
        dist.all_reduce(strided, async_op=True)
        tensors += [tensor, strided]
    dist.barrier()
    for index, tensor in enumerate(tensors):
        assert torch.allclose(tensor, torch.full_like(tensor, index // 2 * world.size)), index


def scenario_nested_collective_in_callback(world: World) -> None:
    # PowerSGD's habit: a callback that starts a second collective and waits for it.
    def again(future: torch.futures.Future) -> torch.Tensor:
        value = future.value()[0]
        return dist.all_reduce(value, async_op=True).get_future().wait()[0]

    result = dist.all_reduce(torch.ones(2000), async_op=True).get_future().then(again).wait()
    assert torch.allclose(result, torch.full((2000,), float(world.size**2)))


def scenario_groups_in_threads(world: World) -> None:
    groups = [dist.new_group(backend="fanin") for _ in range(3)]
    errors: list[BaseException] = []

    def use(group: object, value: float) -> None:
        try:
            for size in (1, 500, 30_000):
                for _ in range(5):
                    tensor = torch.full((size,), value)
                    dist.all_reduce(tensor, group=group)
                    assert torch.allclose(tensor, torch.full((size,), value * world.size))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=use, args=(group, float(n + 1))) for n, group in enumerate(groups)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    for group in groups:
        dist.destroy_process_group(group)


def scenario_sub_groups(world: World) -> None:
    half = world.size // 2
    groups = [
        dist.new_group(list(range(half)), backend="fanin"),
        dist.new_group(list(range(half, world.size)), backend="fanin"),
    ]
    side = 0 if world.rank < half else 1
    members = half if side == 0 else world.size - half
    tensor = torch.full((10,), float(world.rank))
    dist.all_reduce(tensor, group=groups[side])
    ranks = range(half) if side == 0 else range(half, world.size)
    assert torch.allclose(tensor, torch.full((10,), float(sum(ranks))))
    assert dist.get_world_size(groups[side]) == members
    if members == 1:
        with world.fell_back("all_reduce", "one rank"):
            dist.all_reduce(tensor, group=groups[side])


def scenario_registered_tensors(world: World) -> None:
    import fanin.torch

    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        mine = fanin.torch.empty((3, 100_001), dtype)
        assert mine.dtype == dtype and not mine.any()
        mine.fill_(world.rank)
        with world.through_switch("all_reduce"):
            dist.all_reduce(mine)
        assert torch.equal(mine, torch.full_like(mine, sum(range(world.size))))


def scenario_explanation(world: World) -> None:
    import fanin

    report = fanin.explain()
    text = str(report)
    assert "all_reduce" in text and f"rank {world.rank} of {world.size}" in text
    default = fanin.stats(dist.group.WORLD)
    assert len(default["groups"]) == 1
    if any(session["transport"] == "shared memory" for session in default["groups"][0]["sessions"]):
        assert default["totals"]["shared"] > 0 and default["totals"]["switch"] == 0 and "by shared memory" in text
    else:
        assert default["totals"]["switch"] > 0 and 0 < report.switch_share <= 1
