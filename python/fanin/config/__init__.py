"""Settings: declared once below, read from the environment, then ``init``, then a TOML file, then the defaults.

The dataclass fields *are* the table: parsing, error messages, ``docs/reference/environment.md``
(``python -m fanin.config --markdown``) and the ``Config`` type all derive from them.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any

PREFIX = "FANIN_"

#: Variables that are read elsewhere (the file's own path, the logs of the Rust part), so not typing errors.
OTHER_VARIABLES: dict[str, str] = {
    "FANIN_CONFIG": "Path of a TOML file that holds any of the settings above by their TOML name.",
    "FANIN_LOG": "Log filter of the switch and the worker runtime, for example `info` or `fanin_host=debug`.",
    "FANIN_BIN": "The `fanin` program that `fanin bench` starts for switch and ranks, instead of itself.",
    "FANIN_PYTHON": "The interpreter with PyTorch that `fanin bench` starts.",
    "FANIN_FULL_TORCH": "Read by `make setup`: `1` installs PyTorch with CUDA.",
    "FANIN_SOAK_SECONDS": "Read by `make soak`: how long the seeded tests run.",
}


class ConfigError(ValueError):
    """A setting is unknown or its value cannot be used; the text names the source and the remedy."""


def _text(value: str) -> str:
    if not value.strip():
        raise ValueError("is empty")
    return value.strip()


def _address(value: str) -> str:
    host, _, port = value.strip().rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError("is not host:port")
    return f"{host}:{int(port)}"


def _integer(low: int, high: int, *, multiple: int = 1, power_of_two: bool = False) -> Callable[[str], int]:
    def parse(value: str) -> int:
        number = int(value)
        if not low <= number <= high or number % multiple or (power_of_two and number & (number - 1)):
            raise ValueError("is out of range")
        return number

    return parse


def _seconds(value: str) -> float:
    number = float(value)
    # NaN fails both comparisons, so it is refused with the infinities.
    if not 0 < number < 1e9:
        raise ValueError("is not a positive number of seconds")
    return number


def _probability(value: str) -> float:
    number = float(value)
    if not 0 <= number < 1:
        raise ValueError("is not a probability below 1")
    return number


def _fraction(value: str) -> float:
    number = float(value)
    if not 0 < number < 1:
        raise ValueError("is not between 0 and 1")
    return number


#: Share of the ranks that a sum must hold unless another is given.
STRAGGLERS_PERCENT = 50


def _choice(*names: str) -> Callable[[str], str]:
    def parse(value: str) -> str:
        name = value.strip().lower()
        if name not in names:
            raise ValueError("is not one of " + ", ".join(names))
        return name

    return parse


def _stragglers(value: str) -> str:
    text = value.strip().lower()
    if text == "wait":
        return text
    mode, *numbers = text.split(":")
    if mode not in ("partial", "skip") or not 1 <= len(numbers) <= 2:
        raise ValueError("is not wait, partial:ms or skip:ms")
    milliseconds = float(numbers[0])
    percent = int(numbers[1]) if len(numbers) == 2 else STRAGGLERS_PERCENT
    if not 0 < milliseconds <= 3_600_000 or not 1 <= percent <= 100:
        raise ValueError("has a time that is not between 0 and 3,600,000 ms, or a share that is not 1 to 100 percent")
    return f"{mode}:{milliseconds:g}:{percent}"


def _option(default: Any, parse: Callable[[str], Any], expects: str, summary: str, *, secret: bool = False) -> Any:
    metadata = {"parse": parse, "expects": expects, "summary": summary, "secret": secret}
    return field(default=default, repr=not secret, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One immutable set of settings; ``load()`` makes it, ``dataclasses.replace`` edits it."""

    switch: str | None = _option(
        None,
        _address,
        "host:port",
        "Control address of the switch. Unset: rank 0 starts a private switch in its own process.",
    )
    token: str | None = _option(
        None, _text, "text", "Tenant token sent to the switch when it asks for one.", secret=True
    )
    tls_ca: str | None = _option(
        None,
        _text,
        "path of a PEM file",
        "Certificate authority of the switch; turns TLS on for the control connection.",
    )
    job: str = _option(
        "torch", _text, "text", "First part of the job name that the switch shows; the group's name follows it."
    )
    lanes: int | None = _option(
        None,
        _integer(1, 256),
        "1 to 256",
        "Worker threads, each with its own socket and slots. Unset: chosen from the cores.",
    )
    slots: int | None = _option(
        None,
        _integer(1, 32768, power_of_two=True),
        "a power of two up to 32768",
        "Slots per lane. Unset: chosen from the bandwidth-delay product.",
    )
    elements: int | None = _option(
        None,
        _integer(32, 2048, multiple=32),
        "a multiple of 32 up to 2048",
        "Elements per packet. Unset: what the path's MTU holds.",
    )
    algorithm: str = _option(
        "switchml",
        _choice("switchml", "atp"),
        "switchml or atp",
        "switchml: slots of the job's own, reserved from start to end. atp: slots shared with other jobs, taken as "
        "packets arrive, and a parameter server behind them.",
    )
    server: str = _option(
        "auto",
        _choice("auto", "on", "off"),
        "auto, on or off",
        "With atp: whether this rank would run the job's parameter server, where none of its own stands beside the "
        "switch (fanin server). auto: rank 0 would.",
    )
    switch_name: str | None = _option(
        None,
        _text,
        "text",
        "Name of the switch beside this rank in the switch's topology. Unset: told by this rank's address.",
    )
    on_peer_loss: str = _option(
        "fail",
        _choice("fail", "continue"),
        "fail or continue",
        "With atp: what becomes of the job when a rank is lost. fail: every collective raises from then on. continue: "
        "the job is set up again on the ranks that are left (ATP A.3). All ranks say the same.",
    )
    stragglers: str = _option(
        "wait",
        _stragglers,
        "wait, partial:ms, skip:ms, or these with :percent",
        "With atp: what is done about ranks that are late for a sum of floats. wait: everybody waits. partial: a chunk "
        "whose first contribution is that old is completed with those that are in, if they are 50 percent of the ranks "
        "that are left, or what is given. skip: the same, and who is late is not waited for in the rest of that "
        "collective. All ranks say the same.",
    )
    atp_scale: str = _option(
        "static",
        _choice("static", "dynamic"),
        "static or dynamic",
        "With atp: by what floats are multiplied before switches add them. static: 10^8, and what leaves 32 bits is "
        "summed again as floats. dynamic: where that happens often, the power of two that the next gradients ask for "
        "(ATP B.3). One rank with static decides for all.",
    )
    accumulator: str | None = _option(
        None,
        _choice("block-fixed", "static-fixed", "fpisa", "fpisa-a", "log-table", "ieee", "exact"),
        "block-fixed, static-fixed, fpisa, fpisa-a, log-table, ieee or exact",
        "How the switch adds sums of floats. Unset: the cheapest within the tolerance, or what the algorithm has: "
        "block-fixed (switchml), static-fixed (atp). With fpisa, fpisa-a, log-table, ieee and exact, float32, float16 "
        "and bfloat16 travel as they lie in memory. With any but block-fixed every rank talks to the switch. All ranks "
        "say the same.",
    )
    tolerance: float | None = _option(
        None,
        _fraction,
        "a number between 0 and 1",
        "Largest error of a sum of float32 that is accepted, as a share of the largest value in its block (a packet's "
        "elements, of all ranks). The cheapest accumulator that promises it is chosen, or a given one checked.",
    )
    element_format: str = _option(
        "int32",
        _choice("int32", "float16", "bfloat16", "int8"),
        "int32, float16, bfloat16 or int8",
        "What a gradient element is on the wire (SwitchML §4.6).",
    )
    wire_format: str = _option(
        "fanin",
        _choice("fanin", "p4app"),
        "fanin or p4app",
        "Datagram layout: fanin's own, or that of the public SwitchML programme.",
    )
    transport: str = _option(
        "auto",
        _choice("auto", "udp"),
        "auto or udp",
        "auto: the ranks of one host sum in shared memory, and one of them contributes to the switch for all. "
        "udp: every rank talks to the switch. One rank with udp decides for all.",
    )
    host_key: str | None = _option(
        None,
        _text,
        "text",
        "Name of this host: ranks with the same name sum in shared memory. "
        "Unset: told by boot, network namespace and user.",
    )
    timeout: float | None = _option(
        None,
        _seconds,
        "seconds",
        "End of every wait: joining, and each collective. Unset: the process group's own timeout.",
    )
    loss: float = _option(
        0.0, _probability, "0 to 1", "Share of datagrams that this worker drops on purpose, for tests."
    )
    loss_seed: int = _option(
        0, _integer(0, 2**64 - 1), "an integer", "Seed of those drops: the same seed drops the same datagrams."
    )
    spin_us: int | None = _option(
        None,
        _integer(0, 1_000_000),
        "microseconds",
        "How long a worker thread polls its socket before it sleeps. Unset: 200.",
    )
    multicast: str = _option(
        "on",
        _choice("on", "off"),
        "on or off",
        "Take sums by IP multicast where the network carries it. Off: one copy for each worker, better over Wi-Fi.",
    )


def environment_name(option: Field[Any]) -> str:
    """``FANIN_LANES`` for the field ``lanes``."""
    return PREFIX + option.name.upper()


def load(environ: Mapping[str, str] | None = None) -> Config:
    """Reads the settings; the environment wins over ``init``, that over the file, the file over the defaults.

    Raises ``ConfigError`` for an unknown name (with the nearest valid one) or an unusable value.
    """
    environ = os.environ if environ is None else environ
    options = {option.name: option for option in fields(Config)}
    _refuse_unknown_variables(environ, options.values())
    values: dict[str, Any] = {}
    if path := environ.get("FANIN_CONFIG"):
        for key, raw in _read_file(Path(path)).items():
            _refuse_unknown_key(key, options, path)
            values[key] = _parse(options[key], raw, f"{key} in {path}")
    values |= _chosen
    for option in options.values():
        name = environment_name(option)
        # An empty variable means "unset": shells and job files often export it that way.
        if environ.get(name, "") != "":
            values[option.name] = _parse(option, environ[name], name)
    return Config(**values)


#: What the program itself has chosen by ``init``.
_chosen: dict[str, Any] = {}


def init(**settings: Any) -> Config:
    """Chooses settings for all process groups and sessions that this process makes from now on.

    >>> fanin.init(algorithm="atp")
    >>> torch.distributed.init_process_group("fanin")

    Names and values are those of ``fanin.Config``; environment variables still win, so that whoever runs a program has
    the last word. A later call adds to an earlier one; ``None`` forgets a choice. Returns the settings in force. Raises
    ``ConfigError`` for an unknown name (with the nearest valid one) or an unusable value, and then changes nothing.
    """
    options = {option.name: option for option in fields(Config)}
    chosen = dict(_chosen)
    for key, raw in settings.items():
        if key not in options:
            raise ConfigError(f"unknown setting {key!r}{_nearest(key, list(options))}")
        chosen.pop(key, None)
        if raw is not None:
            chosen[key] = _parse(options[key], raw, f"{key} given to fanin.init")
    _chosen.clear()
    _chosen.update(chosen)
    return load()


def _refuse_unknown_variables(environ: Mapping[str, str], options: Any) -> None:
    known = [environment_name(option) for option in options] + list(OTHER_VARIABLES)
    for name in environ:
        if name.startswith(PREFIX) and name not in known:
            raise ConfigError(f"unknown environment variable {name}{_nearest(name, known)}")


def _refuse_unknown_key(key: str, options: Mapping[str, Field[Any]], path: str) -> None:
    if key not in options:
        raise ConfigError(f"unknown setting {key!r} in {path}{_nearest(key, list(options))}")


def _nearest(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else "; valid names: " + ", ".join(sorted(known))


def _read_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"FANIN_CONFIG names {path}, which cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not a TOML file: {error}") from error


def _parse(option: Field[Any], raw: Any, source: str) -> Any:
    shown = "the given value" if option.metadata["secret"] else repr(raw)
    # bool is an int to Python, but `lanes = true` is a mistake.
    if isinstance(raw, bool) or not isinstance(raw, (str, int, float)):
        raise ConfigError(f"{source}: {shown} cannot be used; expected {option.metadata['expects']}")
    try:
        return option.metadata["parse"](str(raw))
    except ValueError as error:
        raise ConfigError(f"{source}: {shown} cannot be used; expected {option.metadata['expects']}") from error


def markdown() -> str:
    """The reference page of all settings, as Markdown."""
    lines = [
        "# Environment variables and configuration file",
        "",
        "<!-- Generated by `python -m fanin.config --markdown`; edit `python/fanin/config/__init__.py` instead. -->",
        "",
        "Each setting comes from its environment variable, else from the program's own `fanin.init(...)`, else from",
        "the TOML file that `FANIN_CONFIG` names, else it has its default.",
        "An unknown `FANIN_` variable or TOML name is an error that names the nearest valid one.",
        "",
        "| variable | TOML name | value | default | meaning |",
        "| --- | --- | --- | --- | --- |",
    ]
    for option in fields(Config):
        default = "unset" if option.default is None else f"`{option.default}`"
        meta = option.metadata
        lines.append(
            f"| `{environment_name(option)}` | `{option.name}` | {meta['expects']} | {default} | {meta['summary']} |"
        )
    lines += [f"| `{name}` | | | unset | {summary} |" for name, summary in OTHER_VARIABLES.items()]
    return "\n".join(lines) + "\n"
