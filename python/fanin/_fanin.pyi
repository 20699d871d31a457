"""Types of the compiled extension (crates/python). Times in seconds, sizes in bytes."""

from typing import Any

__version__: str

class FaninError(RuntimeError):
    """A collective, a connection or a setting failed; the text says what to do next."""

    kind: str
    """For programs: invalid, control, network, path, timed_out, mismatch, refused, peer_lost, switch_lost, aborted or
    closed. Errors of this module's own making (a bad name, a fork) do not have it.
    """

class FaninTimeout(FaninError):
    """A wait reached its deadline; the text names job, collective, rank, chunk, slot and missing workers."""

class Outcome:
    non_finite_blocks: int
    overflowed_elements: int
    chunks: int
    elapsed_s: float
    missing_least: int
    missing_most: int
    missing_ranks: list[int] | None

class Ticket:
    def is_done(self) -> bool: ...
    def wait(self, timeout_s: float | None = None) -> Outcome:
        """Blocks without the GIL; a signal such as Ctrl-C ends it within 50 ms."""

class Session:
    controller: str
    """Control address of the switch this session joined."""
    transport: str
    """What carries the collectives: ``"udp"``, ``"shared memory"``, or ``"shared memory and udp"``."""

    @staticmethod
    def connect(
        *,
        controller: str,
        job_name: str,
        run_id: str,
        rank: int,
        world_size: int,
        join_timeout_s: float,
        collective_timeout_s: float,
        auth_token: str | None = None,
        tls_ca: str | None = None,
        lane_count: int | None = None,
        slots_per_lane: int | None = None,
        element_count: int | None = None,
        element_format: str = "int32",
        wire_format: str = "fanin",
        transport: str = "auto",
        host_key: str | None = None,
        loss: float = 0.0,
        loss_seed: int = 0,
        spin_us: int | None = None,
        multicast: bool = True,
        algorithm: str = "switchml",
        own_server: bool | None = None,
        switch_name: str | None = None,
        on_peer_loss: str = "fail",
        replace: bool = False,
        stragglers: str = "wait",
        accumulator: str | None = None,
        tolerance: float | None = None,
        atp_scale: str = "static",
    ) -> Session:
        """Joins a job and waits for all its workers, or raises with the ranks that are missing."""
    def submit(
        self,
        kind: str,
        data_type: str,
        operator: str,
        root: int,
        input_address: int,
        output_address: int,
        element_count: int,
        label: str,
        keep_alive: object = None,
        carry_s: float = 0.0,
    ) -> Ticket:
        """Starts a collective on raw memory. `element_count` counts the full (larger) buffer.

        The addresses must stay valid until the ticket is done; `keep_alive` is held until then. A caller that is going
        to wait says with `carry_s` for how long, in seconds, it carries the packets itself meanwhile, without the GIL;
        at most 50 ms are taken, and nothing above 256 KiB is carried so. The ticket that it gets is done, or goes on
        by itself.
        """
    def admit(self, wait_s: float) -> list[int]: ...
    def allocate(self, bytes: int) -> Buffer:
        """Zeroed memory that the ranks of a host can sum where it lies; may outlive the session."""
    def totals(self) -> dict[str, dict[str, Any]]: ...
    def accumulator_counts(self) -> tuple[dict[str, int], dict[str, dict[str, int]]]:
        """What the switch's accumulator has met in the whole job, in additions and read-outs
        by cause: in all, and by tensor.

        The worst tensor comes first. Both are empty where nothing is counted.
        """
    def stats(self) -> str:
        """The worker runtime's counters, as JSON."""
    def abort(self, reason: str) -> None: ...
    def close(self) -> None: ...

class Buffer:
    """Zeroed memory from ``Session.allocate``; ``numpy.asarray`` reads it as bytes and keeps it alive."""

    is_registered: bool
    """Whether collectives on it need no copy."""
    @property
    def __array_interface__(self) -> dict[str, Any]: ...

class LocalSwitch:
    control_address: str
    @staticmethod
    def start(bind: str = "127.0.0.1") -> LocalSwitch: ...
    def stop(self, drain_s: float = 0.0) -> None: ...

class Accumulator:
    """One way of adding tensors of one process; see ``fanin.numerics``."""

    def __init__(self, name: str, dtype: str, workers: int) -> None: ...
    def sum(self, tensors: list[bytes]) -> bytes:
        """The sum of tensors, each as little-endian float32."""
    def counts(self) -> dict[str, int]: ...

def accumulator_names() -> list[str]: ...
def main(arguments: list[str]) -> int: ...
