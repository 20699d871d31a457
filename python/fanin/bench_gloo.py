"""One gloo rank of ``fanin bench``, driven over stdin and stdout.

The same protocol as the Rust worker's: JSON, one value a line. ``probe`` answers with PyTorch's version, ``listen``
opens the rendezvous (rank 0), ``connect`` joins, ``round`` runs a barrier and one all-reduce, several times over, and
answers with the times of entering and leaving on the clock that all processes of a host share. It stands alone: it must
run where fanin's Python package is not installed.
"""

import ctypes
import datetime
import json
import signal
import sys
import time

_PR_SET_PDEATHSIG = 1


def _probe(state, request):
    import torch

    torch.set_num_threads(1)
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        raise RuntimeError(f"PyTorch {torch.__version__} is built without gloo")
    return {"version": torch.__version__}


def _listen(state, request):
    from torch.distributed import TCPStore

    limit = datetime.timedelta(milliseconds=request["timeout_ms"])
    # Port 0 is chosen by the system, so runs side by side cannot meet.
    store = TCPStore(request["address"], 0, request["world_size"], True, limit, wait_for_workers=False)
    state["store"] = store
    return {"port": store.port}


def _connect(state, request):
    import torch.distributed as dist

    limit = datetime.timedelta(milliseconds=request["timeout_ms"])
    store = state.get("store")
    if store is None:
        store = dist.TCPStore(request["address"], request["port"], request["world_size"], False, limit)
    dist.init_process_group("gloo", store=store, rank=request["rank"], world_size=request["world_size"], timeout=limit)
    return {}


def _round(state, request):
    import torch
    import torch.distributed as dist

    dtype = getattr(torch, request["dtype"])
    count = request["bytes"] // torch.empty((), dtype=dtype).element_size()
    key = (dtype, count)
    if state.get("key") != key:
        state["key"] = key
        state["tensor"] = torch.empty(count, dtype=dtype)
    tensor, expected = state["tensor"], dist.get_world_size()
    starts_ns, ends_ns, wrong = [], [], 0
    for _ in range(request["repeat"]):
        tensor.fill_(1)
        dist.barrier()
        starts_ns.append(time.monotonic_ns())
        dist.all_reduce(tensor)
        ends_ns.append(time.monotonic_ns())
        wrong += int((tensor != expected).sum())
    return {"starts_ns": starts_ns, "ends_ns": ends_ns, "wrong_elements": wrong}


def _end_with_parent():
    # A benchmark that is killed leaves nothing running: the kernel kills this process with it.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


OPERATIONS = {"probe": _probe, "listen": _listen, "connect": _connect, "round": _round}


def main(operations: dict = OPERATIONS) -> None:
    """Serves requests until stdin ends."""
    _end_with_parent()
    state = {}
    for line in sys.stdin:
        try:
            request = json.loads(line)
            reply = operations[request["op"]](state, request)
        except Exception as error:  # noqa: BLE001 - all of them belong to the coordinator
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
