"""c10d's collectives under c10d's names, shared by both adapters. Shapes as in ``torch.distributed``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import AllgatherOptions
from torch.distributed import AllreduceOptions, BarrierOptions, BroadcastOptions, ReduceOptions, ReduceScatterOptions

from fanin import _fanin
from fanin.torch.group import Call, Group, contiguous, output_buffer
from fanin.torch.policy import Plan
from fanin.torch.work import WorkPart


class Collectives:
    """Mixed into a ``Backend`` and a ``ProcessGroup`` subclass, which set ``_group``."""

    _group: Group

    # Reductions

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> Any:
        """Sum (or another operator) of one tensor over all ranks, in place."""
        opts = opts or AllreduceOptions()
        if len(tensors) != 1:
            return self._to_gloo("all_reduce", "several tensors in one call", tensors, "allreduce", tensors, opts)
        return self._all_reduce_each(tensors, opts)

    def allreduce_sparse(self, tensors: list[Tensor], opts: Any = None) -> Any:
        """All-reduce of a sparse COO tensor; always gloo."""
        return self.allreduce(tensors, opts)

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> Any:
        """All-reduce of several tensors as one call."""
        return self._all_reduce_each(tensors, opts or AllreduceOptions())

    def reduce(self, tensors: list[Tensor], opts: Any = None) -> Any:
        """As ``allreduce``, but only ``opts.rootRank`` gets the result."""
        opts = opts or ReduceOptions()
        tensor = tensors[0]
        plan = self._group.plan_reduction("reduce", tensor, opts.reduceOp)
        if plan.reason is not None:
            return self._to_gloo("reduce", plan.reason, tensors, "reduce", tensors, opts)
        call = Call(self._group, "reduce", opts)
        buffer, back = contiguous(tensor)
        call.submit(_sum_for_integers(plan), opts.rootRank, buffer, buffer, buffer.numel())
        if self._group.rank == opts.rootRank:
            _afterwards(call, _divide(plan, buffer, call), back)
        return call.work(tensors)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Any:
        """Reduces `input` (size × shard elements) and leaves this rank's shard in `output`."""
        return self._reduce_scatter_each([output], [input], opts or ReduceScatterOptions())

    def reduce_scatter_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Any:
        """``reduce_scatter_single`` of several pairs as one call."""
        return self._reduce_scatter_each(outputs, inputs, opts or ReduceScatterOptions())

    def reduce_scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None) -> Any:
        """Reduces list entry r over all ranks and leaves it on rank r."""
        opts = opts or ReduceScatterOptions()
        shapes_differ = any(part.numel() != outputs[0].numel() for part in inputs[0])
        if len(outputs) != 1 or shapes_differ:
            reason = "shards of different sizes"
            return self._to_gloo("reduce_scatter", reason, outputs, "reduce_scatter", outputs, inputs, opts)
        flat = torch.cat([part.detach().reshape(-1) for part in inputs[0]])
        return self._reduce_scatter_each(outputs, [flat], opts)

    # Moves

    def broadcast(self, tensors: list[Tensor], opts: Any = None) -> Any:
        """Copies rank ``opts.rootRank``'s tensors to all ranks, bit for bit."""
        opts = opts or BroadcastOptions()
        plan = self._group.plan_move(tensors[0])
        if plan.reason is not None:
            return self._to_gloo("broadcast", plan.reason, tensors, "broadcast", tensors, opts)
        call = Call(self._group, "broadcast", opts, len(tensors))
        for tensor in tensors:
            buffer, back = contiguous(tensor)
            call.submit(plan, opts.rootRank, buffer, buffer, buffer.nbytes)
            if self._group.rank != opts.rootRank:
                _afterwards(call, back)
        return call.work(tensors)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Any:
        """Concatenates every rank's `input` in `output` (size × its elements), bit for bit."""
        return self._all_gather_each([output], [input], opts or AllgatherOptions())

    def all_gather_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Any:
        """``all_gather_single`` of several pairs as one call."""
        return self._all_gather_each(outputs, inputs, opts or AllgatherOptions())

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> Any:
        """Every rank's tensor, as a list with one entry per rank."""
        opts = opts or AllgatherOptions()
        # The output list describes all ranks' shapes, so every rank sees the same difference.
        if len(inputs) != 1 or any(part.numel() != inputs[0].numel() for part in outputs[0]):
            reason = "shards of different sizes"
            return self._to_gloo("all_gather", reason, inputs, "allgather", outputs, inputs, opts)
        return self._all_gather_lists(outputs, inputs, opts)

    def allgather_coalesced(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> Any:
        """Several gathers as one call; ``outputs[r][i]`` is tensor i of rank r."""
        by_tensor = [[outputs[rank][i] for rank in range(self._group.size)] for i in range(len(inputs))]
        return self._all_gather_lists(by_tensor, inputs, opts or AllgatherOptions())

    def barrier(self, opts: Any = None) -> Any:
        """Done once every rank has entered it and this rank's earlier collectives are complete."""
        opts = opts or BarrierOptions()
        if (refusal := self._group.barrier_refusal()) is not None:
            return self._to_gloo("barrier", refusal, [], "barrier", opts)
        call = Call(self._group, "barrier", opts)
        call.barrier()
        return call.work([])

    # Names of torch before 2.13.

    def _allgather_base(self, output: Tensor, input: Tensor, opts: Any = None) -> Any:
        return self.all_gather_single(output, input, opts)

    def _reduce_scatter_base(self, output: Tensor, input: Tensor, opts: Any = None) -> Any:
        return self.reduce_scatter_single(output, input, opts)

    def allgather_into_tensor_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Any:
        """Older name of ``all_gather_single_coalesced``."""
        return self.all_gather_single_coalesced(outputs, inputs, opts)

    def reduce_scatter_tensor_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Any:
        """Older name of ``reduce_scatter_single_coalesced``."""
        return self.reduce_scatter_single_coalesced(outputs, inputs, opts)

    # What a switch that sums does not do.

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> Any:
        """To one rank; gloo."""
        return self._to_gloo("gather", _POINTWISE, inputs, "gather", outputs, inputs, opts)

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> Any:
        """From one rank; gloo."""
        return self._to_gloo("scatter", _POINTWISE, outputs, "scatter", outputs, inputs, opts)

    def all_to_all_single(self, output: Tensor, input: Tensor, *splits_and_opts: Any) -> Any:
        """Transposition over ranks; gloo."""
        name = "all_to_all_single" if hasattr(self._group.gloo, "all_to_all_single") else "alltoall_base"
        return self._to_gloo("all_to_all", _POINTWISE, [input], name, output, input, *splits_and_opts)

    def alltoall_base(self, output: Tensor, input: Tensor, *splits_and_opts: Any) -> Any:
        """Older name of ``all_to_all_single``."""
        return self.all_to_all_single(output, input, *splits_and_opts)

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any) -> Any:
        """Transposition over ranks, as lists; gloo."""
        return self._to_gloo("all_to_all", _POINTWISE, inputs, "alltoall", outputs, inputs, opts)

    def send(self, tensors: list[Tensor], destination: int, tag: int = 0) -> Any:
        """To one rank; gloo."""
        return self._to_gloo("send", _POINTWISE, tensors, "send", tensors, destination, tag)

    def recv(self, tensors: list[Tensor], source: int, tag: int = 0) -> Any:
        """From one rank; gloo."""
        return self._to_gloo("recv", _POINTWISE, tensors, "recv", tensors, source, tag)

    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> Any:
        """From whichever rank sends first; gloo."""
        return self._to_gloo("recv", _POINTWISE, tensors, "recv_anysource", tensors, tag)

    def monitored_barrier(self, opts: Any = None, wait_all_ranks: bool = False) -> None:
        """gloo's barrier that names the ranks it waits for."""
        self._group.ledger.fell_back("barrier", "monitored barriers are gloo's", 0)
        # C++ passes options, Python callers a time span.
        timeout = getattr(opts, "timeout", opts)
        self._group.gloo.monitored_barrier(*([] if timeout is None else [timeout]), wait_all_ranks=wait_all_ranks)

    # Life cycle

    def abort(self) -> None:
        """Fails every collective in flight on this rank."""
        self._group.abort("abort was called on the process group")

    def set_timeout(self, timeout: Any) -> None:
        """Sets the default timeout of later waits."""
        self._group.set_timeout(timeout)

    def _set_default_timeout(self, timeout: Any) -> None:
        self._group.set_timeout(timeout)

    def _get_sequence_number_for_group(self) -> int:
        # TORCH_DISTRIBUTED_DEBUG=DETAIL compares these across ranks.
        return int(self._group.gloo._get_sequence_number_for_group())

    def _set_sequence_number_for_group(self) -> None:
        self._group.gloo._set_sequence_number_for_group()

    # Parts

    def _all_reduce_each(self, tensors: list[Tensor], opts: Any, label: str = "") -> Any:
        call = Call(self._group, "all_reduce", opts, len(tensors))
        for tensor in tensors:
            plan = self._group.plan_reduction("all_reduce", tensor, opts.reduceOp)
            if plan.reason is not None:
                if len(tensors) == 1:
                    return self._to_gloo("all_reduce", plan.reason, tensors, "allreduce", tensors, opts)
                single = _single_options(opts)
                call.fall_back(plan.reason, tensor.nbytes, partial(self._gloo, "allreduce", [tensor], single))
                continue
            buffer, back = contiguous(tensor)
            call.submit(_sum_for_integers(plan)._replace(label=label), 0, buffer, buffer, buffer.numel())
            _afterwards(call, _divide(plan, buffer, call), back)
        return call.work(tensors)

    def _reduce_scatter_each(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any) -> Any:
        call = Call(self._group, "reduce_scatter", opts, len(inputs))
        name = "reduce_scatter_single" if hasattr(self._group.gloo, "reduce_scatter_single") else "_reduce_scatter_base"
        for output, input in zip(outputs, inputs, strict=True):
            _check_sizes("reduce_scatter", output.numel(), input.numel(), self._group.size, output.dtype, input.dtype)
            source = input if input.is_contiguous() else input.detach().contiguous()
            target, back = output_buffer(output)
            plan = self._group.plan_reduction("reduce_scatter", input, opts.reduceOp)
            if plan.reason is not None:
                call.fall_back(plan.reason, input.nbytes, partial(self._gloo, name, target, source, opts))
            else:
                call.submit(_sum_for_integers(plan), 0, source, target, source.numel())
                _afterwards(call, _divide(plan, target, call))
            _afterwards(call, back)
        return call.work(outputs)

    def _all_gather_each(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any) -> Any:
        call = Call(self._group, "all_gather", opts, len(inputs))
        for output, input in zip(outputs, inputs, strict=True):
            _check_sizes("all_gather", input.numel(), output.numel(), self._group.size, input.dtype, output.dtype)
            target, back = output_buffer(output)
            self._gather_into(call, target, input, opts)
            _afterwards(call, back)
        return call.work(outputs)

    def _all_gather_lists(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> Any:
        call = Call(self._group, "all_gather", opts, len(inputs))
        for parts, input in zip(outputs, inputs, strict=True):
            flat = torch.empty(input.numel() * self._group.size, dtype=input.dtype, device=input.device)
            self._gather_into(call, flat, input, opts)
            call.afterwards(partial(_split, flat, parts))
        return call.work([part for parts in outputs for part in parts])

    def _gather_into(self, call: Call, target: Tensor, input: Tensor, opts: Any) -> None:
        source = input if input.is_contiguous() else input.detach().contiguous()
        plan = self._group.plan_move(input)
        if plan.reason is None:
            call.submit(plan, 0, source, target, target.nbytes)
            return
        name = "all_gather_single" if hasattr(self._group.gloo, "all_gather_single") else "_allgather_base"
        call.fall_back(plan.reason, target.nbytes, partial(self._gloo, name, target, source, opts))

    def _to_gloo(self, kind: str, reason: str, tensors: Sequence[Any], method: str, *arguments: Any) -> Any:
        """Runs the whole call on gloo; its own handle is returned, so nothing gloo offers is lost."""
        byte_count = sum(tensor.nbytes for tensor in tensors if tensor.layout == torch.strided)
        self._group.ledger.fell_back(kind, reason, byte_count)
        work = self._gloo(method, *arguments)
        self._group.remember(WorkPart(work))
        return work

    def _gloo(self, method: str, *arguments: Any) -> Any:
        return getattr(self._group.gloo, method)(*arguments)


_POINTWISE = "moves different data to each rank, so there is nothing to sum"


def _afterwards(call: Call, *steps: Callable[[], None] | None) -> None:
    for step in steps:
        if step is not None:
            call.afterwards(step)


def _is_integer_average(plan: Plan) -> bool:
    return plan.operator == "average" and plan.data_type in ("int32", "int64")


def _sum_for_integers(plan: Plan) -> Plan:
    # Truncating division of integers is done here, where torch defines it, and not on the wire.
    return plan._replace(operator="sum") if _is_integer_average(plan) else plan


def _divide(plan: Plan, buffer: Tensor, call: Call) -> Callable[[], None] | None:
    if not _is_integer_average(plan):
        return None
    part = call.last_part()

    def divide() -> None:
        held = part.contributions
        if held is None:
            return
        if held.least != held.most:
            raise _fanin.FaninError(
                f"an average of integers of {held.least} to {held.most} ranks, because a rank was lost meanwhile: "
                "average floats, or sum, and divide by what fanin.last_contributions() tells"
            )
        buffer.detach().div_(held.most, rounding_mode="trunc")

    return divide


def _split(flat: Tensor, parts: list[Tensor]) -> None:
    for part, values in zip(parts, flat.view(len(parts), flat.numel() // len(parts)), strict=True):
        part.detach().copy_(values.view(part.shape))


def _single_options(opts: Any) -> AllreduceOptions:
    single = AllreduceOptions()
    single.reduceOp, single.timeout = opts.reduceOp, opts.timeout
    return single


def _check_sizes(kind: str, shard: int, full: int, size: int, one: torch.dtype, other: torch.dtype) -> None:
    if shard * size != full or one != other:
        raise ValueError(
            f"{kind}: the full tensor must hold {size} x {shard} elements of {one}, but holds {full} of {other}"
        )
