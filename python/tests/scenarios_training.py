"""Stock PyTorch training set-ups over fanin and over gloo in the same run; run by ``test_training``."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fanin
import torch
import torch.distributed as dist
from fanin import recording
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from worlds import World

STEPS = 5
#: Sums are exact to about 2^-29 of a block's largest value, far below the noise of training in float32.
RELATIVE = 1e-5


def _model(seed: int = 3, width: int = 64, sparse: bool = False) -> nn.Module:
    torch.manual_seed(seed)
    if sparse:
        return nn.Sequential(nn.EmbeddingBag(50, width, sparse=True), nn.Linear(width, 10))
    return nn.Sequential(nn.Linear(32, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))


def _batch(world: World, step: int, sparse: bool = False) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 * step + world.rank)
    inputs = torch.randint(0, 50, (16, 6), generator=generator) if sparse else torch.randn(16, 32, generator=generator)
    return inputs, torch.randint(0, 10, (16,), generator=generator)


def _train(world: World, model: nn.Module, optimizer: torch.optim.Optimizer, sparse: bool = False) -> list[float]:
    losses = []
    for step in range(STEPS):
        inputs, labels = _batch(world, step, sparse)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def _same_as_gloo(world: World, run: Callable[[object], list[float]], *kinds: str) -> None:
    with world.through_switch(*kinds):
        ours = run(dist.group.WORLD)
    theirs = run(world.gloo)
    for step, (mine, reference) in enumerate(zip(ours, theirs, strict=True)):
        assert abs(mine - reference) <= RELATIVE * max(1.0, abs(reference)), f"step {step}: {ours} against {theirs}"


def scenario_ddp_with_several_buckets(world: World) -> None:
    def run(group: object) -> list[float]:
        # 20 kB buckets: several per step, so that communication overlaps the backward pass.
        model = DistributedDataParallel(_model(width=128), process_group=group, bucket_cap_mb=0.02)
        return _train(world, model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))

    _same_as_gloo(world, run, "all_reduce", "broadcast", "all_gather")


def scenario_ddp_leaves_equal_weights(world: World) -> None:
    model = DistributedDataParallel(_model(), find_unused_parameters=True)
    _train(world, model, torch.optim.Adam(model.parameters()))
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    everybody = [torch.empty_like(flat) for _ in range(world.size)]
    dist.all_gather(everybody, flat, group=world.gloo)
    assert all(torch.equal(flat, other) for other in everybody)


def scenario_ddp_bfloat16(world: World) -> None:
    model = DistributedDataParallel(_model().bfloat16())
    with world.through_switch("all_reduce"):
        loss = model(torch.ones(4, 32, dtype=torch.bfloat16)).sum()
        loss.backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())


def scenario_bf16_compression_hook(world: World) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

    def run(group: object) -> list[float]:
        model = DistributedDataParallel(_model(), process_group=group)
        model.register_comm_hook(group, bf16_compress_hook)
        return _train(world, model, torch.optim.SGD(model.parameters(), lr=0.01))

    # gloo rounds each partial sum to bfloat16, the switch rounds once: equal within the type's precision only.
    with world.through_switch("all_reduce"):
        ours = run(dist.group.WORLD)
    theirs = run(world.gloo)
    assert all(abs(mine - reference) < 5e-3 for mine, reference in zip(ours, theirs, strict=True)), (ours, theirs)


def scenario_power_sgd_with_one_bucket(world: World) -> None:
    # Its callbacks start second collectives and wait for them. With several buckets it stops on stock gloo as well.
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    def run(group: object) -> list[float]:
        model = DistributedDataParallel(_model(), process_group=group)
        state = powerSGD_hook.PowerSGDState(group, matrix_approximation_rank=2, start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        return _train(world, model, torch.optim.SGD(model.parameters(), lr=0.1))

    with world.through_switch("all_reduce"):
        ours = run(dist.group.WORLD)
    theirs = run(world.gloo)
    assert all(abs(mine - reference) < 1e-3 for mine, reference in zip(ours, theirs, strict=True)), (ours, theirs)


def scenario_ddp_hook_over_gloo(world: World) -> None:
    import fanin

    def run(hooked: bool) -> list[float]:
        model = DistributedDataParallel(_model(), process_group=world.gloo, bucket_cap_mb=0.01)
        if hooked:
            model.register_comm_hook(fanin.ddp_hook_state(world.gloo), fanin.ddp_hook)
        return _train(world, model, torch.optim.SGD(model.parameters(), lr=0.1))

    with world.through_switch("all_reduce"):
        ours = run(True)
    theirs = run(False)
    assert all(abs(mine - reference) <= RELATIVE * 10 for mine, reference in zip(ours, theirs, strict=True))


def scenario_sparse_gradients(world: World) -> None:
    def run(group: object) -> list[float]:
        model = DistributedDataParallel(_model(sparse=True), process_group=group)
        return _train(world, model, torch.optim.SGD(model.parameters(), lr=0.1), sparse=True)

    with world.fell_back("all_reduce", "sparse_coo"):
        _same_as_gloo(world, run, "all_reduce")


def scenario_sparse_all_reduce(world: World) -> None:
    mine = torch.sparse_coo_tensor([[world.rank, 9]], [1.0, 2.0], (10,))
    with world.fell_back("all_reduce", "sparse_coo"):
        dist.all_reduce(mine)
    dense = mine.to_dense()
    assert float(dense[9]) == 2.0 * world.size and float(dense[0]) == 1.0


def scenario_zero_redundancy(world: World) -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    def run(group: object) -> list[float]:
        model = DistributedDataParallel(_model(), process_group=group)
        optimizer = ZeroRedundancyOptimizer(
            model.parameters(), optimizer_class=torch.optim.Adam, process_group=group, lr=0.01
        )
        return _train(world, model, optimizer)

    _same_as_gloo(world, run, "all_reduce", "broadcast")


def scenario_fsdp2(world: World) -> None:
    from torch.distributed.fsdp import fully_shard

    def run(group: object) -> list[float]:
        model = _model()
        mesh = DeviceMesh.from_group(group, "cpu")
        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return _train(world, model, torch.optim.SGD(model.parameters(), lr=0.1))

    _same_as_gloo(world, run, "all_gather", "reduce_scatter")


def scenario_fsdp1(world: World) -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel

    def run(group: object) -> list[float]:
        model = FullyShardedDataParallel(_model(), process_group=group, device_id=torch.device("cpu"))
        return _train(world, model, torch.optim.SGD(model.parameters(), lr=0.1))

    _same_as_gloo(world, run, "all_gather", "reduce_scatter")


def scenario_hybrid_sharding(world: World) -> None:
    from torch.distributed.fsdp import fully_shard

    inner = 2 if world.size >= 4 else 1
    mesh = init_device_mesh("cpu", (world.size // inner, inner), mesh_dim_names=("replicate", "shard"))
    model = fully_shard(_model(), mesh=mesh)
    with world.through_switch("all_reduce"):
        losses = _train(world, model, torch.optim.SGD(model.parameters(), lr=0.1))
    reference = DistributedDataParallel(_model(), process_group=world.gloo)
    expected = _train(world, reference, torch.optim.SGD(reference.parameters(), lr=0.1))
    assert all(abs(a - b) <= 1e-4 for a, b in zip(losses, expected, strict=True)), (losses, expected)


def scenario_distributed_tensor(world: World) -> None:
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (world.size,))
    full = torch.arange(8.0 * world.size).reshape(2 * world.size, 4)
    with world.through_switch("all_gather"):
        sharded = distribute_tensor(full, mesh, [Shard(0)])
        assert torch.equal(sharded.redistribute(mesh, [Replicate()]).to_local(), full)
    with world.through_switch("all_reduce"):
        from torch.distributed.tensor import DTensor

        partial = DTensor.from_local(torch.ones(4), mesh, [Partial()])
        assert torch.allclose(partial.redistribute(mesh, [Replicate()]).to_local(), torch.full((4,), float(world.size)))


def scenario_functional_collectives(world: World) -> None:
    from torch.distributed import _functional_collectives as functional

    group = dist.group.WORLD
    with world.through_switch("all_reduce", "all_gather", "reduce_scatter", "broadcast"):
        total = functional.all_reduce(torch.ones(10), "sum", group)
        assert torch.allclose(total + 0, torch.full((10,), float(world.size)))
        mean = functional.all_reduce(torch.full((3,), float(world.rank)), "avg", group)
        assert torch.allclose(mean + 0, torch.full((3,), (world.size - 1) / 2))
        gathered = functional.all_gather_tensor(torch.full((2,), float(world.rank)), 0, group)
        assert torch.equal(gathered + 0, torch.arange(float(world.size)).repeat_interleave(2))
        shard = functional.reduce_scatter_tensor(torch.ones(world.size * 3), "sum", 0, group)
        assert torch.allclose(shard + 0, torch.full((3,), float(world.size)))
        same = functional.broadcast(torch.full((2,), float(world.rank)), 1, group)
        assert torch.equal(same + 0, torch.ones(2))
        pair = functional.all_reduce_coalesced([torch.ones(2), torch.ones(5)], "sum", group)
        assert torch.allclose(pair[1] + 0, torch.full((5,), float(world.size)))


def scenario_compiled(world: World) -> None:
    from torch.distributed import _functional_collectives as functional

    def step(x: Tensor) -> Tensor:
        return functional.all_reduce(x * 2, "sum", dist.group.WORLD) + 1

    # "aot_eager" traces and runs the graph without a C++ compiler on the machine.
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    with world.through_switch("all_reduce"):
        assert torch.allclose(compiled(torch.ones(6)), torch.full((6,), 2.0 * world.size + 1))


def scenario_new_group(world: World) -> None:
    group = dist.new_group(list(range(world.size)), backend="fanin")
    model = DistributedDataParallel(_model(), process_group=group)
    with world.through_switch("all_reduce"):
        _train(world, model, torch.optim.SGD(model.parameters(), lr=0.1))
    dist.destroy_process_group(group)


def scenario_average(world: World) -> None:
    for size in (1, 1000):
        mine = torch.full((size,), float(world.rank))
        with world.through_switch("all_reduce"):
            dist.all_reduce(mine, dist.ReduceOp.AVG)
        assert torch.allclose(mine, torch.full((size,), (world.size - 1) / 2))


def scenario_objects_and_checkpoint(world: World) -> None:
    from torch.distributed import checkpoint

    folder = [tempfile.mkdtemp(prefix="fanin-checkpoint-") if world.rank == 0 else None]
    dist.broadcast_object_list(folder, src=0)
    model = _model()
    checkpoint.save({"model": model.state_dict()}, checkpoint_id=folder[0])
    fresh = {"model": _model(seed=4).state_dict()}
    checkpoint.load(fresh, checkpoint_id=folder[0])
    assert torch.equal(fresh["model"]["0.weight"], model.state_dict()["0.weight"])
    assert any(Path(folder[0]).iterdir())


def scenario_push_pull(world: World) -> None:
    """Gradients that are pushed by name as they become ready, in an order of each rank's own, give gloo's model."""
    import fanin.ps

    def train(average: Callable[[dict[str, Tensor]], None]) -> nn.Module:
        model = _model()
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        for step in range(STEPS):
            inputs, labels = _batch(world, step)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            average({name: parameter.grad for name, parameter in model.named_parameters()})
            optimizer.step()
        return model

    def by_gloo(gradients: dict[str, Tensor]) -> None:
        for gradient in gradients.values():
            dist.all_reduce(gradient, group=world.gloo)
            gradient /= world.size

    def by_name(gradients: dict[str, Tensor]) -> None:
        names = list(gradients)
        names = names[world.rank :] + names[: world.rank]
        for handle in [fanin.ps.push_pull(name, gradients[name], priority=len(name)) for name in names]:
            assert handle.wait() is gradients[handle.key]

    for _ in range(2):
        fanin.ps.init()
        try:
            assert (fanin.ps.rank(), fanin.ps.size()) == (world.rank, world.size)
            expected, found = train(by_gloo), train(by_name)
            for one, other in zip(expected.parameters(), found.parameters(), strict=True):
                torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
            half = torch.full((1000,), world.rank + 1, dtype=torch.bfloat16)
            fanin.ps.push("half", half)
            out = torch.empty_like(half)
            assert fanin.ps.pull("half", out).wait() is out
            assert torch.equal(out, torch.full_like(half, sum(range(world.size + 1))))
            for wrong in (torch.ones(4, 4).t()[1:], torch.ones(3, dtype=torch.float64), torch.ones(3, device="meta")):
                try:
                    fanin.ps.push("wrong", wrong)
                except (TypeError, ValueError):
                    continue
                raise AssertionError(f"{wrong} was accepted")
        finally:
            fanin.ps.shutdown()


def scenario_recorded_gradients_are_each_rank_s_own(world: World) -> None:
    """Before DDP averages them: as those of a model that no other rank knows."""
    for is_view in (False, True):
        alone = _model()
        model = DistributedDataParallel(_model(), gradient_as_bucket_view=is_view)
        folder = Path(tempfile.mkdtemp())
        recorder = fanin.record(model, folder, every=2)
        expected: dict[str, Any] = {}
        for step in range(STEPS):
            inputs, labels = _batch(world, step)
            for one in (alone, model):
                one.zero_grad()
                nn.functional.cross_entropy(one(inputs), labels).backward()
            for name, parameter in alone.named_parameters():
                expected[f"step-{step}/rank-{world.rank}/{name}"] = parameter.grad.numpy().copy()
        assert recorder.steps == [0, 2, 4]
        recorder.close()
        arrays, metadata = recording.read(folder / f"rank-{world.rank}.safetensors")
        assert metadata["rank"] == str(world.rank) and metadata["world_size"] == str(world.size)
        assert set(arrays) == {name for name in expected if name.startswith(("step-0/", "step-2/", "step-4/"))}
        for name, array in arrays.items():
            assert abs(array - expected[name]).max() <= 1e-6, f"{name} with {is_view=}"
