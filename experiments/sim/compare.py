#!/usr/bin/env python3
"""Packet-hops per CPU second of fanin, ns-3 and csg-htsim on the same load, in turn, and their ratios.

    experiments/sim/compare.py                              fanin beside ns-3, if it is installed
    experiments/sim/compare.py --htsim ~/csg-htsim/sim      and beside csg-htsim, built there
    experiments/sim/compare.py --ns3-flags "-I... -L... -lns3..."   another ns-3 than pkg-config's

The load is experiments/sim/permutation.toml on fat trees of 16, 128 and 1,024 hosts: one DCTCP flow from each host,
six links each way. A packet-hop is one packet sent over one link, acknowledgements too. Each engine runs once a
round, so that a machine that drifts does so for all; quoted are medians over the rounds, and of the ratios in each
round. Time is user and system time of the event loop, without set-up. ns-3 takes the very paths of fanin; htsim
draws its own. Needs cargo, a C++ compiler and the standard library.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
HERE = Path(__file__).resolve().parent
PACKAGES = ["ns3-core", "ns3-network", "ns3-internet", "ns3-point-to-point", "ns3-traffic-control"]
MILLISECONDS = {
    # By ports of a switch: about a second of each engine's time.
    4: {"fanin": 40.0, "ns3": 1.0, "htsim": 10.0},
    8: {"fanin": 10.0, "ns3": 0.5, "htsim": 3.0},
    16: {"fanin": 2.0, "ns3": 0.1, "htsim": 0.5},
}
LIMIT_S = 1200


def output(command: list[str], **options: object) -> str:
    """What a command prints; its own error text goes to ours."""
    return subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT, timeout=LIMIT_S, **options
    ).stdout


def number(text: str, name: str) -> float:
    """The value of name=value."""
    found = re.search(rf"\b{name}=([0-9.e+-]+)", text)
    if not found:
        sys.exit(f"no {name}= in: {text}")
    return float(found[1])


def build_fanin() -> Path:
    """The benchmark's program."""
    text = output(["cargo", "bench", "--no-run", "--message-format=json", "-p", "fanin-sim", "--bench", "speed"])
    programs = re.findall(r'"executable":"([^"]*/speed-[^"]*)"', text)
    return Path(programs[-1])


def build_ns3(flags: str | None, folder: Path) -> Path | None:
    """ns-3's program, or nothing where ns-3 is not installed."""
    if flags is None:
        found = subprocess.run(
            ["pkg-config", "--cflags", "--libs", *PACKAGES], capture_output=True, text=True, check=False
        )
        if found.returncode:
            print("SKIPPED: ns-3 is not installed (Debian: libns3-dev, libgsl-dev)")
            return None
        flags = found.stdout
    program = folder / "ns3"
    output(["c++", "-O2", str(HERE / "ns3" / "network.cc"), "-o", str(program), *flags.split()])
    return program


def build_htsim(sources: str | None, folder: Path) -> Path | None:
    """htsim's program, or nothing without its sources."""
    if not sources:
        print("SKIPPED: csg-htsim was not given (--htsim or FANIN_HTSIM: the folder sim, in which make was run)")
        return None
    # Commands run in the root, whatever this one's folder is.
    base, program = Path(sources).expanduser().resolve(), folder / "htsim"
    flags = ["-O2", "-std=c++11", f"-I{base}", f"-I{base}/datacenter"]
    names = ["fat_tree_topology", "fat_tree_switch", "firstfit", "connection_matrix"]
    parts = [HERE / "htsim" / "permutation.cc", *(base / "datacenter" / f"{name}.cpp" for name in names)]
    output(["c++", *flags, *map(str, parts), f"-L{base}", "-lhtsim", "-o", str(program)])
    return program


def run(engine: str, program: Path, k: int, folder: Path) -> tuple[float, float]:
    """Million packet-hops per CPU second, and the peak of memory in MB."""
    milliseconds = MILLISECONDS[k][engine]
    if engine == "fanin":
        text = output([str(program), "--k", str(k), "--ms", str(milliseconds), "--rounds", "1"]).splitlines()[0]
    elif engine == "ns3":
        scenario = folder / f"ns3-{k}.txt"
        if not scenario.exists():
            words = [f"k={k}", f"duration_ms={milliseconds}"]
            example = ["cargo", "run", "--quiet", "--package", "fanin-sim", "--example", "ns3_input", "--"]
            scenario.write_text(output([*example, str(HERE / "permutation.toml"), *words]))
        with scenario.open() as source:
            text = output([str(program)], stdin=source).splitlines()[-1]
    else:
        text = output([str(program), str(k), str(milliseconds)]).splitlines()[-1]
    return number(text, "hops") / number(text, "cpu_s") / 1e6, number(text, "peak_kib") * 1024 / 1e6


def main() -> int:
    """Builds, measures, prints."""
    parser = argparse.ArgumentParser(description="fanin, ns-3 and csg-htsim on the same load.")
    parser.add_argument("--htsim", default=os.environ.get("FANIN_HTSIM"), help="csg-htsim's folder sim")
    parser.add_argument("--ns3-flags", help="compiler's flags for an ns-3 that pkg-config does not know")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--k", type=int, nargs="+", default=[4, 8, 16], choices=[4, 8, 16], help="ports of a switch")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        programs = {
            "fanin": build_fanin(),
            "ns3": build_ns3(arguments.ns3_flags, folder),
            "htsim": build_htsim(arguments.htsim, folder),
        }
        programs = {engine: program for engine, program in programs.items() if program}
        for k in arguments.k:
            measured: dict[str, list[tuple[float, float]]] = {engine: [] for engine in programs}
            for _ in range(arguments.rounds):
                for engine, program in programs.items():
                    measured[engine].append(run(engine, program, k, folder))
            report(k, measured)
    return 0


def report(k: int, measured: dict[str, list[tuple[float, float]]]) -> None:
    """One line for each engine."""
    own = [rate for rate, _ in measured["fanin"]]
    for engine, runs in measured.items():
        rates = [rate for rate, _ in runs]
        ratios = sorted(mine / other for mine, other in zip(own, rates, strict=True))
        line = f"{k**3 // 4:>5} hosts  {engine:6} {statistics.median(rates):8.3f} M packet-hops per CPU second"
        line += f" ({min(rates):.3f} - {max(rates):.3f}), {max(peak for _, peak in runs):.0f} MB"
        if engine != "fanin":
            line += f"; fanin is {statistics.median(ratios):.1f} times as fast ({ratios[0]:.1f} - {ratios[-1]:.1f})"
        print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
