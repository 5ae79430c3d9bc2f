"""Tensors and plain values to files and back: every type, every shape, nothing lost, nothing guessed."""

from __future__ import annotations

import collections
import datetime as dt
import hashlib
import math
import pathlib
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

from lineage.checkpoint import rng, tensorfile, tree
from lineage.checkpoint.errors import ArtifactError, UnsupportedStateError
from lineage.checkpoint.tensorfile import Header, TensorSpec, read_tensors, tensor_digest, write_tensors
from lineage.checkpoint.tensors import DTYPES, bytes_of, empty_for, spec_of
from lineage_schemas.errors import FormatError


def _sample(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    count = math.prod(shape)
    item = torch.empty((), dtype=dtype).element_size()
    raw = torch.randint(0, 2 if dtype == torch.bool else 256, (count * item,), dtype=torch.uint8)
    return raw.view(dtype).reshape(shape)


def _write(path: Path, tensors: dict[str, torch.Tensor]) -> tensorfile.Written:
    specs = [spec_of(name, tensor) for name, tensor in tensors.items()]
    return write_tensors(path, specs, lambda spec: bytes_of(tensors[spec.name]), {"format": "pt"})


def _read(path: Path, written: tensorfile.Written) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}

    def check(header: Header) -> None:
        found.update({spec.name: empty_for(spec) for spec in header.tensors})

    read_tensors(
        path,
        num_bytes=written.num_bytes,
        sha256=written.sha256,
        check=check,
        destination=lambda spec: bytes_of(found[spec.name]),
    )
    return found


def _bits(tensor: torch.Tensor) -> bytes:
    return bytes(bytes_of(tensor))


@pytest.mark.parametrize("name", DTYPES)
def test_every_type_comes_back_bit_for_bit(name: str, tmp_path: Path) -> None:
    """NaN payloads and all: the bytes are random."""
    tensors = {
        f"t{i}": _sample(DTYPES[name], shape) for i, shape in enumerate([(), (0,), (1,), (3, 5), (2, 0, 4), (70_000,)])
    }
    written = _write(tmp_path / "f", tensors)
    found = _read(tmp_path / "f", written)
    assert {k: (v.dtype, v.shape, _bits(v)) for k, v in found.items()} == {
        k: (v.dtype, v.shape, _bits(v)) for k, v in tensors.items()
    }
    assert written.sha256 == hashlib.sha256((tmp_path / "f").read_bytes()).hexdigest()


@pytest.mark.parametrize("name", sorted(set(DTYPES) - {"F8_E8M0"}))
def test_the_stock_library_reads_our_files(name: str, tmp_path: Path) -> None:
    """F8_E8M0 apart, which its torch side has no name for."""
    tensors = {"a": _sample(DTYPES[name], (4, 3)), "b.c": _sample(DTYPES[name], ()), "z": torch.arange(3)}
    _write(tmp_path / "f", tensors)
    with safe_open(tmp_path / "f", framework="pt") as stock:
        assert set(stock.keys()) == set(tensors)
        assert stock.metadata() == {"format": "pt"}
        for key, tensor in tensors.items():
            assert _bits(stock.get_tensor(key)) == _bits(tensor)


def test_an_empty_file_is_read_by_the_stock_library(tmp_path: Path) -> None:
    _write(tmp_path / "f", {})
    with safe_open(tmp_path / "f", framework="pt") as stock:
        assert list(stock.keys()) == []


def test_every_tensor_is_aligned_to_its_element(tmp_path: Path) -> None:
    tensors = {
        "a": torch.ones(3, dtype=torch.uint8),
        "b": torch.ones(3, dtype=torch.float64),
        "c": torch.ones(1).half(),
    }
    _write(tmp_path / "f", tensors)
    header = tensorfile.read_header(tmp_path / "f")
    for spec in header.tensors:
        assert (header.data_start + spec.start) % tensors[spec.name].element_size() == 0


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(24.0).reshape(4, 6).T,
        torch.arange(24.0).reshape(4, 6)[:, ::2],
        torch.arange(5.0).expand(3, 5),
        torch.arange(8.0).reshape(2, 2, 2).to(memory_format=torch.contiguous_format).permute(2, 0, 1),
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.randn(3, dtype=torch.complex64).conj(),
        torch.randn(3, dtype=torch.complex64).conj().imag,
        torch.nn.Parameter(torch.randn(3)),
    ],
    ids=["transposed", "strided", "expanded", "permuted", "channels-last", "conjugate", "negative-bit", "parameter"],
)
def test_views_are_written_in_row_major_order(tensor: torch.Tensor, tmp_path: Path) -> None:
    found = _read(tmp_path / "f", _write(tmp_path / "f", {"a": tensor}))["a"]
    assert torch.equal(found, tensor.detach())


@pytest.mark.parametrize(
    ("tensor", "why"),
    [
        (torch.randn(2, dtype=torch.complex128), "complex128"),
        (torch.eye(3).to_sparse(), "layout"),
        (torch.empty(2, device="meta"), "meta device"),
        (torch.nn.parameter.UninitializedParameter(), "forward pass"),
    ],
    ids=["complex128", "sparse", "meta", "uninitialised"],
)
def test_what_the_format_cannot_hold_is_refused_by_name(tensor: torch.Tensor, why: str) -> None:
    with pytest.raises(UnsupportedStateError, match=why):
        spec_of("layer.weight", tensor)


def test_a_file_is_never_written_over(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"mine")
    with pytest.raises(FileExistsError):
        _write(tmp_path / "f", {"a": torch.ones(2)})
    assert (tmp_path / "f").read_bytes() == b"mine"


def test_a_wrong_hash_is_an_error_even_when_everything_fits(tmp_path: Path) -> None:
    written = _write(tmp_path / "f", {"a": torch.ones(2)})
    wrong = tensorfile.Written(written.num_bytes, "0" * 64, 0, 0)
    with pytest.raises(ArtifactError) as error:
        _read(tmp_path / "f", wrong)
    assert written.sha256 in str(error.value)
    assert "0" * 64 in str(error.value)


def test_many_small_tensors_take_few_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writes = []
    real = tensorfile.fs.write_all
    monkeypatch.setattr(tensorfile.fs, "write_all", lambda fd, data: (writes.append(len(data)), real(fd, data)))
    tensors = {f"t{i}": torch.full((3,), float(i)) for i in range(5000)}
    written = _write(tmp_path / "f", tensors)
    assert len(writes) < 10
    assert torch.equal(_read(tmp_path / "f", written)["t4321"], tensors["t4321"])


@pytest.mark.parametrize("num_bytes", [1, 511, 65_536, 65_537, 66_000, 1 << 20, (1 << 24) + 513])
def test_one_changed_byte_changes_a_tensors_digest(num_bytes: int) -> None:
    data = bytearray(np.random.default_rng(0).bytes(num_bytes))
    before = tensor_digest("U8", (num_bytes,), memoryview(data))
    for at in {0, num_bytes // 3, num_bytes - 1}:
        data[at] ^= 0x10
        assert tensor_digest("U8", (num_bytes,), memoryview(data)) != before
        data[at] ^= 0x10
    assert tensor_digest("U8", (num_bytes,), memoryview(data)) == before
    assert tensor_digest("I8", (num_bytes,), memoryview(data)) != before
    assert tensor_digest("U8", (1, num_bytes), memoryview(data)) != before


def test_a_digest_is_the_same_at_any_alignment() -> None:
    raw = memoryview(np.random.default_rng(1).bytes(200_001))
    copy = memoryview(bytes(raw[1:]))
    assert tensor_digest("U8", (200_000,), raw[1:]) == tensor_digest("U8", (200_000,), copy)


# ---- nested state ----------------------------------------------------------------------------------------------------


def _round(value: Any) -> Any:
    flat = tree.flatten(value, "c", "state")
    return tree.unflatten(flat.wire, lambda name: flat.tensors[name], "state")


@pytest.mark.parametrize(
    "value",
    [
        {"a": 1, 2: "b", (1, "x"): [None, True, 2**70, -0.0, b"\x00\xff"]},
        {"nan": [math.inf, -math.inf]},
        collections.Counter({3: 2, 5: 1}),
        collections.OrderedDict([("b", 1), ("a", (1, 2))]),
        collections.deque([1, 2], maxlen=3),
        {1, 2, 3},
        frozenset({"a"}),
        {"size": torch.Size([2, 3]), "dtype": torch.bfloat16, "device": torch.device("cpu")},
        pathlib.Path("a/b"),
        dt.datetime(2026, 11, 29, tzinfo=dt.UTC),
        {"nested": collections.OrderedDict(inner=collections.Counter(a=1))},
        [],
        {},
        (),
    ],
    ids=repr,
)
def test_plain_state_comes_back_equal_and_of_the_same_type(value: Any) -> None:
    found = _round(value)
    assert type(found) is type(value)
    assert repr(found) == repr(value)


def test_tensors_and_arrays_come_back_in_their_places() -> None:
    value = {"t": torch.arange(3), "list": [torch.ones(2), {"n": np.float64(0.1)}], "a": np.arange(4, dtype=np.int16)}
    found = _round(value)
    assert torch.equal(found["t"], value["t"])
    assert torch.equal(found["list"][0], value["list"][0])
    assert type(found["list"][1]["n"]) is np.float64
    assert found["list"][1]["n"] == 0.1
    assert found["a"].dtype == np.int16
    assert found["a"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "value",
    [lambda: 1, object(), {"x": print}, np.array(["a"]), collections.defaultdict(list)],
    ids=["function", "object", "builtin", "array-of-text", "defaultdict"],
)
def test_a_value_that_would_come_back_as_something_else_is_refused_with_its_path(value: Any) -> None:
    with pytest.raises(UnsupportedStateError, match=r"state\.deep"):
        tree.flatten({"deep": value}, "c", "state")


@pytest.mark.parametrize(
    "wire",
    [
        None,
        {},
        {"value": 1, "refs": [[["a"], "t", "code"]]},
        {"value": 1, "refs": [1]},
        {"value": {}, "types": [[[], "os.system"]]},
        {"value": {"$pickle": "x"}},
        {"value": 3, "types": [[[], "collections.deque"]]},
    ],
)
def test_a_forged_state_is_refused(wire: Any) -> None:
    with pytest.raises(FormatError):
        tree.unflatten(wire, lambda _: torch.zeros(1), "state")


# ---- random streams --------------------------------------------------------------------------------------------------


def _generators() -> dict[str, Any]:
    return {
        "python": random.Random(3),
        "legacy": np.random.RandomState(3),
        "pcg": np.random.default_rng(3),
        "philox": np.random.Generator(np.random.Philox(3)),
        "mt": np.random.Generator(np.random.MT19937(3)),
        "sfc": np.random.Generator(np.random.SFC64(3)),
        "torch": torch.Generator().manual_seed(3),
    }


def _draw(generator: Any) -> list[float]:
    if isinstance(generator, torch.Generator):
        return torch.randn(3, generator=generator).tolist()
    if isinstance(generator, random.Random):
        return [generator.gauss(0, 1) for _ in range(3)]
    return list(generator.standard_normal(3))


def test_every_generator_goes_on_where_it_was() -> None:
    """After an odd number of normal draws: the second half of a pair is state as well."""
    from lineage_schemas import tagged

    generators = _generators()
    for generator in generators.values():
        _draw(generator)
    streams = tagged.decode(tagged.encode(rng.capture_streams(generators)))
    expected = {name: _draw(generator) for name, generator in generators.items()}
    fresh = _generators()
    assert rng.check_streams(streams, fresh) == []
    rng.restore_streams(streams, fresh)
    assert rng.digest_streams(rng.capture_streams(fresh)) == rng.digest_streams(streams)
    assert {name: _draw(generator) for name, generator in fresh.items()} == expected


def test_capturing_and_digesting_draw_nothing() -> None:
    generators = _generators()
    before = rng.capture_streams(generators)
    rng.digest_streams(before)
    assert rng.capture_streams(generators) == before


def test_a_stream_that_cannot_go_on_is_a_problem_before_anything_is_touched() -> None:
    streams = rng.capture_streams(_generators())
    assert rng.check_streams(streams, {})
    swapped = _generators() | {"pcg": torch.Generator()}
    assert [name for name, *_ in rng.check_streams(streams, swapped)] == ["pcg"]
    forged = streams | {"pcg": {"kind": "numpy.Generator", "state": {"bit_generator": "shuffle"}}}
    assert [name for name, *_ in rng.check_streams(forged, _generators())] == ["pcg"]
    cuda = streams | {"cuda:7": streams["torch"]}
    assert [name for name, *_ in rng.check_streams(cuda, _generators())] == ["cuda:7"]


def _spec(name: str) -> TensorSpec:
    return TensorSpec(name, "F32", (2,))


def test_the_layout_of_a_file_does_not_depend_on_the_order_given() -> None:
    names = ["b", "a", "c"]
    assert tensorfile.layout(map(_spec, names)) == tensorfile.layout(map(_spec, sorted(names)))
