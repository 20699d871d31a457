"""Whatever goes wrong, every wait ends with an error that says what and who."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
from worlds import HERE, Processes, Rank  # noqa: E402


def run(fault: str, *, started: int = 2, size: int = 2, timeout_s: float = 240, **extra: str) -> list[Rank]:
    command = [sys.executable, str(HERE / "fault_scripts.py"), fault]
    with Processes([command] * started, size, extra) as processes:
        return processes.wait(timeout_s)


def assert_clean(ranks: list[Rank], codes: list[int] | None = None) -> None:
    assert [rank.code for rank in ranks] == (codes or [0] * len(ranks)), "\n".join(rank.output for rank in ranks)
    for rank in ranks:
        assert "panicked" not in rank.output and "Traceback" not in rank.output, rank.output


def said(ranks: list[Rank]) -> list[str]:
    """What the ranks printed, without the greeting of gloo in older torch."""
    return [line for rank in ranks for line in rank.output.splitlines() if line and not line.startswith("[Gloo]")]


@pytest.mark.parametrize("missing", [2, 0])
def test_rank_that_never_starts_is_named(tmp_path: Path, missing: int) -> None:
    command = [sys.executable, str(HERE / "fault_scripts.py"), "rank_never_starts"]
    extra = {"TEST_STORE": str(tmp_path / "store"), "TEST_TIMEOUT": "5", "TEST_MISSING": str(missing)}
    commands = [command, command, command]
    # Rank numbers come from the place in the list; the missing one does something else.
    commands[missing] = [sys.executable, "-c", "pass"]
    with Processes(commands, 3, extra) as processes:
        assert_clean(processes.wait(60))


def test_rank_that_dies_in_a_collective() -> None:
    assert_clean(run("rank_dies", TEST_TIMEOUT="20"), [0, -signal.SIGKILL])


def test_others_go_on_without_a_rank_that_dies() -> None:
    settings = {"FANIN_ALGORITHM": "atp", "FANIN_ON_PEER_LOSS": "continue", "TEST_TIMEOUT": "60"}
    ranks = run("rank_dies_and_others_go_on", started=3, size=3, **settings)
    assert_clean(ranks, [0, 0, -signal.SIGKILL])


@pytest.mark.parametrize("fault", ["timeout_explains", "timeout_reaches_futures_and_backward", "wait_with_a_timeout"])
def test_timeout(fault: str) -> None:
    assert_clean(run(fault))


@pytest.mark.parametrize("fault", ["mismatched_sizes", "mismatched_types", "mismatched_order"])
def test_mismatch(fault: str) -> None:
    ranks = run(fault, TEST_TIMEOUT="10")
    assert_clean(ranks)
    assert any("do not call the same collectives in the same order" in rank.output for rank in ranks), ranks


def test_wrong_switch_address() -> None:
    assert_clean(run("wrong_address", FANIN_SWITCH="127.0.0.1:9"))


def test_unknown_setting() -> None:
    assert_clean(run("unknown_setting", FANIN_LANE="2"))


def test_exit_without_destroy() -> None:
    ranks = run("exit_without_destroy", TEST_TIMEOUT="1000")
    # Ending at all shows that nothing waited for that timeout; a loaded machine takes a minute to import torch.
    assert_clean(ranks)
    assert said(ranks) == []


@pytest.mark.parametrize("fault", ["exit_with_pending_work", "exit_with_pushes_pending"])
def test_exit_with_pending_work(fault: str) -> None:
    ranks = run(fault, TEST_TIMEOUT="1000")
    # Ending at all shows that nothing waited for that timeout; a loaded machine takes a minute to import torch.
    assert_clean(ranks)
    assert said(ranks) == []


def test_destroy_and_start_again() -> None:
    assert_clean(run("destroy_and_start_again", TEST_TIMEOUT="60"))


def test_fork() -> None:
    assert_clean(run("forked_child", TEST_TIMEOUT="60"))


@pytest.mark.parametrize("transport", ["udp", "auto"])
@pytest.mark.parametrize("fault", ["interrupted", "interrupted_in_a_numpy_session", "handles_signals_while_it_waits"])
def test_keyboard_interrupt(fault: str, transport: str) -> None:
    assert_clean(run(fault, TEST_TIMEOUT="4", FANIN_TRANSPORT=transport))


def test_close_while_another_thread_waits() -> None:
    assert_clean(run("closed_while_another_thread_waits", TEST_TIMEOUT="60"))
    assert_clean(run("closed_while_another_thread_waits", TEST_TIMEOUT="60", FANIN_TRANSPORT="auto"))


def test_abort() -> None:
    assert_clean(run("aborted", TEST_TIMEOUT="4"))


def test_loss() -> None:
    assert_clean(run("resends_after_loss", TEST_TIMEOUT="60", FANIN_LOSS="0.02", FANIN_LOSS_SEED="5"))


def test_settings_reach_the_session() -> None:
    settings = {"FANIN_LANES": "2", "FANIN_SLOTS": "16", "FANIN_ELEMENTS": "64", "FANIN_ELEMENT_FORMAT": "float16"}
    assert_clean(run("settings_reach_the_session", TEST_TIMEOUT="60", **settings))


def test_p4app_layout() -> None:
    assert_clean(run("p4app_layout", TEST_TIMEOUT="60", FANIN_WIRE_FORMAT="p4app"))
