#!/usr/bin/env python3
"""Runs what CI runs, step by step, and ends with one line that counts all tests.

    scripts/test.py all              every step (`make test`)
    scripts/test.py python tidy      these steps only (`make test STEP=python`)
    scripts/test.py list             what the steps are
    scripts/test.py soak --minutes 60

A step that fails does not stop the others. A test step that ran no test has failed. Each step's whole output is in
target/test-logs/STEP.log; shown are a line per step and, at the end, what failed and which tests could not run here and
why. `--verbose` shows everything as it comes. Needs only the standard library: it runs before anything is installed.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOGS = ROOT / "target" / "test-logs"
EXCERPT_LINES = 120
"""How much of a failed step's output is shown; the log has all."""
PYTHON = ".venv/bin/python"
UNPUBLISHED = ["fanin-harness", "fanin-python", "xtask"]
"""Crates whose pages nobody reads: tests, tools, and what the Python package documents itself."""

CARGO_RESULT = re.compile(r"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored")
CARGO_IGNORED = re.compile(r"^test (.+) \.\.\. ignored(?:, (.+))?$")
PYTEST_RESULT = re.compile(r"^(=+ )?\d+ \w+(, \d+ \w+)* in \d[\d.]*s\b")
PYTEST_COUNT = re.compile(r"(\d+) (passed|failed|errors?|skipped|xfailed|xpassed)\b")
# How a Rust test says that it could not run here, and how pytest -ra does.
SKIPPED = re.compile(r"^\s*SKIPPED:? (?:\[\d+\] )?(.+)$")
# Where what a runner says of failures begins and ends: cargo test, pytest, the compiler and the linters.
FAILURE_BEGINS = re.compile(
    r"^(failures:$|=+ (FAILURES|ERRORS) =+|error(\[\w+\])?:|Traceback |FAILED:? |thread '.+' .*panicked)"
)
# Tests that passed show their output as well, and panics in it may be what they wanted.
FAILURE_ENDS = re.compile(r"^(test result:|successes:$|\s*Running |\s*Doc-tests |\s*Compiling )")
SUCCESSES_END = re.compile(r"^(failures:$|test result:)")
# Most of a failed test's lines, and never the one that tells why.
BACKTRACE = re.compile(r"^(stack backtrace:$|\s+\d+: \S|\s+at \S+:\d+:\d+$|note: Some details are omitted)")


@dataclass
class Step:
    """One thing to run."""

    name: str
    command: list[str]
    why: str
    holds_tests: bool = False
    """Its output is counted test by test, and it fails if there are none."""
    timeout_s: int = 900
    environment: dict[str, str] = field(default_factory=dict)
    may_fail: bool = False
    """A failure leaves the tests that need it skipped, which they say themselves."""


def cargo_test(*arguments: str) -> list[str]:
    """`cargo test`, with the output of passing tests shown, because there a test says that it was skipped."""
    return ["cargo", "test", "--no-fail-fast", *arguments, "--", "--show-output"]


STEPS = [
    Step("generate", ["cargo", "xtask", "generate", "--check"], "generated constants are those of spec/fields.toml"),
    Step("tidy", ["cargo", "xtask", "tidy"], "layers, sizes, unsafe code, leaks"),
    Step("fmt", ["cargo", "fmt", "--all", "--", "--check"], "Rust layout; `make fmt` mends it"),
    Step(
        "clippy",
        ["cargo", "clippy", "--workspace", "--all-targets", "--", "-D", "warnings"],
        "Rust lints",
        timeout_s=1500,
    ),
    Step(
        "no_std",
        ["cargo", "check", "--no-default-features"]
        + [f"--package=fanin-{name}" for name in ("wire", "numeric", "protocol", "link")],
        "the lower layers build without std",
    ),
    Step(
        "packages",
        [
            "scripts/packages.sh",
            "c++=g++",
            "clang=clang",
            "ip=iproute2",
            "chromium=chromium",
            "chromedriver=chromium-driver",
            "valgrind=valgrind",
        ],
        "programs that some tests need",
        may_fail=True,
    ),
    Step(
        "rust",
        cargo_test("--workspace", "--exclude", "fanin-harness", "--lib", "--bins", "--tests", "--examples"),
        "unit and integration tests of every crate",
        holds_tests=True,
        timeout_s=1800,
    ),
    Step("doctests", ["cargo", "test", "--workspace", "--doc"], "examples in the API's pages", holds_tests=True),
    Step(
        "docs",
        ["cargo", "doc", "--workspace", "--no-deps", *(f"--exclude={name}" for name in UNPUBLISHED)],
        "the API's pages, without a dead link",
        environment={"RUSTDOCFLAGS": "-D warnings"},
    ),
    Step(
        "harness",
        cargo_test("--package", "fanin-harness"),
        "whole clusters from seeds, small scopes exhaustively, conformance vectors",
        holds_tests=True,
        timeout_s=1800,
    ),
    Step(
        "canary",
        cargo_test("--package", "fanin-harness", "--features", "canary", "--test", "canary"),
        "a bug put in on purpose is found by each checker",
        holds_tests=True,
    ),
    Step(
        "canary-second",
        cargo_test("--package", "fanin-harness", "--features", "canary-second", "--test", "canary_second"),
        "so are those in ATP's server, in SwitchML's leaf and in PANAMA's switch",
        holds_tests=True,
    ),
    Step(
        "model",
        cargo_test("--package", "fanin-shm", "--lib", "model"),
        "the waits in shared memory in every interleaving, and bugs put in on purpose",
        holds_tests=True,
    ),
    Step(
        "memory",
        ["scripts/memory.sh"],
        "unsafe code under AddressSanitizer, and a bug put in on purpose",
        holds_tests=True,
        timeout_s=1800,
    ),
    Step("fuzz", ["scripts/fuzz.sh", "10"], "every fuzz target for a short time"),
    Step(
        "instructions",
        ["scripts/instructions.py"],
        "the switch program and the conversions take no more instructions than before",
        timeout_s=1800,
    ),
    Step("setup", ["scripts/setup.sh"], "builds and installs the Python package", timeout_s=1800),
    Step("ruff", [".venv/bin/ruff", "check", "python", "scripts"], "Python lints; `make fmt` mends some"),
    Step("pyfmt", [".venv/bin/ruff", "format", "--check", "python", "scripts"], "Python layout; `make fmt` mends it"),
    Step(
        "python",
        [PYTHON, "-m", "pytest", "-q", "--durations=20"],
        "the Python package, PyTorch training included",
        holds_tests=True,
        timeout_s=2700,
    ),
]


@dataclass
class Outcome:
    """What a step came to."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    reasons: list[str] = field(default_factory=list)
    """Why tests were skipped, as they say it."""
    failure: list[str] = field(default_factory=list)
    """What to show of a failure."""

    def read(self, line: str) -> None:
        """Counts what one line of a test runner's output tells."""
        if match := CARGO_RESULT.match(line):
            self.passed += int(match[1])
            self.failed += int(match[2])
            self.skipped += int(match[3])
        elif match := CARGO_IGNORED.match(line):
            self.reasons.append(f"{match[1]}: {match[2] or 'ignored, no reason given'}")
        elif PYTEST_RESULT.match(line):
            self.read_pytest(line)
        elif match := SKIPPED.match(line):
            self.reasons.append(match[1])
            # A Rust test that gave up early counts as passed for cargo; pytest counts its own.
            if line.lstrip().startswith("SKIPPED:"):
                self.passed -= 1
                self.skipped += 1

    def read_pytest(self, line: str) -> None:
        """Counts pytest's closing line."""
        for count, word in PYTEST_COUNT.findall(line):
            if word in ("passed", "xfailed"):
                self.passed += int(count)
            elif word == "skipped":
                self.skipped += int(count)
            else:
                self.failed += int(count)

    def tally(self) -> str:
        """The counts in words, without those that are zero."""
        counts = ((self.passed, "passed"), (self.failed, "failed"), (self.skipped, "skipped"))
        return ", ".join(f"{count} {word}" for count, word in counts if count)


class Log:
    """A step's output: all of it in a file, and on the screen only as much as was asked for."""

    def __init__(self, step: str, verbose: bool) -> None:
        LOGS.mkdir(parents=True, exist_ok=True)
        self.path = LOGS / f"{step}.log"
        self.file = self.path.open("w")
        self.verbose = verbose

    def line(self, text: str) -> None:
        """Takes one line."""
        self.file.write(text + "\n")
        self.file.flush()
        if self.verbose:
            print(text, flush=True)

    def excerpt(self) -> list[str]:
        """What the runner said of failures, or else the last lines; at most EXCERPT_LINES."""
        self.file.close()
        lines, found, inside, successes = self.path.read_text(errors="replace").splitlines(), [], False, False
        for line in lines:
            successes = (successes and not SUCCESSES_END.match(line)) or line == "successes:"
            inside = (inside and not FAILURE_ENDS.match(line)) or bool(FAILURE_BEGINS.match(line))
            if inside and not successes and not BACKTRACE.match(line):
                found.append(line)
        found = found or lines[-EXCERPT_LINES // 2 :]
        if len(found) > EXCERPT_LINES:
            half = EXCERPT_LINES // 2
            found = [*found[:half], f"[{len(found) - 2 * half} lines left out]", *found[-half:]]
        return found


def run(step: Step, verbose: bool = False) -> Outcome:
    """Runs a step and says what came of it."""
    print(f"=== {step.name}: {step.why}", flush=True)
    log = Log(step.name, verbose)
    log.line(f"$ {' '.join(step.command)}")
    outcome, started = Outcome(), time.monotonic()
    status = run_command(step, outcome if step.holds_tests else Outcome(), log)
    elapsed_s = time.monotonic() - started
    if step.holds_tests and outcome.passed + outcome.failed == 0 and status == "ok":
        status = "no test ran: its files are missing or were not found"
    if status != "ok" and step.may_fail:
        outcome.skipped += 1
        outcome.reasons.append(f"step {step.name}: {status}; the tests that need it say so")
    elif status != "ok":
        outcome.failed = max(outcome.failed, 1)
        outcome.failure = [f"FAILED: {step.name}: {status}", f"$ {' '.join(step.command)}", *log.excerpt()]
        outcome.failure += [f"all of it: {log.path.relative_to(ROOT)}; again, alone: make test STEP={step.name}"]
    elif not step.holds_tests:
        outcome.passed += 1
    tally = f": {outcome.tally()}" if step.holds_tests else ""
    print(f"    {status}{tally} ({elapsed_s:.0f} s)", flush=True)
    return outcome


def run_command(step: Step, outcome: Outcome, log: Log) -> str:
    """Runs the step's command to its end or its time limit; "ok" or what went wrong."""
    environment = {**os.environ, **step.environment}
    if os.environ.get("CI") == "true":
        # A build that is made once needs no notes for the next one.
        environment["CARGO_INCREMENTAL"] = "0"
    try:
        process = subprocess.Popen(
            step.command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        return f"cannot start {step.command[0]}: {error.strerror}"
    timed_out = threading.Event()

    def end() -> None:
        timed_out.set()
        end_group(process)

    timer = threading.Timer(step.timeout_s, end)
    timer.start()
    try:
        for line in process.stdout:
            text = line.decode(errors="replace").rstrip("\n")
            log.line(text)
            outcome.read(text)
        code = process.wait()
    finally:
        timer.cancel()
        end_group(process)
    if timed_out.is_set():
        return f"not finished after {step.timeout_s} s"
    return "ok" if code == 0 else f"exit status {code}"


def end_group(process: subprocess.Popen) -> None:
    """Ends the step's processes, workers that outlived their parent included."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def summary(outcomes: dict[str, Outcome]) -> int:
    """Prints what could not run and what failed, then the line with all counts. Returns the exit status."""
    skips = [f"  {name}: {reason}" for name, outcome in outcomes.items() for reason in outcome.reasons]
    if skips:
        print("\nSKIPPED, not tested here:", *skips, sep="\n")
    failures = [name for name, outcome in outcomes.items() if outcome.failed]
    for name in failures:
        print("", *outcomes[name].failure, sep="\n")
    if failures:
        print(f"\nFAILED steps: {', '.join(failures)}")
    passed, failed, skipped = (
        sum(getattr(outcome, word) for outcome in outcomes.values()) for word in ("passed", "failed", "skipped")
    )
    print(f"\n{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or not passed else 0


def chosen(names: list[str]) -> list[Step]:
    """The steps with these names, in the order of the table."""
    known = {step.name for step in STEPS}
    if unknown := [name for name in names if name not in known | {"all"}]:
        sys.exit(f"no step is called {', '.join(unknown)}; there are: {', '.join(step.name for step in STEPS)}")
    return [step for step in STEPS if "all" in names or step.name in names]


def soak_steps(minutes: int) -> list[Step]:
    """The seeded and the fuzzed tests, each for half the time, which the fuzz targets share."""
    half_s = minutes * 30
    target_s = max(1, half_s // len(list((ROOT / "fuzz/fuzz_targets").glob("*.rs"))))
    return [
        Step(
            "seeds",
            ["cargo", "test", "--release", "--package=fanin-harness", "--test=soak", "--", "--ignored", "--nocapture"],
            "clusters from ever new seeds",
            holds_tests=True,
            timeout_s=half_s + 900,
            environment={"FANIN_SOAK_SECONDS": str(half_s)},
        ),
        Step("fuzz", ["scripts/fuzz.sh", str(target_s)], "all fuzz targets in turn", timeout_s=half_s + 900),
    ]


def main() -> int:
    """Runs the steps named on the command line."""
    parser = argparse.ArgumentParser(description="Runs fanin's checks and tests.")
    parser.add_argument("steps", nargs="+", metavar="STEP", help="all, list, soak, or names of steps")
    parser.add_argument("--minutes", type=int, default=60, help="how long a soak lasts")
    parser.add_argument("--verbose", action="store_true", help="show all output as it comes")
    arguments = parser.parse_args()
    if arguments.steps == ["list"]:
        for step in STEPS:
            print(f"{step.name:10} {step.why}")
        return 0
    steps = soak_steps(arguments.minutes) if arguments.steps == ["soak"] else chosen(arguments.steps)
    started = time.monotonic()
    outcomes = {step.name: run(step, arguments.verbose) for step in steps}
    print(f"\n{len(outcomes)} steps in {(time.monotonic() - started) / 60:.1f} min")
    return summary(outcomes)


if __name__ == "__main__":
    sys.exit(main())
