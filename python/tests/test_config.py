"""Settings: sources, precedence, errors, reference page."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fanin.config import Config, ConfigError, environment_name, init, load, markdown


def test_defaults_without_anything_set() -> None:
    assert load({}) == Config()


def test_environment_wins_over_file_over_default(tmp_path: Path) -> None:
    path = tmp_path / "fanin.toml"
    path.write_text('switch = "10.0.0.1:50099"\nlanes = 3\ntimeout = 12.5\n')
    settings = load({"FANIN_CONFIG": str(path), "FANIN_LANES": "5"})
    assert (settings.switch, settings.lanes, settings.timeout, settings.slots) == ("10.0.0.1:50099", 5, 12.5, None)


def test_empty_variable_means_unset() -> None:
    assert load({"FANIN_SWITCH": "", "FANIN_CONFIG": ""}) == Config()


@pytest.mark.parametrize("name", ["FANIN_LANE", "FANIN_SWICH", "FANIN_TIME_OUT"])
def test_unknown_variable_names_the_nearest(name: str) -> None:
    nearest = {"FANIN_LANE": "FANIN_LANES", "FANIN_SWICH": "FANIN_SWITCH", "FANIN_TIME_OUT": "FANIN_TIMEOUT"}[name]
    with pytest.raises(ConfigError, match=f"{name}; did you mean {nearest}"):
        load({name: "1"})


def test_unknown_variable_without_a_near_one_lists_all() -> None:
    with pytest.raises(ConfigError, match="valid names: .*FANIN_SWITCH"):
        load({"FANIN_ZZZZZZZZZZZZZ": "1"})


def test_unknown_key_in_file(tmp_path: Path) -> None:
    path = tmp_path / "fanin.toml"
    path.write_text("lane = 3\n")
    with pytest.raises(ConfigError, match="'lane' in .*did you mean lanes"):
        load({"FANIN_CONFIG": str(path)})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SWITCH", "localhost"),
        ("SWITCH", ":1"),
        ("SWITCH", "a:0"),
        ("SWITCH", "a:65536"),
        ("LANES", "0"),
        ("LANES", "257"),
        ("LANES", "two"),
        ("SLOTS", "48"),
        ("SLOTS", "65536"),
        ("ELEMENTS", "33"),
        ("ELEMENTS", "0"),
        ("ELEMENTS", "4096"),
        ("ELEMENT_FORMAT", "int4"),
        ("ATP_SCALE", "fast"),
        ("WIRE_FORMAT", "p4"),
        ("TIMEOUT", "0"),
        ("TIMEOUT", "-1"),
        ("TIMEOUT", "nan"),
        ("TIMEOUT", "inf"),
        ("LOSS", "1"),
        ("LOSS", "-0.1"),
        ("LOSS", "nan"),
        ("SPIN_US", "-1"),
    ],
)
def test_unusable_value_names_variable_and_remedy(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"FANIN_{name}: .*expected"):
        load({f"FANIN_{name}": value})


@pytest.mark.parametrize(
    ("name", "value", "parsed"),
    [
        ("SWITCH", "[::1]:50099", "[::1]:50099"),
        ("SLOTS", "1", 1),
        ("SLOTS", "32768", 32768),
        ("ELEMENTS", "2048", 2048),
        ("ELEMENT_FORMAT", "Float16", "float16"),
        ("ELEMENT_FORMAT", "bfloat16", "bfloat16"),
        ("ELEMENT_FORMAT", "INT8", "int8"),
        ("TIMEOUT", "0.5", 0.5),
        ("LOSS", "0", 0.0),
        ("LOSS", "0.999", 0.999),
    ],
)
def test_values_at_the_limits(name: str, value: str, parsed: object) -> None:
    assert getattr(load({f"FANIN_{name}": value}), name.lower()) == parsed


def test_boolean_in_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "fanin.toml"
    path.write_text("lanes = true\n")
    with pytest.raises(ConfigError, match="expected 1 to 256"):
        load({"FANIN_CONFIG": str(path)})


def test_missing_and_broken_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load({"FANIN_CONFIG": str(tmp_path / "absent.toml")})
    broken = tmp_path / "broken.toml"
    broken.write_text("lanes =")
    with pytest.raises(ConfigError, match="not a TOML file"):
        load({"FANIN_CONFIG": str(broken)})


def test_token_is_shown_nowhere() -> None:
    assert "hunter2" not in repr(load({"FANIN_TOKEN": "hunter2"}))


def test_reference_page_has_every_setting() -> None:
    page = markdown()
    for option in dataclasses.fields(Config):
        assert f"`{environment_name(option)}`" in page
        assert option.metadata["summary"] in page


def test_command_prints_page_and_settings() -> None:
    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "fanin.config", *arguments]
        environ = {name: value for name, value in os.environ.items() if not name.startswith("FANIN_")}
        environ |= {"FANIN_TOKEN": "hunter2", "FANIN_LANES": "4"}
        found = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environ)
        assert found.stderr == "", found.stderr
        return found.stdout

    assert run("--markdown") == markdown()
    assert "FANIN_LANES = 4" in run() and "hunter2" not in run()


def test_a_program_chooses_and_the_environment_has_the_last_word() -> None:
    try:
        assert init(algorithm="atp", lanes=2).algorithm == "atp"
        assert (load({}).algorithm, load({}).lanes) == ("atp", 2)
        assert load({"FANIN_ALGORITHM": "switchml"}).algorithm == "switchml"
        with pytest.raises(ConfigError, match="did you mean algorithm"):
            init(lanes=3, algorithmus="atp")
        with pytest.raises(ConfigError, match="given to fanin.init"):
            init(algorithm="ring")
        assert load({}).lanes == 2, "a refused call changes nothing"
        assert init(lanes=None).lanes is None
    finally:
        init(algorithm=None, lanes=None)
    assert load({}).algorithm == "switchml"
