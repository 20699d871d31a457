"""``python -m fanin.demo``: train over gloo, train over fanin, compare, write the report."""

from __future__ import annotations

import argparse
import importlib.util
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from fanin.config import ConfigError, load
from fanin.demo import DemoError, compare, launch, machine, mnist, network, report
from fanin.demo.compare import Run

BACKENDS = ("gloo", "fanin")
_TIMEOUT_SECONDS = 300.0
#: A shaped link can be far slower than the one this is meant for.
_NET_TIMEOUT_SECONDS = 1800.0
_WORKERS_MAX = 64


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m fanin.demo", description=__doc__)
    parser.add_argument("--net", metavar="RATE", help="every worker behind a link of this rate, such as 500mbit (root)")
    parser.add_argument("--workers", type=int, default=4, help="worker processes (default 4)")
    parser.add_argument("--epochs", type=int, help="epochs (default 3, with --net or --quick fewer)")
    parser.add_argument("--quick", action="store_true", help="one epoch: to see that everything works")
    parser.add_argument(
        "--algorithm",
        choices=["switchml", "atp"],
        default="switchml",
        help="slots of the job's own, or shared ones with a parameter server beside rank 0 (default switchml)",
    )
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder with MNIST's test half as gzip IDX files")
    parser.add_argument("--out", type=Path, metavar="DIR", default=Path("out/demo"), help="where the report goes")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and of the order of images")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Runs the demonstration; the result is the exit status."""
    args = parse(arguments)
    signal.signal(signal.SIGTERM, _leave)
    try:
        print(f"The report is {demonstrate(args)}")
    except (DemoError, ConfigError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo: interrupted; the workers have been ended", file=sys.stderr)
        return 130
    return 0


def _leave(number: int, _: object) -> None:
    # An exception, so that every `finally` on the way out runs and neither workers nor namespaces stay behind.
    raise SystemExit(128 + number)


def demonstrate(args: argparse.Namespace) -> Path:
    """Trains over each backend, prints the table and returns the path of the report."""
    data = check(args)
    facts, busy = machine.describe(), machine.busy()
    options = training_options(args)
    bits = load().element_format
    args.out.mkdir(parents=True, exist_ok=True)
    # Every process that is started here inherits it.
    os.environ["FANIN_ALGORITHM"] = args.algorithm
    print(summary(args, options), flush=True)
    if busy:
        print(f"Note: {busy}", flush=True)
    runs = train_all(args, data, options)
    differences = compare.loss_differences(runs[0].losses, runs[1].losses)
    bounds = compare.loss_bounds(len(differences), args.workers, bits)
    link_bps = network.check_rate(args.net) if args.net else None
    table = compare.rows(runs, bounds, differences, link_bps)
    print("\n" + compare.text_table(["", *BACKENDS], table))
    for reason, count in sorted(runs[-1].reasons().items()):
        print(f"fell back to gloo, {count} times: {reason}")
    _print_speed(runs, bool(args.net))
    path: Path = (args.out / "report.html").resolve()
    command = shlex.join(["python", "-m", "fanin.demo", *sys.argv[1:]])
    report.write(path, report.Setting(command, summary(args, options), busy, facts), runs, table, bounds, differences)
    if not compare.within(differences, bounds):
        raise DemoError(f"the loss curves differ by more than their bound; the report is {path}")
    return path


def check(args: argparse.Namespace) -> Path:
    """Everything that can be known before work starts; returns the folder of the images."""
    if not 2 <= args.workers <= _WORKERS_MAX:
        raise DemoError(f"--workers {args.workers}: 2 to {_WORKERS_MAX} are possible")
    if args.epochs is not None and args.epochs < 1:
        raise DemoError(f"--epochs {args.epochs}: at least 1 is needed")
    if importlib.util.find_spec("torch") is None:
        raise DemoError("PyTorch is not installed in this Python: run `make setup`, or pip install 'fanin[torch]'")
    if args.net:
        network.check_rate(args.net)
        network.require_root()
    folder = mnist.find_folder(args.data).resolve()
    mnist.load(folder)
    return folder


def training_options(args: argparse.Namespace) -> dict[str, str]:
    """The training script's options: a model that suits the links, and epochs that suit the patience."""
    epochs = args.epochs or (1 if args.quick else 2 if args.net else 3)
    # The product of batch and workers stays the same, so that the number of workers does not change the training.
    images_per_step = 256 if args.net else 128
    return {
        "model": "large" if args.net else "small",
        "epochs": str(epochs),
        "batch": str(max(1, images_per_step // args.workers)),
        "seed": str(args.seed),
    }


def summary(args: argparse.Namespace, options: dict[str, str]) -> str:
    """One line on what is being run."""
    link = f"one network namespace each, behind links of {args.net}" if args.net else "over loopback"
    sizes = {"small": "0.2 MB", "large": "11.2 MB"}
    epochs = f"{options['epochs']} epoch" + "s" * (options["epochs"] != "1")
    return (
        f"MNIST, 8,000 images to train and 2,000 to test; {args.workers} workers, {link}; {sizes[options['model']]} of "
        f"gradients; {epochs} of {options['batch']} images per worker and step; algorithm {args.algorithm}"
    )


def train_all(args: argparse.Namespace, data: Path, options: dict[str, str]) -> list[Run]:
    """One run per backend, in the same surroundings."""
    runs = []
    with ExitStack() as stack:
        with_server = args.algorithm == "atp"
        shaped = network.shaped(args.workers, args.net, has_server=with_server) if args.net else None
        net = stack.enter_context(shaped) if shaped else None
        if net is not None:
            # For whoever has to clean up by hand: `fanin net down` takes it.
            (args.out / "network").write_text(net.identity)
        for backend in BACKENDS:
            folder = (args.out / backend).resolve()
            # Results of an earlier run must not pass for those of this one.
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            print(f"\n{backend}: starting {args.workers} workers", flush=True)
            runs.append(train_one(backend, args.workers, data, folder, options, net))
    return runs


def train_one(
    backend: str, worker_count: int, data: Path, folder: Path, options: dict[str, str], net: network.Network | None
) -> Run:
    """Trains over one backend and returns what its workers measured."""
    arguments = launch.training_arguments(backend, data, folder, options)
    timeout_s = _TIMEOUT_SECONDS if net is None else _NET_TIMEOUT_SECONDS
    with _commands(backend, worker_count, arguments, folder, net) as commands:
        seconds = launch.run(commands, folder, timeout_s, lambda line: print(f"{backend}: {line}", flush=True))
    return compare.read_run(backend, folder, worker_count, seconds)


@contextmanager
def _commands(
    backend: str, worker_count: int, arguments: list[str], folder: Path, net: network.Network | None
) -> Iterator[list[launch.Command]]:
    if net is None:
        # FANIN_SWITCH is left as it is: unset, the library starts a private switch by itself.
        yield [launch.torchrun(worker_count, arguments)]
    elif backend != "fanin":
        yield network.commands(net, arguments, None)
    elif given := os.environ.get("FANIN_SWITCH"):
        raise DemoError(f"FANIN_SWITCH is {given}, which the namespaces of --net cannot reach: unset it")
    else:
        with network.switch(net, folder) as address, network.server(net, address, folder):
            yield network.commands(net, arguments, address)


def _print_speed(runs: list[Run], is_shaped: bool) -> None:
    first, second = runs
    ratio = first.mean("train_seconds") / second.mean("train_seconds")
    talk = first.mean("communication_seconds") / second.mean("communication_seconds")
    print(f"\n{second.backend} trained {ratio:.2f} and communicated {talk:.2f} times as fast as {first.backend}.")
    if is_shaped:
        limit = compare.wire(first).sent / compare.wire(second).sent
        print(f"Fewer bytes on the links explain up to {limit:.2f} times; anything beyond is processor time.")


if __name__ == "__main__":
    sys.exit(main())
