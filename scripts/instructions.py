#!/usr/bin/env python3
"""Counts instructions per packet of the switch program and the conversions, and compares them with the stored counts.

    scripts/instructions.py            compare; exit status 1 if a count differs by more than the tolerance
    scripts/instructions.py --update   store the present counts, after a change that is meant

Times drift on shared machines, instructions do not. valgrind counts them without hardware counters. It knows no
AVX-512, so it measures the AVX2 twins, and the checksum of the general library. Another compiler makes other
instructions: with another rustc than the stored one nothing is compared.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STORED = ROOT / "benches" / "instructions.json"
TOLERANCE = 0.05
# Two runs, whose difference is free of start and set-up.
PASSES = (20, 60)
LIMIT_S = 300

CASES = {
    **{
        f"switch, {4 * elements} B, {part}": ("switch_core", ["--elements", str(elements), "--only", part])
        for elements in (256, 2048)
        for part in ("whole", "unsummed")
    },
    **{
        kernel: ("convert", [kernel])
        for kernel in (
            "exponent_f32",
            "block_fixed::quantize_f32",
            "block_fixed::dequantize_f32",
            "block_fixed::quantize_f16",
            "block_fixed::dequantize_f16",
            "block_fixed::quantize_bf16",
            "block_fixed::dequantize_bf16",
            "half_wire::quantize_f32",
            "half_wire::dequantize_f32",
            "accumulate::add_and_emit",
        )
    },
}


def build() -> dict[str, str]:
    """The benchmarks' programs by name."""
    command = ["cargo", "bench", "--no-run", "--message-format=json", "-p", "fanin-protocol", "-p", "fanin-numeric"]
    output = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    messages = (json.loads(line) for line in output.splitlines() if line.startswith("{"))
    return {
        message["target"]["name"]: message["executable"]
        for message in messages
        if message.get("executable") and "bench" in message["target"]["kind"]
    }


def instructions(program: str, arguments: list[str], passes: int) -> tuple[int, int]:
    """Instructions of one run, and the packets of one pass."""
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", program]
    command += ["--passes", str(passes), *arguments]
    run = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=LIMIT_S)
    collected = re.search(r"Collected : (\d+)", run.stderr)
    packets = re.search(r"(\d+) packets a pass", run.stdout)
    if not collected or not packets:
        sys.exit(f"{' '.join(command)} said neither instructions nor packets:\n{run.stdout}{run.stderr}")
    return int(collected[1]), int(packets[1])


def count(program: str, arguments: list[str]) -> float:
    """Instructions per packet."""
    few, many = (instructions(program, arguments, passes) for passes in PASSES)
    return round((many[0] - few[0]) / ((PASSES[1] - PASSES[0]) * many[1]), 1)


def compiler() -> str:
    """What decides the instructions beside the source."""
    return subprocess.run(["rustc", "--version"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def compare(stored: dict[str, float], present: dict[str, float]) -> int:
    """Prints each count beside the stored one; the number of counts that differ."""
    differing = 0
    for name in sorted(stored.keys() | present.keys()):
        before, now = stored.get(name), present.get(name)
        change = now / before - 1 if before and now else float("inf")
        differs = abs(change) > TOLERANCE
        differing += differs
        print(f"{name:36} {before or '-':>9} -> {now or '-':>9}  {change:+7.1%}{'  DIFFERS' if differs else ''}")
    return differing


def main() -> int:
    """Counts, then compares or stores."""
    parser = argparse.ArgumentParser(description="Counts instructions per packet.")
    parser.add_argument("--update", action="store_true", help="store the counts")
    update = parser.parse_args().update
    stored = json.loads(STORED.read_text()) if STORED.exists() else {"rustc": "", "counts": {}}
    if not shutil.which("valgrind"):
        print("SKIPPED: instruction counts need valgrind")
        return 0
    if not update and stored["rustc"] != compiler():
        print(f"SKIPPED: the stored counts are of {stored['rustc'] or 'no compiler'}, this is {compiler()}")
        return 0
    programs = build()
    present = {name: count(programs[target], arguments) for name, (target, arguments) in CASES.items()}
    if update:
        STORED.write_text(json.dumps({"rustc": compiler(), "counts": present}, indent=2) + "\n")
        return 0
    differing = compare(stored["counts"], present)
    if differing:
        print(f"{differing} counts differ by more than {TOLERANCE:.0%}; if that is meant: {sys.argv[0]} --update")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
