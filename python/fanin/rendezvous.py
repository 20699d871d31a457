"""How the ranks of one group find the same switch and the same job.

Group rank 0 chooses the switch (``FANIN_SWITCH``, or a private one inside its own process), invents a run id and
publishes both through the group's store; then all ranks join the job, and the switch itself names whoever is missing.
"""

from __future__ import annotations

import ipaddress
import json
import os
import socket
import threading
import time
import uuid
from datetime import timedelta
from typing import Any, Protocol

from fanin import _fanin
from fanin.config import Config

_POLL_SECONDS_MAX = 0.05
_EXIT_DRAIN_SECONDS = 5.0


class Store(Protocol):
    """The part of ``torch.distributed.Store`` that a rendezvous needs."""

    def set(self, key: str, value: str, /) -> None: ...
    def get(self, key: str, /) -> bytes: ...
    def check(self, keys: list[str], /) -> bool: ...


class LocalSwitch:
    """A private software switch inside this process, for one machine or for tests.

    >>> with fanin.LocalSwitch() as switch:
    ...     session = fanin.Session(switch=switch.address, rank=0, world_size=1)
    """

    def __init__(self, bind: str = "127.0.0.1") -> None:
        self._switch = _fanin.LocalSwitch.start(bind)
        self.address: str = self._switch.control_address

    def stop(self, drain_s: float = 0.0) -> None:
        """Stops the switch, after waiting up to `drain_s` for its jobs to finish; jobs that still use it then fail."""
        self._switch.stop(drain_s)

    def __enter__(self) -> LocalSwitch:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class _Known:
    """The local switch of this job, started here or learned from an earlier group."""

    lock = threading.Lock()
    switch: LocalSwitch | None = None
    address: str | None = None
    process_id: int = -1


def connect(
    store: Store, *, rank: int, world_size: int, timeout: timedelta, group: str, config: Config
) -> _fanin.Session:
    """Joins the job of one group and returns its session; collective over the group.

    Raises ``FaninTimeout`` with the missing ranks once `timeout` (or ``FANIN_TIMEOUT``) is over.
    """
    timeout_s = config.timeout or timeout.total_seconds()
    deadline = time.monotonic() + timeout_s
    store.set(f"present/{rank}", "1")
    if rank == 0:
        plan = {"run_id": uuid.uuid4().hex, "controller": config.switch or _local_switch_address()}
        store.set("plan", json.dumps(plan))
    else:
        plan = _wait_for_plan(store, world_size, timeout_s, deadline, group)
        if config.switch is None:
            _remember(plan["controller"])
    return _fanin.Session.connect(
        controller=plan["controller"],
        job_name=f"{config.job}/{group}",
        run_id=plan["run_id"],
        rank=rank,
        world_size=world_size,
        join_timeout_s=max(1.0, deadline - time.monotonic()),
        collective_timeout_s=timeout_s,
        **session_settings(config),
    )


def session_settings(config: Config) -> dict[str, Any]:
    """The settings that pass to ``_fanin.Session.connect`` unchanged, under its own words."""
    return {
        "auth_token": config.token,
        "tls_ca": config.tls_ca,
        "lane_count": config.lanes,
        "slots_per_lane": config.slots,
        "element_count": config.elements,
        "element_format": config.element_format,
        "wire_format": config.wire_format,
        "transport": config.transport,
        "host_key": config.host_key,
        "loss": config.loss,
        "loss_seed": config.loss_seed,
        "spin_us": config.spin_us,
        "multicast": config.multicast == "on",
        "algorithm": config.algorithm,
        "own_server": {"auto": None, "on": True, "off": False}[config.server],
        "switch_name": config.switch_name,
        "on_peer_loss": config.on_peer_loss,
        "stragglers": config.stragglers,
        "accumulator": config.accumulator,
        "tolerance": config.tolerance,
        "atp_scale": config.atp_scale,
    }


def _wait_for_plan(store: Store, world_size: int, timeout_s: float, deadline: float, group: str) -> dict[str, str]:
    # Polling instead of store.wait keeps Ctrl-C working and lets the error name every absent rank.
    pause = 0.001
    try:
        while not store.check(["plan"]):
            if time.monotonic() > deadline:
                absent = [rank for rank in range(world_size) if not store.check([f"present/{rank}"])]
                raise _fanin.FaninTimeout(
                    f"process group {group!r}: rank 0 did not publish the switch's address within {timeout_s:g} s; "
                    f"ranks that never arrived: {absent or [0]}. Start them, or raise the group's timeout."
                )
            time.sleep(pause)
            pause = min(2 * pause, _POLL_SECONDS_MAX)
        plan: dict[str, str] = json.loads(store.get("plan"))
        return plan
    except _fanin.FaninError:
        raise
    except RuntimeError as error:
        raise _fanin.FaninError(
            f"process group {group!r}: the store went away while this rank waited for the switch's address; "
            f"rank 0 has probably failed, so look at its error first ({error})"
        ) from error


def _local_switch_address() -> str:
    with _Known.lock:
        _forget_after_fork()
        if _Known.address is None:
            _Known.switch = LocalSwitch(local_address())
            _Known.address = _Known.switch.address
        return _Known.address


def stop_local_switch() -> None:
    """At exit: the ranks that still need this process's switch get a moment to finish first."""
    switch, owner = _Known.switch, _Known.process_id
    if switch is not None and owner == os.getpid():
        switch.stop(_EXIT_DRAIN_SECONDS)


def _remember(address: str) -> None:
    with _Known.lock:
        _forget_after_fork()
        # A sub-group led by this rank then reuses the first group's switch instead of starting another.
        _Known.address = _Known.address or address


def _forget_after_fork() -> None:
    if _Known.process_id != os.getpid():
        _Known.switch, _Known.address, _Known.process_id = None, None, os.getpid()


def local_address() -> str:
    """This host's address for other ranks: loopback when ``MASTER_ADDR`` is, else the interface towards it."""
    master = os.environ.get("MASTER_ADDR", "127.0.0.1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Connecting a datagram socket sends nothing; it only asks the kernel for a route.
            probe.connect((master, 9))
            address = str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
    return "127.0.0.1" if ipaddress.ip_address(address).is_loopback else address
