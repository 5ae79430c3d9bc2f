"""Whatever holds a configuration, the recipe is the same plain values, and its fingerprint tells what differs."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import datetime as dt
import enum
import functools
import json
import re
import subprocess
import sys
import types
from pathlib import Path
from typing import Any, NamedTuple

import attrs
import numpy as np
import omegaconf
import pydantic
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lineage.capture.recipe import capture_recipe, recipe_fingerprint
from lineage.errors import UsageError
from lineage_schemas import tagged
from lineage_schemas.run import Recipe


@dataclasses.dataclass
class Optim:
    lr: float = 3e-4
    betas: tuple[float, float] = (0.9, 0.95)


@dataclasses.dataclass
class Config:
    optim: Optim = dataclasses.field(default_factory=Optim)
    steps: int = 100
    name: str = "tiny"


class OptimModel(pydantic.BaseModel):
    lr: float = 3e-4
    betas: tuple[float, float] = (0.9, 0.95)


class ConfigModel(pydantic.BaseModel):
    optim: OptimModel = OptimModel()
    steps: int = 100
    name: str = "tiny"


@attrs.define
class ConfigAttrs:
    optim: Any = attrs.field(factory=Optim)
    steps: int = 100
    name: str = "tiny"


class ConfigObject:
    def __init__(self) -> None:
        self.optim = OptimModel()
        self.steps = 100
        self.name = "tiny"
        self._private = object()


class ConfigSlots:
    __slots__ = ("name", "optim", "steps")

    def __init__(self) -> None:
        self.optim, self.steps, self.name = {"lr": 3e-4, "betas": (0.9, 0.95)}, 100, "tiny"


class ConfigDictLike:
    """As ml_collections does it: keys and items, and no Mapping."""

    def __init__(self) -> None:
        self._fields = dataclasses.asdict(Config())

    def keys(self) -> Any:
        return self._fields.keys()

    def __getitem__(self, name: str) -> Any:
        return self._fields[name]


PLAIN = {"optim": {"lr": 3e-4, "betas": (0.9, 0.95)}, "steps": 100, "name": "tiny"}


@pytest.mark.parametrize(
    "config",
    [
        PLAIN,
        Config(),
        ConfigModel(),
        ConfigAttrs(),
        ConfigObject(),
        ConfigSlots(),
        ConfigDictLike(),
        argparse.Namespace(optim=Optim(), steps=100, name="tiny"),
        types.MappingProxyType(PLAIN),
        collections.ChainMap({"steps": 100}, {"optim": Optim(), "name": "tiny"}),
        collections.OrderedDict(name="tiny", steps=100, optim=argparse.Namespace(lr=3e-4, betas=(0.9, 0.95))),
        {"optim": {"lr": np.float64(3e-4), "betas": (0.9, 0.95)}, "steps": np.int64(100), "name": np.str_("tiny")},
    ],
    ids=lambda config: type(config).__name__,
)
def test_every_holder_of_the_same_settings_gives_the_same_recipe(config: Any) -> None:
    recipe = capture_recipe(config)
    assert tagged.decode(recipe.value) == PLAIN
    assert recipe == capture_recipe(PLAIN)
    assert recipe.masked == []


def test_omegaconf_is_resolved() -> None:
    config = omegaconf.OmegaConf.create({"a": {"b": 3, "c": "${a.b}"}, "d": ["${a.b}", {"e": None}], "m": "???"})
    assert capture_recipe(config).value == {"a": {"b": 3, "c": 3}, "d": [3, {"e": None}], "m": "???"}
    assert capture_recipe({"cfg": config.d}).value == {"cfg": [3, {"e": None}]}
    broken = omegaconf.OmegaConf.create({"a": "${nowhere}"})
    assert capture_recipe(broken).value == {"a": "${nowhere}"}


class Point(NamedTuple):
    x: int
    y: int


class Colour(enum.Enum):
    RED = "red"
    ODD = object()


class Level(enum.IntEnum):
    LOW = 1


def test_each_kind_of_leaf_has_a_plain_value() -> None:
    leaves = {
        "path": (Path("a/b"), "a/b"),
        "enum": (Colour.RED, "red"),
        "odd_enum": (Colour.ODD, "ODD"),
        "int_enum": (Level.LOW, 1),
        "when": (dt.datetime(2026, 11, 29, tzinfo=dt.UTC), "2026-11-29T00:00:00+00:00"),
        "span": (dt.timedelta(hours=1), "1:00:00"),
        "dtype": (torch.bfloat16, "torch.bfloat16"),
        "np_dtype": (np.dtype("int32"), "int32"),
        "device": (torch.device("cuda:1"), "cuda:1"),
        "size": (torch.Size([2, 3]), (2, 3)),
        "np_bool": (np.bool_(1), True),
        "np_float": (np.float32(0.5), 0.5),
        "array": (np.arange(3), [0, 1, 2]),
        "tensor": (torch.ones(2), [1.0, 1.0]),
        "class": (torch.nn.Linear, "torch.nn.modules.linear.Linear"),
        "function": (json.dumps, "json.dumps"),
        "builtin": (len, "len"),
        "partial": (functools.partial(json.dumps, 1, indent=2), {"partial": "json.dumps", "args": (1,), "kwargs": {"indent": 2}}),
        "set": ({3, 1, 2}, [1, 2, 3]),
        "named": (Point(1, 2), {"x": 1, "y": 2}),
        "deque": (collections.deque([1]), [1]),
        "nan": (float("inf"), float("inf")),
        "big": (2**80, 2**80),
        "bytes": (b"\xff", b"\xff"),
        "none": (None, None),
        "surrogate": ("a\udcffb", "a\\xffb"),
        "lone": ("\ud800", "\\xed\\xa0\\x80"),
        "module": (json, "json"),
    }  # fmt: skip
    recipe = capture_recipe({name: value for name, (value, _) in leaves.items()})
    assert tagged.decode(recipe.value) == {name: plain for name, (_, plain) in leaves.items()}
    assert Recipe.model_validate_json(recipe.model_dump_json()) == recipe


def test_larger_arrays_are_told_apart_by_their_content() -> None:
    one, other = np.zeros(1000), np.zeros(1000)
    other[500] = 1
    assert capture_recipe({"a": one}) == capture_recipe({"a": one.copy()}) != capture_recipe({"a": other})
    assert re.fullmatch(r"<numpy.ndarray float64 \[1000\] sha256 [0-9a-f]{64}>", capture_recipe({"a": one}).value["a"])
    assert "bfloat16" in capture_recipe({"a": torch.zeros(2, dtype=torch.bfloat16)}).value["a"]


class Opaque:
    __slots__ = ()


def test_an_object_that_says_nothing_is_named_without_its_address() -> None:
    assert re.fullmatch(r"<[\w.]*Opaque>", capture_recipe({"x": Opaque()}).value["x"])
    assert capture_recipe({"x": Opaque(), "f": lambda: 1}) == capture_recipe({"x": Opaque(), "f": lambda: 1})
    assert "0x" not in json.dumps(capture_recipe({"x": Opaque(), "y": object(), "z": iter([])}).value)


def test_a_recipe_that_holds_itself_ends() -> None:
    config: dict[str, Any] = {"a": 1}
    config["self"] = config
    assert capture_recipe(config).value == {"a": 1, "self": "<the dict that holds this>"}
    shared = [1]
    assert capture_recipe({"a": shared, "b": shared}).value == {"a": [1], "b": [1]}


def test_a_recipe_without_end_is_refused() -> None:
    deep: list[Any] = []
    for _ in range(500):
        deep = [deep]
    with pytest.raises(UsageError, match="deep"):
        capture_recipe(deep)
    with pytest.raises(UsageError, match="more than"):
        capture_recipe([0] * 1_000_001)


class Moody:
    def __init__(self) -> None:
        self.fine = 1

    def __getattribute__(self, name: str) -> Any:
        if name == "fine":
            raise RuntimeError("not today")
        return super().__getattribute__(name)


def test_a_setting_that_raises_is_said_to() -> None:
    assert capture_recipe({"m": Moody()}).value == {"m": {"fine": "<unreadable: RuntimeError>"}}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        (1, True),
        (0, False),
        (0, None),
        ("1", 1),
        ((1, 2), [1, 2]),
        ({}, []),
        (0.0, -0.0),
        ("", None),
        ("a", b"a"),
    ],
)
def test_values_that_python_or_yaml_confuse_are_different_recipes(one: Any, other: Any) -> None:
    assert capture_recipe({"x": one}).fingerprint != capture_recipe({"x": other}).fingerprint


def test_the_order_of_settings_makes_no_other_recipe() -> None:
    assert (
        capture_recipe({"a": 1, "b": {"c": 2, "d": 3}}).fingerprint
        == capture_recipe({"b": {"d": 3, "c": 2}, "a": 1}).fingerprint
    )
    assert capture_recipe({1: "a", 2: "b"}).fingerprint == capture_recipe({2: "b", 1: "a"}).fingerprint
    assert capture_recipe([1, 2]).fingerprint != capture_recipe([2, 1]).fingerprint


def test_the_fingerprint_is_that_of_the_documented_text() -> None:
    import hashlib

    recipe = capture_recipe({"b": [1, 1.0, 1e-05, None, True], "a": "ä"})
    text = '{"a":"ä","b":[1,1.0,1e-05,null,true]}'
    assert recipe.fingerprint == hashlib.sha256(text.encode()).hexdigest() == recipe_fingerprint(recipe.value)
    assert capture_recipe(None).fingerprint == hashlib.sha256(b"{}").hexdigest()


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(alphabet="abc $é", max_size=5) | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.text(alphabet="ab$", max_size=3), inner, max_size=3),
    max_leaves=12,
)  # fmt: skip


@given(value=plain)
def test_a_recipe_survives_run_json(value: Any) -> None:
    from lineage.runs.store import parse_run, render_run
    from lineage_schemas.run import Run, Session, Source, Start

    recipe = capture_recipe({"config": value})
    at = dt.datetime(2026, 11, 29, tzinfo=dt.UTC)
    session = Session(
        id="s01-00000000", ordinal=1, started_at=at, pid=1, host="h", recipe=recipe, source=Source(),
        environment="0" * 64, start=Start(kind="fresh"),
    )  # fmt: skip
    run = Run(id="r", name="r", created_at=at, sessions=[session], environments={})
    again = parse_run(render_run(run), where="").sessions[0].recipe
    assert tagged.decode(again.value) == tagged.decode(recipe.value)
    assert recipe_fingerprint(again.value) == recipe.fingerprint


class Login(pydantic.BaseModel):
    user: str = "me"
    pin: pydantic.SecretStr
    raw: pydantic.SecretBytes = pydantic.SecretBytes(b"raw-bytes")


def test_secrets_are_masked_and_named_and_still_compare() -> None:
    def recipe(key: str, pin: str) -> Recipe:
        return capture_recipe(
            {
                "wandb": {"api_key": key},
                "login": Login(pin=pydantic.SecretStr(pin)),
                "url": "https://u:pw@h/",
                "num_tokens": 5,
            }
        )

    one = recipe("abcdef123456", "9999")
    assert one.masked == ["login.pin", "login.raw", "url", "wandb.api_key"]
    text = json.dumps(one.value)
    for secret in ("abcdef123456", "9999", "raw-bytes", "u:pw"):
        assert secret not in text
    assert one.value["login"]["user"] == "me"
    assert one.value["num_tokens"] == 5
    assert recipe("abcdef123456", "9999").fingerprint == one.fingerprint
    assert recipe("abcdef123457", "9999").fingerprint != one.fingerprint != recipe("abcdef123456", "9998").fingerprint


def test_a_recipe_needs_no_library_the_program_has_not_loaded() -> None:
    code = (
        "import sys; from lineage.capture.recipe import capture_recipe; capture_recipe({'a': [1, object()]});"
        "print([name for name in ('torch', 'numpy', 'omegaconf', 'textual') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
