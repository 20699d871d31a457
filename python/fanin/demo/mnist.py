"""The images: MNIST's test half in its original gzip IDX files, split 8,000 to train and 2,000 to test."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy

from fanin.demo import DemoError

IMAGES = "t10k-images-idx3-ubyte.gz"
LABELS = "t10k-labels-idx1-ubyte.gz"
TRAIN_COUNT = 8_000
#: IDX's code for unsigned bytes, the only element type of MNIST.
_UNSIGNED_BYTE = 0x08


def read_idx(path: Path) -> Any:
    """The array of unsigned bytes in a gzip IDX file, in the shape that its header states.

    Raises ``DemoError`` if the file is missing, is not IDX, or is shorter or longer than its header says.
    """
    try:
        content = gzip.decompress(path.read_bytes())
    except FileNotFoundError as error:
        raise DemoError(f"{path} is missing; give the folder with {IMAGES} and {LABELS} by --data") from error
    except (OSError, EOFError) as error:
        raise DemoError(f"{path} cannot be read: {error}") from error
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != _UNSIGNED_BYTE:
        raise DemoError(f"{path} is not an IDX file of unsigned bytes")
    dimension_count = content[3]
    header_bytes = 4 + 4 * dimension_count
    if len(content) < header_bytes:
        raise DemoError(f"{path} ends inside its header")
    shape = struct.unpack(f">{dimension_count}I", content[4:header_bytes])
    values = numpy.frombuffer(content, dtype=numpy.uint8, offset=header_bytes)
    expected = 1
    for size in shape:
        expected *= size
    if values.size != expected:
        raise DemoError(f"{path} states {expected} elements but holds {values.size}")
    return values.reshape(shape)


def load(folder: Path) -> tuple[Any, Any]:
    """Images as float32 ``[count, 1, 28, 28]``, mean about 0 and deviation about 1, and labels as int64 ``[count]``."""
    images, labels = read_idx(folder / IMAGES), read_idx(folder / LABELS)
    if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels) or len(images) <= TRAIN_COUNT:
        raise DemoError(f"{folder} holds images {images.shape} with labels {labels.shape}; 10,000 of each are expected")
    # The mean and deviation of MNIST's pixels, as every tutorial uses them.
    scaled = (images.astype(numpy.float32) / 255 - 0.1307) / 0.3081
    return scaled[:, None], labels.astype(numpy.int64)


def find_folder(given: Path | None) -> Path:
    """The folder with the data: the one given, else the repository's, seen from here or from the working folder."""
    if given is not None:
        candidates = [given]
    else:
        roots = [Path.cwd(), Path(__file__).resolve().parents[3]]
        candidates = [root / "data" / "mnist-t10k" for root in roots]
    for folder in candidates:
        if (folder / IMAGES).exists() and (folder / LABELS).exists():
            return folder
    shown = " or ".join(str(folder) for folder in candidates)
    raise DemoError(f"no MNIST images in {shown}; give the folder with {IMAGES} and {LABELS} by --data")
