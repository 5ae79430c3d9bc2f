"""The tiny GPT is a GPT, and its float16 is autocast's float16."""

from __future__ import annotations

import math

import torch
from torch.nn import functional as F

from lineage.demo.model import GPT, Linear, ModelConfig, causal_attention, in_float16


def test_the_model_has_about_a_million_parameters() -> None:
    model = GPT(ModelConfig())
    assert 0.9e6 < sum(p.numel() for p in model.parameters()) < 1.1e6


def test_before_training_every_byte_is_about_equally_likely() -> None:
    torch.manual_seed(0)
    model = GPT(ModelConfig()).eval()
    tokens = torch.randint(256, (4, 65))
    loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    assert abs(loss.item() - math.log(256)) < 0.2


def test_a_prediction_does_not_see_what_comes_after_it() -> None:
    torch.manual_seed(0)
    model = GPT(ModelConfig()).eval()
    tokens = torch.randint(256, (1, 64))
    changed = tokens.clone()
    changed[0, 40:] = (changed[0, 40:] + 1) % 256
    with torch.autocast("cpu", dtype=torch.float16):
        before, after = model(tokens), model(changed)
    assert torch.equal(before[0, :40], after[0, :40])
    assert not torch.equal(before[0, 40:], after[0, 40:])


def test_the_output_layer_is_the_embedding_table() -> None:
    model = GPT(ModelConfig())
    assert model.head.weight is model.tokens.weight


def test_in_float16_rounds_as_autocast_rounds() -> None:
    """Same dtype and same values as torch's own float16 kernels, up to one rounding of the last bit."""
    torch.manual_seed(0)
    x, weight = torch.randn(32, 160), torch.randn(64, 160) / 12
    x.requires_grad_()
    weight.requires_grad_()
    with torch.autocast("cpu", dtype=torch.float16):
        ours = in_float16(F.linear, x, weight)
        theirs = F.linear(x, weight)
    assert ours.dtype == theirs.dtype == torch.float16
    torch.testing.assert_close(ours, theirs, rtol=2e-3, atol=2e-3)

    upstream = torch.randn(32, 64).half()
    for wanted in (x, weight):
        (mine,) = torch.autograd.grad(ours, wanted, upstream, retain_graph=True)
        (torchs,) = torch.autograd.grad(theirs, wanted, upstream, retain_graph=True)
        torch.testing.assert_close(mine, torchs, rtol=1e-2, atol=1e-2)


def test_attention_in_float16_is_attention() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 5, 16, 32)
    with torch.autocast("cpu", dtype=torch.float16):
        ours = in_float16(causal_attention, q, k, v)
    assert ours.dtype == torch.float16
    torch.testing.assert_close(ours.float(), causal_attention(q, k, v), rtol=1e-2, atol=1e-2)


def test_gradients_overflow_where_float16_ends() -> None:
    """The scaler has something to find: 65504 passes, twice as much does not."""
    layer = Linear(1, 1)
    torch.nn.init.ones_(layer.weight)
    for upstream, overflows in ((60_000.0, False), (120_000.0, True)):
        layer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            (layer(torch.ones(1, 1)).float() * upstream).backward()
        assert layer.weight.grad is not None
        assert bool(layer.weight.grad.isinf()) is overflows


def test_outside_of_autocast_nothing_is_rounded() -> None:
    x, weight = torch.randn(3, 4), torch.randn(5, 4)
    assert torch.equal(in_float16(F.linear, x, weight), F.linear(x, weight))
