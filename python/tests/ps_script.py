"""One rank of a job whose last one dies, for ``test_ps``: ``python ps_script.py <switch> <run id> <rank> <size>``."""

from __future__ import annotations

import os
import signal
import sys

import fanin
import fanin.ps
import numpy as np

address, run_id, rank, size = sys.argv[1:]
fanin.ps.init(switch=address, run_id=run_id, rank=int(rank), world_size=int(size), timeout=60)
fanin.ps.push_pull("before", np.ones(10, "float32")).wait()
if rank == "2":
    os.kill(os.getpid(), signal.SIGKILL)
handles = [fanin.ps.push_pull(key, np.ones(100_000, "float32")) for key in range(5)]
fanin.ps.push("pushed", np.ones(10, "float32"))
handles.append(fanin.ps.pull("pushed"))
for handle in handles:
    try:
        handle.wait(30)
    except fanin.FaninError as error:
        assert not isinstance(error, fanin.FaninTimeout), error
        print(error)
    else:
        sys.exit("a sum was completed without rank 2")
try:
    fanin.ps.push("later", np.ones(10, "float32"))
except fanin.FaninError:
    sys.exit(0)
sys.exit("a push after the failure was accepted")
