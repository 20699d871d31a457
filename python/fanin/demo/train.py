"""A stock DDP script: MNIST, SGD, one process per worker. The backend's name comes from the command line.

    torchrun --nproc-per-node=4 -m fanin.demo.train gloo --data data/mnist-t10k --results out

Training itself is what any user's script does; ``meter`` notes times and losses, alike for every backend.
"""

import argparse
import atexit
import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from fanin.demo import mnist
from fanin.demo.meter import Meter, timed_all_reduce
from fanin.torch.record import record


def small_model() -> nn.Module:
    """A convolutional network of 0.2 MB, for links that are fast."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 5, stride=2),
        nn.GELU(),
        nn.Conv2d(8, 16, 3, stride=2),
        nn.GELU(),
        nn.Flatten(),
        nn.Linear(400, 100),
        nn.GELU(),
        nn.Linear(100, 10),
    )


def large_model() -> nn.Module:
    """A multi-layer perceptron of 11.2 MB, so that a slow link matters."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(784, 1536),
        nn.GELU(),
        nn.Linear(1536, 1024),
        nn.GELU(),
        nn.Linear(1024, 10),
    )


# GELU and not ReLU: where a ReLU's input changes sign, a difference in the last bit becomes a jump of the loss, also
# when gloo merely sums in another order. A smooth model lets two runs be compared step by step.
MODELS = {"small": small_model, "large": large_model}


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("backend")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--model", choices=MODELS, default="small")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rate", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path, metavar="FOLDER", help="record the gradients there (fanin.record)")
    parser.add_argument("--record-every", type=int, default=1, metavar="STEPS")
    parser.add_argument("--record-only", metavar="REGEX", help="of parameters whose names match")
    parser.add_argument("--record-mib", type=int, default=64, metavar="MIB", help="at most so much for each rank")
    return parser.parse_args()


def main() -> None:
    """Trains, and leaves what was measured in the results folder."""
    args = parse()
    dist.init_process_group(args.backend, timeout=timedelta(seconds=120))
    rank, world_size = dist.get_rank(), dist.get_world_size()
    images, labels = (torch.from_numpy(array) for array in mnist.load(args.data))
    train = TensorDataset(images[: mnist.TRAIN_COUNT], labels[: mnist.TRAIN_COUNT])
    sampler = DistributedSampler(train, seed=args.seed, drop_last=True)
    loader = DataLoader(train, batch_size=args.batch, sampler=sampler, drop_last=True)
    test = images[mnist.TRAIN_COUNT + rank :: world_size], labels[mnist.TRAIN_COUNT + rank :: world_size]

    torch.manual_seed(args.seed)
    model = DistributedDataParallel(MODELS[args.model]())
    meter = Meter()
    model.register_comm_hook(meter, timed_all_reduce)
    recorder = None
    if args.record is not None:
        bytes_max = args.record_mib << 20
        recorder = record(model, args.record, every=args.record_every, only=args.record_only, bytes_max=bytes_max)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.rate, momentum=0.9)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        meter.begin_epoch()
        for batch, target in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(batch), target)
            loss.backward()
            optimizer.step()
            meter.losses.append(loss.item())
        speed = meter.end_epoch(len(loader) * args.batch * world_size)
        test_loss, accuracy = evaluate(model.module, *test)
        meter.epochs.append({"loss": test_loss, "accuracy": accuracy, "images_per_second": speed})
        if rank == 0:
            done = f"epoch {epoch + 1}/{args.epochs}"
            print(f"{done}: test loss {test_loss:.4f}, accuracy {accuracy:.2%}, {speed:,.0f} images/s", flush=True)
    if recorder is not None:
        recorder.close()
    meter.save(args.results)
    dist.destroy_process_group()


def evaluate(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> tuple[float, float]:
    """Mean loss and accuracy over all workers' shares of the test images."""
    with torch.no_grad():
        scores = model(images)
        loss_sum = nn.functional.cross_entropy(scores, labels, reduction="sum").item()
    correct = (scores.argmax(1) == labels).sum().item()
    totals = torch.tensor([loss_sum, correct, len(labels)], dtype=torch.float64)
    dist.all_reduce(totals)
    loss_sum, correct, count = totals.tolist()
    return loss_sum / count, correct / count


if __name__ == "__main__":
    main()
    # gloo's threads let go of a collective's tensors a moment after its end, which needs Python's lock. DDP keeps the
    # group and so the threads alive, and one that comes to it while Python shuts down aborts the process (Python
    # before 3.14). All results are written, so nothing is left for Python to do but what modules asked for.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(0)
