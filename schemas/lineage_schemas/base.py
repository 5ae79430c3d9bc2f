"""Ground rules of every record: open or closed, frozen, and numbers that JSON cannot say."""

from __future__ import annotations

import math
from typing import Annotated, Any, Final, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    SerializerFunctionWrapHandler,
    WithJsonSchema,
    model_serializer,
    model_validator,
)

from lineage_schemas.errors import FormatError, NewerFormatError

NonFinite = Literal["nan", "inf", "-inf"]

_FROM_NAME: Final[dict[str, float]] = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def nonfinite_name(value: float) -> NonFinite | None:
    """The name a non-finite number has on disk, or None for a finite one."""
    if math.isfinite(value):
        return None
    if math.isnan(value):
        return "nan"
    return "inf" if value > 0 else "-inf"


def _number_from_wire(value: object) -> object:
    if isinstance(value, str):
        return _FROM_NAME.get(value, value)
    return value


def _number_to_wire(value: float) -> float | str:
    return nonfinite_name(value) or value


Number = Annotated[
    float,
    BeforeValidator(_number_from_wire),
    PlainSerializer(_number_to_wire, return_type=float | str),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"enum": ["nan", "inf", "-inf"]}]}),
]
"""A float outside of `metrics`: a number, or one of the three names where JSON has no number."""

MetricValue = Annotated[float, WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "null"}]})]
Metrics = dict[str, MetricValue]
"""Name to plain float, NaN and infinities included; on disk see `MetricsRecord`."""

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{8,64}$")]
"""Hex digest of any length from 32 bits up; the field that holds it says of what."""


class Record(BaseModel):
    """A fact a machine wrote: frozen, typed without coercion, and open.

    Unknown fields are kept (they came from a newer minor version) and are written back as they were.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="allow", protected_namespaces=())

    def to_wire(self) -> dict[str, Any]:
        """The JSON-ready dict: absent optional fields left out, unknown fields kept."""
        return self.model_dump(mode="json", exclude_none=True)


class ClosedRecord(Record):
    """A fact a person wrote: an unknown field is a typo, and an error."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", protected_namespaces=())


class MetricsRecord(Record):
    """A record with `metrics`, whose non-finite values travel as `null` plus a sibling map.

    JSON has no NaN. On disk the value is `null` and `nonfinite` {name: "nan" | "inf" | "-inf"} says which; the
    map is absent when empty (docs/format.md, "Numbers"). A `null` without an entry is read as NaN: a foreign
    writer lost which. In memory `metrics` holds plain floats and there is no `nonfinite`.
    """

    metrics: Metrics

    @model_validator(mode="before")
    @classmethod
    def _join_nonfinite(cls, data: Any) -> Any:
        if not isinstance(data, dict) or not isinstance(data.get("metrics"), dict):
            return data
        metrics = data["metrics"]
        names = data.get("nonfinite")
        if names is None and None not in metrics.values():
            return data
        if names is not None and not isinstance(names, dict):
            raise ValueError("nonfinite must map names of metrics to nan, inf or -inf")
        joined = {name: math.nan if value is None else value for name, value in metrics.items()}
        for name, which in (names or {}).items():
            if not isinstance(which, str) or which not in _FROM_NAME or metrics.get(name, 0) is not None:
                raise ValueError(f"nonfinite[{name!r}] = {which!r} does not match a null in metrics")
            joined[name] = _FROM_NAME[which]
        return {key: value for key, value in data.items() if key != "nonfinite"} | {"metrics": joined}

    @model_serializer(mode="wrap")
    def _split_nonfinite(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        wire: dict[str, Any] = handler(self)
        names = {name: which for name, value in self.metrics.items() if (which := nonfinite_name(value))}
        if names:
            wire["metrics"] = {n: None if n in names else v for n, v in self.metrics.items()}
            wire["nonfinite"] = names
        return wire

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: Any) -> dict[str, Any]:
        """The schema of the wire form: `nonfinite` stands beside `metrics`."""
        schema: dict[str, Any] = handler.resolve_ref_schema(handler(core_schema))
        schema["properties"]["nonfinite"] = {
            "type": "object",
            "minProperties": 1,
            "additionalProperties": {"enum": list(_FROM_NAME)},
            "description": "which non-finite number each null in metrics stands for; absent when there is none",
        }
        return schema


class Format(Record):
    """Name and version of a file's format.

    A reader of major version M reads every M.x: fields and kinds it does not know are kept and passed over. Another
    major version is refused by name (`check`).
    """

    name: str
    version: Annotated[str, Field(pattern=r"^[0-9]{1,9}\.[0-9]{1,9}$")]

    @property
    def major(self) -> int:
        return int(self.version.split(".")[0])


def check_format(found: Format, *, name: str, major: int, where: str) -> None:
    """Refuse a file of another format or of a newer major version.

    Raises:
        NewerFormatError: the major version is above the one this reader knows.
        FormatError: the name is another format's.
    """
    if found.name != name:
        raise FormatError(f"this is a {found.name!r} file, not a {name!r} one", where)
    if found.major > major:
        raise NewerFormatError(
            f"{name} version {found.version} is newer than this Lineage reads ({major}.x)",
            where,
            "install a newer lineage-tracker to read it; nothing was changed",
        )
