"""What the demo learns from: English prose that comes with Python."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
import torch

from lineage.demo.data import Blocks, fingerprint, read_text, split_text
from lineage.errors import NotFoundError


def test_the_text_is_english_prose_of_some_466_000_bytes() -> None:
    """Later Pythons have a little more; each is text, not tables, code or another language."""
    text = read_text()
    assert 400_000 < len(text) < 700_000
    words = re.findall(r"[a-z]+", text.decode().lower())
    assert len(words) > 50_000
    share = sum(word in {"the", "a", "of", "to", "is", "and", "in"} for word in words) / len(words)
    assert share > 0.15
    prose = re.findall(r"[A-Z][a-z]+(?:,?\s[a-z]+){8,}", text.decode())
    assert len(prose) > 500
    assert sum(byte < 128 for byte in text) / len(text) > 0.99


def test_the_text_is_the_same_in_every_process() -> None:
    code = "from lineage.demo.data import *; print(fingerprint(read_text()))"
    for seed in ("1", "2"):
        out = subprocess.run(
            [sys.executable, "-c", code], env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, text=True
        )
        assert out.stdout.strip() == fingerprint(read_text()), out.stderr


def test_a_python_without_the_text_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(NotFoundError, match="without pydoc_data"):
        read_text()


def test_held_out_text_is_none_of_the_text_learned_from() -> None:
    train, val = split_text(b"0123456789")
    assert (train, val) == (b"012345678", b"9")


def test_each_target_is_the_next_byte_and_blocks_touch() -> None:
    data = Blocks(bytes(range(100)), 8)
    assert len(data) == 12
    for i in range(len(data)):
        inputs, targets = data[i]
        assert inputs.tolist() == list(range(8 * i, 8 * i + 8))
        assert torch.equal(targets, inputs + 1)
    with pytest.raises(IndexError):
        data[12]


def test_a_text_that_just_fills_its_blocks_still_has_the_last_target() -> None:
    assert len(Blocks(bytes(17), 8)) == 2
    assert len(Blocks(bytes(16), 8)) == 1
