"""Collectives on numpy arrays, without torch.

>>> with fanin.Session(switch="10.0.0.1:7171", job="mean", rank=rank, world_size=4) as session:
...     session.all_reduce(gradient, op="average")
"""

from __future__ import annotations

import os
from math import prod
from typing import Any, Final

from fanin import _fanin
from fanin.config import ConfigError, load
from fanin.rendezvous import session_settings
from fanin.telemetry import Contributions, Ledger, note_contributions

#: Array types that the switch can sum, and their name in the worker runtime.
SUMMABLE: Final = ("float32", "float16", "bfloat16", "int32", "int64")
_ELEMENT_BYTES: Final = {"float32": 4, "float16": 2, "bfloat16": 2, "int32": 4, "int64": 8}
OPERATORS: Final = ("sum", "average", "max", "min", "band", "bor", "bxor")
DEFAULT_TIMEOUT_S: Final = 300.0
#: A caller that waits carries the packets itself for this long before it leaves them to the session's threads, seconds:
#: until then a wake-up counts, and Ctrl-C is noticed afterwards.
CARRY_S: Final = 0.05


class Pending:
    """A collective in flight. Keep the arrays unchanged until ``wait`` returns."""

    def __init__(self, ticket: _fanin.Ticket, result: Any, world_size: int) -> None:
        self._ticket, self._result, self._world_size = ticket, result, world_size
        self._contributions: Contributions | None = None

    def is_done(self) -> bool:
        """Whether the result is there (or the failure known); never blocks."""
        return self._ticket.is_done()

    def wait(self, timeout: float | None = None) -> Any:
        """The finished array. Raises ``FaninError``; with `timeout` (seconds), ``FaninTimeout`` when that is over."""
        outcome = self._ticket.wait(timeout)
        self._contributions = Contributions.of(outcome, self._world_size)
        note_contributions(self._contributions)
        return self._result

    def contributions(self) -> Contributions:
        """Whose contributions the result holds; waits for it."""
        if self._contributions is None:
            self.wait()
        assert self._contributions is not None
        return self._contributions


class Session:
    """Membership of one worker in one job; a context manager.

    All workers of a job give the same `job`, `run_id` and `world_size`, and issue the same collectives in the
    same order.
    Arrays must be C-contiguous and outputs writable. Settings that are not arguments come from ``fanin.config``.
    """

    def __init__(
        self,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        switch: str | None = None,
        job: str = "numpy",
        run_id: str | None = None,
        timeout: float | None = None,
        replace: bool = False,
    ) -> None:
        """Joins the job and waits for all its workers.

        With `replace` it takes the place of the lost worker of this rank in a job that goes on, and waits until the
        others call ``admit``; `job`, `run_id` and all settings are those of the lost worker. The first collective is
        then the others' first one after ``admit``.

        `rank` and `world_size` default to ``RANK`` and ``WORLD_SIZE``; `run_id` (``TORCHELASTIC_RUN_ID``, else ``"0"``)
        tells two runs of the same job apart; `timeout` in seconds ends the join and every collective.
        Raises ``FaninTimeout`` naming the ranks that did not come.
        """
        settings = load()
        controller = switch or settings.switch
        if controller is None:
            raise ConfigError(
                "no switch given: pass switch='host:port', set FANIN_SWITCH, or start fanin.LocalSwitch()"
            )
        self.rank = _from_environment(rank, "RANK")
        self.world_size = _from_environment(world_size, "WORLD_SIZE")
        timeout_s = timeout or settings.timeout or DEFAULT_TIMEOUT_S
        self._session = _fanin.Session.connect(
            controller=controller,
            job_name=job,
            run_id=run_id or os.environ.get("TORCHELASTIC_RUN_ID", "0"),
            rank=self.rank,
            world_size=self.world_size,
            join_timeout_s=timeout_s,
            collective_timeout_s=timeout_s,
            replace=replace,
            **session_settings(settings),
        )
        self._keep_books(job, timeout_s)

    @classmethod
    def adopt(cls, session: _fanin.Session, *, rank: int, world_size: int, job: str, timeout: float) -> Session:
        """Takes over a session that was joined in another way, with this `timeout` in seconds."""
        self = cls.__new__(cls)
        self._session, self.rank, self.world_size = session, rank, world_size
        self._keep_books(job, timeout)
        return self

    @property
    def switch_address(self) -> str:
        """``host:port`` of the switch's controller."""
        return str(self._session.controller)

    def _keep_books(self, job: str, timeout_s: float) -> None:
        self.timeout = timeout_s
        self._ledger = Ledger(job, self.rank, self.world_size)
        self._ledger.switch_address = self._session.controller
        self._ledger.attach(self._session)

    def empty(self, shape: int | tuple[int, ...], dtype: Any = "float32") -> Any:
        """A numpy array, zeroed, that the workers of one host sum where it lies, without a copy.

        That takes effect where all workers are on one host and use such arrays for input and output of a collective;
        elsewhere it is an array like any other. It may outlive the session.
        """
        import numpy

        wanted = numpy.dtype(dtype)
        count = prod(shape) if isinstance(shape, tuple) else shape
        memory = numpy.asarray(self._session.allocate(max(1, count) * wanted.itemsize))
        return memory[: count * wanted.itemsize].view(wanted).reshape(shape)

    def all_reduce(self, array: Any, op: str = "sum", *, out: Any = None, wait: bool = True) -> Any:
        """Combines `array` over all workers into `out` (default: in place) and returns it, or a ``Pending``."""
        out = array if out is None else out
        data_type = _summable(array, op)
        _same(out, array, prod(array.shape))
        return self._submit("all_reduce", data_type, op, 0, array, out, prod(array.shape), wait)

    def reduce(self, array: Any, op: str = "sum", *, root: int = 0, out: Any = None, wait: bool = True) -> Any:
        """As ``all_reduce``, but only `root` gets the result; elsewhere `out` keeps its contents."""
        out = array if out is None else out
        data_type = _summable(array, op)
        _same(out, array, prod(array.shape))
        self._check_root(root)
        return self._submit("reduce", data_type, op, root, array, out, prod(array.shape), wait)

    def reduce_scatter(self, array: Any, out: Any, op: str = "sum", *, wait: bool = True) -> Any:
        """Combines `array` (world_size × shard elements) and leaves this rank's shard in `out`."""
        data_type = _summable(array, op)
        _same(out, array, prod(array.shape) // self.world_size)
        if prod(out.shape) * self.world_size != prod(array.shape):
            raise ValueError(f"array of {prod(array.shape)} elements is not {self.world_size} equal shards of out")
        return self._submit("reduce_scatter", data_type, op, 0, array, out, prod(array.shape), wait)

    def all_gather(self, array: Any, out: Any, *, wait: bool = True) -> Any:
        """Concatenates every worker's `array`, in rank order and bit for bit, into `out`. Any data type."""
        _interface(array)
        _same(out, array, prod(array.shape) * self.world_size)
        return self._submit("all_gather", "bytes", "sum", 0, array, out, _byte_count(out), wait)

    def broadcast(self, array: Any, *, root: int = 0, wait: bool = True) -> Any:
        """Copies `root`'s `array` into everybody's, bit for bit. Any data type."""
        self._check_root(root)
        address_of(array, writable=True)
        return self._submit("broadcast", "bytes", "sum", root, array, array, _byte_count(array), wait)

    def barrier(self) -> None:
        """Returns once every worker has called it."""
        self._ledger.submitted("barrier", 0)
        self._session.submit("barrier", "bytes", "sum", 0, 0, 0, 0, "", carry_s=CARRY_S).wait()

    def admit(self, wait: float = 0.0) -> list[int]:
        """Lets new processes take the places of lost workers; returns the ranks that were replaced.

        Every worker calls this at the same place of its loop, in a job with ``FANIN_ON_PEER_LOSS=continue``, and gets
        the same list. It waits for the results of earlier collectives and for the other workers; then, if a lost worker
        has no replacement yet, up to `wait` seconds for it (the longest `wait` of all workers). What the newcomers must
        know, such as weights and the number of the step, is sent to them by collectives that follow, for example
        ``broadcast``.
        """
        return list(self._session.admit(wait))

    def start_sum(
        self,
        source: int,
        target: int,
        data_type: str,
        element_count: int,
        keep_alive: object,
        *,
        average: bool = False,
        label: str = "",
        carry_s: float = 0.0,
    ) -> _fanin.Ticket:
        """All-reduce of memory at addresses, for the rest of the package; `carry_s` as the extension's ``submit``."""
        self._ledger.submitted("all_reduce", element_count * _ELEMENT_BYTES[data_type])
        return self._session.submit(
            "all_reduce",
            data_type,
            "average" if average else "sum",
            0,
            source,
            target,
            element_count,
            label,
            keep_alive,
            carry_s,
        )

    def stats(self) -> dict[str, Any]:
        """Counts of this session, as ``fanin.stats()`` gives them for a group."""
        return self._ledger.snapshot()

    def abort(self, reason: str = "aborted by the program") -> None:
        """Fails every collective in flight here; the other workers' fail once this one has left the job."""
        self._session.abort(reason)

    def close(self) -> None:
        """Leaves the job; collectives in flight fail. Closing twice is harmless."""
        self._ledger.detach(self._session)
        self._session.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if kind is not None:
            # The others wait for contributions that will never come; leaving now tells them long before their timeout.
            self._session.abort(f"rank {self.rank} left with {kind.__name__}: {error}")
        self.close()

    def _check_root(self, root: int) -> None:
        if not 0 <= root < self.world_size:
            raise ValueError(f"root {root} is not a rank of this job of {self.world_size} workers")

    def _submit(
        self, kind: str, data_type: str, op: str, root: int, array: Any, out: Any, element_count: int, wait: bool
    ) -> Any:
        source = address_of(array, writable=False)
        target = address_of(out, writable=True)
        self._ledger.submitted(kind, _byte_count(array if kind != "all_gather" else out))
        ticket = self._session.submit(
            kind, data_type, op, root, source, target, element_count, "", (array, out), CARRY_S if wait else 0.0
        )
        pending = Pending(ticket, out, self.world_size)
        return pending.wait() if wait else pending


def _from_environment(value: int | None, name: str) -> int:
    if value is not None:
        return value
    text = os.environ.get(name, "")
    if not text.isdigit():
        raise ConfigError(f"no {name.lower()} given: pass {name.lower()}=..., or set {name} as torchrun does")
    return int(text)


def _interface(array: Any) -> dict[str, Any]:
    # numpy's own protocol: no import of numpy here, and CuPy-like or torch objects without host memory are refused.
    interface: dict[str, Any] | None = getattr(array, "__array_interface__", None)
    if interface is None:
        raise TypeError(f"expected a numpy array, got {type(array).__name__}")
    return interface


def address_of(array: Any, *, writable: bool) -> int:
    """Address of the array's first byte, after checking the layout that the runtime relies on."""
    interface = _interface(array)
    if interface.get("strides") is not None:
        raise ValueError("array is not C-contiguous; use numpy.ascontiguousarray")
    address, read_only = interface["data"]
    if writable and read_only:
        raise ValueError("array is read-only, but the result is written into it; pass out=")
    return int(address)


def _byte_count(array: Any) -> int:
    return int(array.nbytes)


def _summable(array: Any, op: str) -> str:
    _interface(array)
    name = str(array.dtype)
    if name not in SUMMABLE or not array.dtype.isnative:
        raise TypeError(f"the switch does not sum {array.dtype!r}; it sums {', '.join(SUMMABLE)} in native byte order")
    if op not in OPERATORS:
        raise ValueError(f"unknown op {op!r}; one of {', '.join(OPERATORS)}")
    return name


def _same(out: Any, array: Any, element_count: int) -> None:
    if out.dtype != array.dtype or prod(out.shape) != element_count:
        raise ValueError(
            f"out must hold {element_count} elements of {array.dtype}, but holds {prod(out.shape)} of {out.dtype}"
        )
