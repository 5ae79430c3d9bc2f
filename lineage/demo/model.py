"""A byte-level GPT of about a million parameters, small enough to train on two CPU cores while one watches."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name that every PyTorch script uses


@dataclass(frozen=True)
class ModelConfig:
    """Shape of the network.

    Attributes:
        vocab_size: 256, since tokens are bytes.
        block_size: longest sequence the position table knows.
        dropout: on embeddings and on what each block adds to the residual stream.
    """

    vocab_size: int = 256
    block_size: int = 64
    n_layer: int = 3
    n_head: int = 5
    n_embd: int = 160
    dropout: float = 0.05


def in_float16(function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """`function(*inputs)` as float16 autocast computes it, at a speed that a CPU can bear.

    Most CPUs have no float16 multiplier, and torch's fallback takes 10 to 60 times as long as float32. Here inputs,
    outputs and the gradients of both are rounded to float16, as autocast does, while the products in between are taken
    in float32, as a GPU's tensor cores accumulate them. So gradients overflow where float16 overflows. Off the CPU, or
    outside of autocast, this is `function(*inputs)` itself.
    """
    if inputs[0].device.type != "cpu" or not torch.is_autocast_enabled("cpu"):
        return function(*inputs)
    with torch.autocast("cpu", enabled=False):
        return function(*(x.half().float() for x in inputs)).half()


class Linear(nn.Linear):
    """`y = x W^T`, without a bias."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features, bias=False)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - nn.Linear's own name
        return in_float16(F.linear, input, self.weight)


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class Attention(nn.Module):
    """Causal self-attention over `n_head` heads."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.n_head = config.n_head
        self.qkv = Linear(config.n_embd, 3 * config.n_embd)
        self.proj = Linear(config.n_embd, config.n_embd)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.n_head, width // self.n_head).permute(2, 0, 3, 1, 4)
        mixed = in_float16(causal_attention, q, k, v)
        out: Tensor = self.proj(mixed.transpose(1, 2).reshape(batch, length, width))
        return out


class Block(nn.Module):
    """Attention, then a two-layer perceptron; each reads a normalised stream and adds to it."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm_1 = nn.RMSNorm(config.n_embd)
        self.attention = Attention(config)
        self.norm_2 = nn.RMSNorm(config.n_embd)
        self.up = Linear(config.n_embd, 4 * config.n_embd)
        self.down = Linear(4 * config.n_embd, config.n_embd)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.norm_1(x)))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm_2(x)))))  # type: ignore[no-any-return]  # modules return Any


class GPT(nn.Module):
    """Bytes in, logits of the next byte out; the embedding table is also the output layer (tied weights)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocab_size, config.n_embd)
        self.positions = nn.Embedding(config.block_size, config.n_embd)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.norm = nn.RMSNorm(config.n_embd)
        self.head = Linear(config.n_embd, config.vocab_size)
        self.head.weight = self.tokens.weight

        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                # What a block adds starts small, so that depth does not inflate the residual stream (GPT-2).
                into_stream = name.endswith(("proj.weight", "down.weight"))
                nn.init.normal_(weight, std=0.02 / math.sqrt(2 * config.n_layer) if into_stream else 0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits in float32, shape (batch, length, vocabulary), for tokens of shape (batch, length)."""
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        x = self.dropout(x)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits.float()
