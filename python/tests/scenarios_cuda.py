"""CUDA tensors, all ranks on GPU 0; run by ``test_cuda``."""

from __future__ import annotations

import torch
import torch.distributed as dist
from bounds import sum_bound
from torch.nn.parallel import DistributedDataParallel
from worlds import World

DEVICE = torch.device("cuda", 0)


def scenario_all_reduce_follows_the_stream(world: World) -> None:
    for size in (1, 1000, 3_000_000):
        inputs = [torch.randn(size, generator=torch.Generator().manual_seed(rank)) for rank in range(world.size)]
        tensor = inputs[world.rank].to(DEVICE)
        # Work queued before and after, without any synchronisation by the caller.
        tensor *= 2
        with world.through_switch("all_reduce"):
            dist.all_reduce(tensor)
        tensor /= 2
        error = float((tensor.cpu().double() - sum(value.double() for value in inputs)).abs().max())
        assert error <= sum_bound(inputs) * 2, error


def scenario_several_in_flight(world: World) -> None:
    tensors = [torch.full((100_000,), float(step), device=DEVICE) for step in range(10)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for step, (work, tensor) in enumerate(zip(works, tensors, strict=True)):
        work.wait()
        assert torch.allclose(tensor, torch.full_like(tensor, step * world.size))


def scenario_moves(world: World) -> None:
    output = torch.empty(world.size * 5, device=DEVICE)
    dist.all_gather_into_tensor(output, torch.full((5,), float(world.rank), device=DEVICE))
    assert torch.equal(output.cpu(), torch.arange(float(world.size)).repeat_interleave(5))
    tensor = torch.full((7,), float(world.rank), device=DEVICE)
    dist.broadcast(tensor, 1)
    assert torch.equal(tensor.cpu(), torch.ones(7))
    shard = torch.empty(4, device=DEVICE)
    dist.reduce_scatter_tensor(shard, torch.ones(4 * world.size, device=DEVICE))
    assert torch.allclose(shard.cpu(), torch.full((4,), float(world.size)))


def scenario_futures(world: World) -> None:
    tensor = torch.ones(50_000, device=DEVICE)
    doubled = dist.all_reduce(tensor, async_op=True).get_future().then(lambda future: future.value()[0] * 2)
    assert torch.allclose(doubled.wait().cpu(), torch.full((50_000,), 2.0 * world.size))


def scenario_training(world: World) -> None:
    torch.manual_seed(1)
    model = DistributedDataParallel(torch.nn.Linear(64, 64).to(DEVICE), device_ids=[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.full((4, 64), float(world.rank + 1), device=DEVICE)).square().mean().backward()
        optimizer.step()
    weights = model.module.weight.detach().cpu()
    everybody = [torch.empty_like(weights) for _ in range(world.size)]
    dist.all_gather(everybody, weights, group=world.gloo)
    assert all(torch.equal(weights, other) for other in everybody)
