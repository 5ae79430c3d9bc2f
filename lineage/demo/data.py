"""The text that comes with Python itself: the language reference that `help()` prints, some 466,000 bytes of English.

No download, no licence to ask for, the same bytes for everybody with the same Python.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor
from torch.utils.data import Dataset

from lineage.errors import NotFoundError


def read_text() -> bytes:
    """The topics of `help()`, in the order of their names, as UTF-8.

    Raises:
        NotFoundError: this Python was installed without `pydoc_data`.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise NotFoundError(
            "the demo's text is missing: this Python came without pydoc_data.topics",
            hint="use a complete Python (python.org, your distribution's full package, uv, conda)",
        ) from error
    return "\n\n".join(topics[name] for name in sorted(topics)).encode()


def split_text(text: bytes, val_fraction: float = 0.1) -> tuple[bytes, bytes]:
    """`(train, val)`: the first part to learn from, the rest to be judged by."""
    cut = int(len(text) * (1 - val_fraction))
    return text[:cut], text[cut:]


def fingerprint(text: bytes) -> str:
    """What a run says its data is: another Python's text has another one, and a resume on it is refused."""
    return f"sha256:{hashlib.sha256(text).hexdigest()}"


class Blocks(Dataset[tuple[Tensor, Tensor]]):
    """The text cut into blocks: sample i is `(bytes, the bytes one further on)`, each of shape (block_size,).

    Blocks touch and do not overlap; what is left at the end and fills no block is not used.
    """

    def __init__(self, text: bytes, block_size: int) -> None:
        self.block_size = block_size
        self.bytes = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()

    def __len__(self) -> int:
        return (len(self.bytes) - 1) // self.block_size

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        start = index * self.block_size
        block = self.bytes[start : start + self.block_size + 1]
        return block[:-1], block[1:]
