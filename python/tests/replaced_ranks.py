"""A rank of a numpy job in which rank 2 is killed and replaced; a process of its own."""

from __future__ import annotations

import os
import signal
import sys

import fanin
import numpy

RANK, ROLE = int(sys.argv[1]), sys.argv[2]
WORLD_SIZE = 3
STEPS = 12
STEP_OF_DEATH = 4


def step(session: fanin.Session, number: int) -> tuple[float, fanin.Contributions]:
    values = numpy.full(50_000, float(number + RANK), dtype="float32")
    session.all_reduce(values)
    assert (values == values[0]).all() or fanin.last_contributions().missing, "blocks differ without a reason"
    return float(values[-1]), fanin.last_contributions()


def everybody(number: int) -> float:
    return float(sum(number + rank for rank in range(WORLD_SIZE)))


session = fanin.Session(
    rank=RANK, world_size=WORLD_SIZE, job="replaced", run_id="1", timeout=60, replace=ROLE == "replacement"
)
# What a newcomer has to be told.
state = numpy.zeros(1, dtype="int64")
if ROLE == "replacement":
    session.broadcast(state, root=0)
is_whole_again = ROLE == "replacement"
while state[0] < STEPS:
    number = int(state[0])
    if ROLE == "victim" and number == STEP_OF_DEATH:
        os.kill(os.getpid(), signal.SIGKILL)
    total, contributions = step(session, number)
    if is_whole_again:
        assert not contributions.missing and total == everybody(number), (total, contributions)
    state[0] += 1
    # The replacement admits nobody: it comes out of this very call at the others.
    if number == STEP_OF_DEATH + 2 and ROLE == "survivor":
        assert fanin.stats() is not None
        print("admits", flush=True)
        assert session.admit(wait=60) == [2]
        session.broadcast(state, root=0)
        is_whole_again = True
assert is_whole_again
session.close()
print("well", flush=True)
