"""Small models and their data for accuracy curves: images by a convolutional network, text by a transformer."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from fanin.demo import DemoError, mnist
from fanin.demo.train import small_model

TEXT: str = "valid-head.txt.gz"
_TEST_BYTES = 16_384
#: Characters that the text model looks at, at most.
_CONTEXT = 32
_WIDTH = 64


class TextModel(nn.Module):
    """Predicts the next byte: two causal layers of 64 with 4 heads."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, _WIDTH)
        self.place = nn.Parameter(torch.zeros(_CONTEXT, _WIDTH))
        layer = nn.TransformerEncoderLayer(_WIDTH, 4, 4 * _WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(_WIDTH, vocabulary)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(_CONTEXT), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of what follows each byte, ``(batch * context, vocabulary)``."""
        hidden = self.layers(self.embedding(tokens) + self.place, mask=self.mask, is_causal=True)
        scores: Tensor = self.head(hidden)
        return scores.flatten(0, 1)


@dataclass
class Task:
    """A model with its data. A batch is an input and the right answers for each row of the model's scores."""

    make: Callable[[], nn.Module]
    #: A training batch of a size, drawn with a generator.
    batch: Callable[[int, torch.Generator], tuple[Tensor, Tensor]]
    test: list[tuple[Tensor, Tensor]]


def images(folder: Path | None) -> Task:
    """MNIST's test half: 8,000 images to train, 2,000 to test."""
    inputs, labels = (torch.from_numpy(array) for array in mnist.load(mnist.find_folder(folder)))
    count = mnist.TRAIN_COUNT

    def batch(size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        chosen = torch.randint(count, (size,), generator=generator)
        return inputs[chosen], labels[chosen]

    return Task(small_model, batch, [(inputs[count:], labels[count:])])


def text(folder: Path | None) -> Task:
    """The beginning of WikiText-2's validation part, byte by byte; the last 16 KiB are for testing."""
    tokens = torch.tensor(_tokens(folder))
    vocabulary = int(tokens.max()) + 1
    train, test = tokens[:-_TEST_BYTES], tokens[-_TEST_BYTES:]
    rows = test[: (len(test) - 1) // _CONTEXT * _CONTEXT + 1]
    inputs, answers = rows[:-1].view(-1, _CONTEXT), rows[1:].view(-1, _CONTEXT)

    def batch(size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        first = torch.randint(len(train) - _CONTEXT - 1, (size, 1), generator=generator)
        window = train[first + torch.arange(_CONTEXT + 1)]
        return window[:, :-1], window[:, 1:].flatten()

    return Task(lambda: TextModel(vocabulary), batch, [(inputs, answers.flatten())])


def _tokens(folder: Path | None) -> list[int]:
    """The text's bytes, numbered by their order in the alphabet that it uses."""
    roots = [Path.cwd(), Path(__file__).resolve().parents[3]]
    candidates = [folder] if folder else [root / "data" / "wikitext2-head" for root in roots]
    for candidate in candidates:
        if (candidate / TEXT).exists():
            content = gzip.decompress((candidate / TEXT).read_bytes())
            break
    else:
        raise DemoError(f"no {TEXT} in {' or '.join(map(str, candidates))}: run it in fanin's repository")
    places = {byte: place for place, byte in enumerate(sorted(set(content)))}
    return [places[byte] for byte in content]


TASKS: dict[str, Callable[[Path | None], Task]] = {"cnn": images, "transformer": text}
