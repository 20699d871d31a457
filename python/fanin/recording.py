"""Recorded gradients as files: safetensors, of float32, one file per rank.

A file holds ``step-S/rank-R/PARAMETER`` for each step that was recorded, and metadata that says of which run. Any
reader of safetensors reads it; ``fanin reproduce atp overflow --gradients FOLDER`` does.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy

#: What the metadata's ``content`` says.
CONTENT: Final = "fanin gradients 1"
_HEADER_BYTES_MAX: Final = 100 << 20


def tensor_name(step: int, rank: int, parameter: str) -> str:
    """The name of one parameter's gradient."""
    return f"step-{step}/rank-{rank}/{parameter}"


def write(path: Path, tensors: Iterable[tuple[str, Any]], metadata: Mapping[str, str]) -> None:
    """Writes numpy arrays of float32 under their names. A file that is there is replaced once the new one is whole."""
    arrays = [(name, numpy.ascontiguousarray(array, "<f4")) for name, array in tensors]
    header: dict[str, Any] = {"__metadata__": {"content": CONTENT, **metadata}}
    offset = 0
    for name, array in arrays:
        header[name] = {"dtype": "F32", "shape": array.shape, "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header).encode()
    # The format asks for data at multiples of eight bytes.
    text += b" " * (-len(text) % 8)
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with unfinished.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, array in arrays:
            file.write(array.tobytes())
    unfinished.replace(path)


def read(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Arrays by name, and the metadata. Raises ``ValueError`` for a file that ``write`` did not make."""
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    if len(content) < 8 + size or size > _HEADER_BYTES_MAX:
        raise ValueError(f"{path} is no safetensors file: it ends inside its header")
    try:
        header = json.loads(content[8 : 8 + size])
        metadata = header.pop("__metadata__")
        is_ours = metadata["content"] == CONTENT
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no file of recorded gradients: {error!r}") from error
    if not is_ours:
        raise ValueError(f"{path} holds {metadata['content']!r}, not {CONTENT!r}: record it with this release")
    arrays = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        values = numpy.frombuffer(content[8 + size + begin : 8 + size + end], "<f4")
        arrays[name] = values.reshape(entry["shape"])
    return arrays, metadata
