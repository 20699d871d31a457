"""The demonstration: its pure parts, what it refuses, and one quick run from start to report."""

from __future__ import annotations

import gzip
import html.parser
import math
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy
import pytest
from fanin.demo import DemoError, compare, launch, mnist, network, plots

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "data" / "mnist-t10k"


def write_idx(path: Path, shape: tuple[int, ...], values: bytes, code: int = 8) -> Path:
    header = struct.pack(f">HBB{len(shape)}I", 0, code, len(shape), *shape)
    path.write_bytes(gzip.compress(header + values))
    return path


def test_idx_has_the_shape_of_its_header(tmp_path: Path) -> None:
    array = mnist.read_idx(write_idx(tmp_path / "a.gz", (2, 3), bytes(range(6))))
    assert array.tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    ("shape", "values", "code", "words"),
    [
        ((2, 3), bytes(5), 8, "states 6 elements but holds 5"),
        ((2, 3), bytes(7), 8, "states 6 elements but holds 7"),
        ((2,), bytes(2), 13, "not an IDX file of unsigned bytes"),
    ],
)
def test_damaged_idx_is_refused(tmp_path: Path, shape: Any, values: bytes, code: int, words: str) -> None:
    path = write_idx(tmp_path / "a.gz", shape, values, code)
    with pytest.raises(DemoError, match=words):
        mnist.read_idx(path)


def test_truncated_and_missing_files_are_refused(tmp_path: Path) -> None:
    path = write_idx(tmp_path / "a.gz", (2,), bytes(2))
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DemoError, match="cannot be read"):
        mnist.read_idx(path)
    with pytest.raises(DemoError, match="is missing"):
        mnist.read_idx(tmp_path / "b.gz")
    path.write_bytes(gzip.compress(b"\0\0\x08\x03\0\0"))
    with pytest.raises(DemoError, match="ends inside its header"):
        mnist.read_idx(path)


def test_the_repository_s_images() -> None:
    images, labels = mnist.load(DATA)
    assert images.shape == (10_000, 1, 28, 28) and images.dtype == numpy.float32
    assert abs(images.mean()) < 0.05 and abs(images.std() - 1) < 0.05
    assert numpy.bincount(labels).min() == 892 and numpy.bincount(labels).max() == 1135


def a_run(backend: str, losses: list[float], **changes: Any) -> compare.Run:
    totals = {"switch": 9, "fallback": 1, "resends": 3} if backend == "fanin" else {}
    row = {"reasons": {"too odd": 1}}
    rank = {
        "losses": losses,
        "epochs": [{"loss": 0.5, "accuracy": 0.875, "images_per_second": 1000.0}],
        "train_seconds": 2.0,
        "communication_seconds": 0.5,
        "gradient_bytes": 8_000_000,
        "wire": {"fanin_sent": 8_100_000},
        "fanin": {"groups": [{"collectives": {"all_reduce": row}}] if totals else [], "totals": totals},
    } | changes
    return compare.Run(backend, [rank, rank, rank, rank], 7.0)


def test_bound_grows_with_steps_workers_and_coarser_elements() -> None:
    bounds = compare.loss_bounds(186, 4)
    assert bounds[0] == 40 * 2**-23 and bounds[-1] == pytest.approx(8.87e-4, rel=1e-3)
    assert compare.loss_bounds(3, 8)[-1] == 2 * compare.loss_bounds(3, 4)[-1]
    assert compare.loss_bounds(1, 4, "float16")[0] == 2**13 * bounds[0]
    assert compare.loss_bounds(1, 4, "bfloat16")[0] == 2**16 * bounds[0]
    assert compare.loss_bounds(1, 4, "int8")[0] == 2**17 * bounds[0]


def test_differences_and_their_verdict() -> None:
    assert compare.loss_differences([2.0, 1.0, 0.0], [2.0, 1.5, 0.0]) == [0.0, pytest.approx(1 / 3), 0.0]
    assert compare.within([0.0, 1e-7], [1e-7, 1e-7])
    assert not compare.within([0.0, 2e-7], [1e-7, 1e-7])
    assert not compare.within(compare.loss_differences([1.0], [math.nan]), [1.0])
    assert compare.verdict([1.0], [0.5]).startswith("NOT within")


def test_wire_bytes_say_how_they_are_known() -> None:
    gloo, fanin = a_run("gloo", [1.0]), a_run("fanin", [1.0])
    assert compare.wire(gloo) == compare.Wire(12_000_000, "computed")
    assert compare.wire(fanin) == compare.Wire(8_100_000, "counted")
    measured = a_run("gloo", [1.0], wire={"fanin_sent": 0, "tx_bytes": 12_345_678, "rx_bytes": 1})
    assert compare.wire(measured) == compare.Wire(12_345_678, "measured")


def test_table() -> None:
    runs = [a_run("gloo", [1.0, 0.5]), a_run("fanin", [1.0, 0.5000001])]
    differences = compare.loss_differences(runs[0].losses, runs[1].losses)
    table = compare.rows(runs, compare.loss_bounds(2, 4), differences)
    text = compare.text_table(["", "gloo", "fanin"], table)
    assert "link allows" not in text
    shaped = compare.text_table(["", "gloo", "fanin"], compare.rows(runs, [1.0], [0.0], 1e8))
    assert re.search(r"least that the link allows +0.96 s +0.65 s", shaped)
    assert re.search(r"test accuracy +87.50% +87.50%", text)
    assert re.search(r"in communication +0.50 s \(25%\) +0.50 s \(25%\)", text)
    assert re.search(r"sent per worker +12.0 MB \(computed\) +8.1 MB \(counted\)", text)
    assert re.search(r"resends, all workers +- +12$", text, re.M)
    assert re.search(r"through the switch +- +90.0% \(36 of 40\)", text)
    assert re.search(r"loss curves +2.0e-07, within 9.5e-06", text)
    assert runs[1].reasons() == {"all_reduce: too odd": 4}


def test_a_worker_without_result_is_named(tmp_path: Path) -> None:
    (tmp_path / "result-0.json").write_text("{}")
    with pytest.raises(DemoError, match="worker 1 of the gloo run"):
        compare.read_run("gloo", tmp_path, 2, 1.0)


def test_overlapping_spans_count_once() -> None:
    pytest.importorskip("torch")
    from fanin.demo.meter import union_seconds

    assert union_seconds([(4.0, 5.0), (0.0, 2.0), (1.0, 3.0), (1.5, 1.75)]) == 4.0
    assert union_seconds([]) == 0.0


def test_ticks_are_round_numbers_inside_the_range() -> None:
    assert plots.ticks(0, 2.4) == [0, 0.5, 1, 1.5, 2]
    assert plots.ticks(0.91, 0.97, 4) == [0.92, 0.94, 0.96]
    assert plots.ticks(3, 3) == [3]
    assert plots.decades(1e-9, 1e-3) == [1e-9, 1e-7, 1e-5, 1e-3]


class Well(html.parser.HTMLParser):
    """Checks that elements are closed in order, and notes what would be loaded from elsewhere."""

    VOID = ("meta", "line", "circle", "rect", "polyline", "br", "link", "img")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.outside: list[str] = []
        self.tags: dict[str, int] = {}
        self.feed(text)
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] = self.tags.get(tag, 0) + 1
        self.outside += [f"{tag} {name}" for name, _ in attrs if name in ("src", "href", "xlink:href")]
        if tag not in self.VOID or tag == "rect":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID or tag == "rect":
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_line_chart_maps_values_to_pixels_and_leaves_out_nan() -> None:
    curve = plots.Series("a<b", "gloo", [1, 2, 3], [0.0, math.nan, 10.0])
    text = plots.line_chart("t", [curve], "step")
    assert Well(text).tags["polyline"] == 1 and "a&lt;b" in text
    points = re.search(r'points="([^"]*)"', text)
    assert points is not None
    (x0, y0), (x1, y1) = (tuple(map(float, point.split(","))) for point in points[1].split())
    assert x0 < x1 and y0 > y1 and x1 <= plots.WIDTH and y0 <= plots.HEIGHT


def test_line_chart_without_finite_values_says_so() -> None:
    assert "no finite values" in plots.line_chart("t", [plots.Series("a", "gloo", [1], [math.nan])], "step")


def test_logarithmic_scale_puts_zero_on_the_axis() -> None:
    scale = plots.Scale(1e-6, 1e-2, 100.0, 0.0, logarithmic=True)
    assert scale(0.0) == 100.0 and scale(1e-4) == pytest.approx(50.0) and scale(1e-2) == 0.0


def test_bars_are_as_long_as_their_values() -> None:
    text = plots.bar_chart("t", [("a", [plots.Part(1, "gloo", "x")]), ("b", [plots.Part(4, "fanin", "y")])])
    short, long = (float(width) for width in re.findall(r'<rect [^>]*width="([\d.]+)"', text))
    assert long == pytest.approx(4 * short, rel=0.01) and Well(text)


def test_network_description() -> None:
    line = (
        '{"id": "f7", "switch": {"ns": "f7-s", "address": "10.1.0.1"}, '
        '"workers": [{"ns": "f7-0", "address": "10.1.0.2", "device": "eth0"}]}'
    )
    found = network.parse(f"note\n{line}\n")
    assert found.identity == "f7" and found.workers == [network.Worker("f7-0", "10.1.0.2", "eth0")]
    (command,) = network.commands(found, ["-m", "x"], "10.1.0.1:50099")
    assert command.arguments == ["ip", "netns", "exec", "f7-0", sys.executable, "-m", "x"]
    wanted = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "10.1.0.2", "FANIN_SWITCH": "10.1.0.1:50099"}
    assert wanted.items() <= command.environment.items() and command.environment["GLOO_SOCKET_IFNAME"] == "eth0"
    assert "FANIN_SWITCH" not in network.commands(found, [], None)[0].environment
    for text in ("", "{}", "[]", "no"):
        with pytest.raises(DemoError, match="something else than a network"):
            network.parse(text)


def test_rates() -> None:
    assert network.check_rate("500mbit") == 5e8 and network.check_rate("1.5Gbit") == 1.5e9
    for rate in ("500", "0mbit", "fast", "-1mbit"):
        with pytest.raises(DemoError, match="expected a rate"):
            network.check_rate(rate)


def test_a_failing_process_ends_the_others_and_its_log_is_shown(tmp_path: Path) -> None:
    sleeper = launch.Command("sleeper", ["sleep", "60"])
    failing = launch.Command("failing", ["sh", "-c", "echo 'no such thing' >&2; exit 3"])
    started = time.monotonic()
    with pytest.raises(DemoError, match=r"(?s)failing ended with status 3.*no such thing"):
        launch.run([sleeper, failing], tmp_path, 50, print)
    assert time.monotonic() - started < 10


def test_a_stuck_process_is_ended_at_the_timeout(tmp_path: Path) -> None:
    with pytest.raises(DemoError, match="stuck did not end in time"):
        launch.run([launch.Command("stuck", ["sleep", "60"])], tmp_path, 0.5, print)


def test_lines_of_the_first_process_arrive_in_order(tmp_path: Path) -> None:
    lines: list[str] = []
    launch.run([launch.Command("talker", ["sh", "-c", "echo one; echo two"])], tmp_path, 20, lines.append)
    assert lines == ["one", "two"]


def demo(*arguments: str, timeout_s: float = 30, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("FANIN_")}
    command = [sys.executable, "-m", "fanin.demo", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout_s, cwd=ROOT, env=clean | environment, check=False
    )


@pytest.mark.parametrize(
    ("arguments", "environment", "words"),
    [
        (["--workers", "1"], {}, "--workers 1: 2 to 64 are possible"),
        (["--epochs", "0"], {}, "--epochs 0: at least 1"),
        (["--data", "/nowhere"], {}, "no MNIST images in /nowhere"),
        (["--net", "fast"], {}, "expected a rate such as 500mbit"),
        ([], {"FANIN_LANS": "1"}, "did you mean FANIN_LANES"),
    ],
)
def test_what_cannot_work_is_refused_at_once(
    tmp_path: Path, arguments: list[str], environment: dict[str, str], words: str
) -> None:
    pytest.importorskip("torch")
    done = demo("--out", str(tmp_path), *arguments, **environment)
    assert done.returncode == 1, done.stdout
    assert words in done.stderr and "Traceback" not in done.stderr


def test_net_without_root_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(DemoError, match="needs root"):
        network.require_root()


def test_quick_run(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    done = demo("--quick", "--workers", "2", "--out", str(tmp_path), timeout_s=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"fanin: epoch 1/1: .* images/s", done.stdout)
    # 62 gradients and a few calls of DDP's own, on two workers; only the float64 sums of the test fall back.
    share = re.search(r"through the switch +- +([\d.]+)%", done.stdout)
    assert share is not None and float(share[1]) > 95
    assert "2 times: all_reduce: dtype float64" in done.stdout
    last = done.stdout.splitlines()[-1]
    assert last == f"The report is {tmp_path / 'report.html'}"
    page = Well((tmp_path / "report.html").read_text())
    assert page.tags["svg"] == 5 and page.outside == []


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
@pytest.mark.skipif(not (shutil.which("ip") and shutil.which("tc")), reason="network namespaces need iproute2")
def test_quick_run_behind_shaped_links(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    done = demo("--quick", "--workers", "2", "--net", "1gbit", "--out", str(tmp_path), timeout_s=280)
    assert done.returncode == 0, done.stdout + done.stderr
    # Both are read at the workers' own devices; two workers send the same gradients either way, each once.
    sent = re.search(r"sent per worker +([\d.]+) MB \(measured\) +([\d.]+) MB \(measured\)", done.stdout)
    assert sent is not None
    gradients_mb = 31 * 4 * (784 * 1536 + 1536 + 1536 * 1024 + 1024 + 1024 * 10 + 10) / 1e6
    for value in sent.groups():
        assert gradients_mb < float(value) < 1.15 * gradients_mb
    network_id = (tmp_path / "network").read_text()
    assert network_id not in subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout


def test_sigterm_leaves_no_worker_behind(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    command = [sys.executable, "-m", "fanin.demo", "--workers", "2", "--epochs", "500", "--out", str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while "gloo: epoch 1/500" not in process.stdout.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
    marks = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if _readable(path)]
    assert not any(str(tmp_path).encode() in mark for mark in marks)


def _readable(path: Path) -> bool:
    try:
        path.read_bytes()
    except OSError:
        return False
    return True
