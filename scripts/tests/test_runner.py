"""The runner of all tests counts what it should, and cannot be green by mistake."""

import importlib.util
import sys
from pathlib import Path

import pytest


def load(name):
    spec = importlib.util.spec_from_file_location(f"fanin_{name}", Path(__file__).parent.parent / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


runner = load("test")


def outcome_of(*lines):
    outcome = runner.Outcome()
    for line in lines:
        outcome.read(line)
    return outcome.passed, outcome.failed, outcome.skipped


def step(*command, **options):
    return runner.Step("try", list(command), "a try", **options)


def test_cargo_results_of_several_binaries_add_up():
    assert outcome_of(
        "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 1.20s",
        "test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s",
    ) == (15, 2, 1)


def test_a_rust_test_that_gave_up_is_skipped_not_passed():
    result = "test result: ok. 4 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out"
    assert outcome_of("SKIPPED: this host has no IPv6", result) == (3, 0, 1)


@pytest.mark.parametrize(
    ("line", "counts"),
    [
        ("===== 5 passed in 0.10s =====", (5, 0, 0)),
        ("=== 1 failed, 5 passed, 2 skipped in 70.10s (0:01:10) ===", (5, 1, 2)),
        ("=== 1 failed, 1 error in 2.10s ===", (0, 2, 0)),
        ("=== 3 skipped in 0.10s ===", (0, 0, 3)),
        ("5 passed, 1 skipped in 0.10s", (5, 0, 1)),
        ("we passed 5 passed lines", (0, 0, 0)),
    ],
)
def test_pytest_closing_lines(line, counts):
    assert outcome_of(line) == counts


def test_a_skip_keeps_its_reason():
    outcome = runner.Outcome()
    outcome.read("SKIPPED [1] python/tests/test_cuda.py:9: no GPU here")
    assert outcome.reasons == ["python/tests/test_cuda.py:9: no GPU here"]
    assert outcome.skipped == 0, "pytest's closing line counts it"


def test_a_failing_command_fails_the_step():
    assert runner.run(step("false")).failed == 1
    assert runner.run(step("true")).failed == 0


def test_a_test_step_without_tests_fails():
    assert runner.run(step("true", holds_tests=True)).failed == 1


def test_a_command_that_does_not_exist_fails_the_step():
    assert runner.run(step("no-such-command-anywhere")).failed == 1


def test_a_command_that_hangs_is_ended():
    assert runner.run(step("sleep", "60", timeout_s=1)).failed == 1


def test_a_step_that_may_fail_is_a_skip_with_a_reason():
    outcome = runner.run(step("false", may_fail=True))
    assert (outcome.failed, outcome.skipped, len(outcome.reasons)) == (0, 1, 1)


def test_nothing_run_is_not_a_success():
    assert runner.summary({}) == 1
    assert runner.summary({"a": runner.Outcome(passed=1)}) == 0
    assert runner.summary({"a": runner.Outcome(passed=9, failed=1)}) == 1


def test_the_stub_script_names_each_function_under_its_version():
    lean = load("lean_torch")
    script = lean.version_script(["V1", "V2"], [("cudaA", "V1"), ("cudaB", "V1"), ("cudaC", "")])
    assert script == "V1 { global: cudaA; cudaB; };\nV2 { };\n"


def test_the_stub_script_gives_unversioned_functions_to_the_first_library():
    lean = load("lean_torch")
    wanted = lean.Wanted(libraries=["libone.so.1", "libtwo.so.2"], functions={("cuA", ""), ("cuB", "V2")})
    wanted.versions["libtwo.so.2"].add("V2")
    sources = {name: source for name, source, _ in lean.stub_sources(wanted)}
    assert sources["libone.so.1"] == "int cuA(void) { return 100; }\n"
    assert sources["libtwo.so.2"] == "int cuB(void) { return 100; }\n"


def test_a_failure_is_shown_with_what_the_runner_said_of_it():
    output = "test a ... ok\n\nfailures:\n\n---- b stdout ----\nwrong sum\n\n"
    output += "test result: FAILED. 1 passed; 1 failed; 0 ignored"
    outcome = runner.run(step("sh", "-c", f"printf '{output}'; exit 101", holds_tests=True))
    assert "wrong sum" in outcome.failure and "test a ... ok" not in outcome.failure
    assert any("exit status 101" in line for line in outcome.failure)


def test_panics_of_passed_tests_and_backtraces_are_not_shown(tmp_path):
    output = "successes:\n\nthread a panicked\nerror: wanted\n\nsuccesses:\n    a\n\nfailures:\n\nwrong sum\n"
    output += "   3: core::panic\n             at ./tests/b.rs:1:2\nfailures:\n    b\n"
    output += "test result: FAILED. 1 passed; 1 failed; 0 ignored"
    (tmp_path / "output").write_text(output)
    shown = runner.run(step("sh", "-c", f"cat {tmp_path}/output; exit 101")).failure
    assert "wrong sum" in shown and "    b" in shown
    assert not {"error: wanted", "   3: core::panic", "             at ./tests/b.rs:1:2"} & set(shown)


def test_a_long_output_is_cut_in_the_middle():
    shown = runner.run(step("sh", "-c", "echo 'error: first'; seq 1 1000; exit 1")).failure
    assert "error: first" in shown and "1000" in shown and len(shown) < 200
