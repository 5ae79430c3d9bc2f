"""The columns of one session: arrays that grow at their ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from lineage.log.layout import Floats, Ints, Steps
from lineage_schemas.ids import SessionId

S = TypeVar("S", bound=np.generic)


class Buffer(Generic[S]):
    """A growing array. What `array` returned before stays as it was while more is appended.

    What is appended is put behind the rest when somebody looks, so that a long log is copied once and not at every
    doubling.
    """

    def __init__(self, dtype: type[S], initial: npt.NDArray[S] | None = None) -> None:
        self._dtype = dtype
        self._data: npt.NDArray[S] = np.empty(0, dtype) if initial is None else initial
        self._settled = len(self._data)
        self._pending: list[npt.NDArray[S]] = []
        self._count = self._settled

    def __len__(self) -> int:
        return self._count

    @property
    def array(self) -> npt.NDArray[S]:
        """The values so far; a view, not to be written to."""
        if self._pending:
            self._settle()
        view = self._data[: self._settled]
        view.flags.writeable = False
        return view

    def append(self, values: npt.NDArray[S]) -> None:
        """Add values, which are the buffer's own from now on."""
        self._pending.append(values)
        self._count += len(values)

    def _settle(self) -> None:
        if self._count > len(self._data):
            # Twice as long for a follower, which looks after every append; no longer than needed for a whole log.
            most = max(self._count, 64, 2 * len(self._data) if self._settled else 0)
            grown: npt.NDArray[S] = np.empty(most, self._dtype)
            grown[: self._settled] = self._data[: self._settled]
            self._data = grown
        for values in self._pending:
            self._data[self._settled : self._settled + len(values)] = values
            self._settled += len(values)
        self._pending.clear()


class MetricColumn:
    """Values of one metric in one session.

    Attributes:
        values: where the metric was logged; NaN and infinities are values.
    """

    def __init__(self, values: Floats | None = None, rows: Ints | None = None) -> None:
        self._values = Buffer(np.float64, values)
        self._rows = Buffer(np.int64, rows) if rows is not None else None

    @property
    def values(self) -> Floats:
        return self._values.array

    @property
    def rows(self) -> Ints | None:
        """The step rows the values belong to, increasing; None when every row has one."""
        return self._rows.array if self._rows is not None else None

    def append(self, values: Floats, rows: Ints | None, num_rows: int, num_added: int) -> None:
        """Add values for `num_added` rows after the first `num_rows`; `rows` counts within the added ones."""
        if self._rows is None and (rows is not None or len(self._values) != num_rows):
            # From now on a row may be without: a column of row numbers costs what is there, a mask what is not.
            self._rows = Buffer(np.int64, np.arange(len(self._values), dtype=np.int64))
        if self._rows is not None:
            within = np.arange(num_added, dtype=np.int64) if rows is None else rows
            self._rows.append(within + num_rows)
        self._values.append(values)

    def sparsify(self, num_rows: int) -> None:
        """Note that the rows from `num_rows` on may be without a value."""
        if self._rows is None:
            self._rows = Buffer(np.int64, np.arange(num_rows, dtype=np.int64))


class SessionColumns:
    """What one session's `step` lines said, a row each, in order of the log.

    Attributes:
        session: its id.
        first_ts, last_ts: Unix seconds of its first and latest event of any kind.
        metrics: columns by name, in the order in which the names were first seen.
    """

    def __init__(self, session: SessionId) -> None:
        self.session = session
        self.first_ts = float("nan")
        self.last_ts = float("nan")
        self.metrics: dict[str, MetricColumn] = {}
        self._step = Buffer(np.int64)
        self._ts = Buffer(np.float64)
        self._optional: dict[str, Buffer[np.float64]] = {}

    def __len__(self) -> int:
        return len(self._step)

    @property
    def step(self) -> Ints:
        return self._step.array

    @property
    def ts(self) -> Floats:
        return self._ts.array

    def optional(self, name: str) -> Floats | None:
        """`duration_s`, `tokens` or `samples`, NaN where a line had none; None when no line had any."""
        buffer = self._optional.get(name)
        return buffer.array if buffer is not None else None

    @property
    def duration_s(self) -> Floats | None:
        return self.optional("duration_s")

    def saw(self, ts: float) -> None:
        if not self.first_ts <= ts:
            self.first_ts = ts
        if not self.last_ts >= ts:
            self.last_ts = ts

    def append(self, parts: Sequence[Steps]) -> None:
        """Add the rows of all parts, in order of the lines they came from."""
        if len(parts) == 1:
            part = parts[0]
            metrics = {name: (values, part.metric_rows.get(name)) for name, values in part.metrics.items()}
            self._extend(part.step, part.ts, _optional_of(part), metrics)
            return
        order: Ints = np.argsort(np.concatenate([part.rows for part in parts]), kind="stable")
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        ranks = np.split(rank, np.cumsum([len(part.rows) for part in parts])[:-1])
        optional = {
            name: np.concatenate([_or_nan(_optional_of(part).get(name), len(part.rows)) for part in parts])[order]
            for name in _OPTIONAL
            if any(name in _optional_of(part) for part in parts)
        }
        pieces: dict[str, list[tuple[Floats, Ints]]] = {}
        for part, places in zip(parts, ranks, strict=True):
            for name, values in part.metrics.items():
                rows = part.metric_rows.get(name)
                pieces.setdefault(name, []).append((values, places if rows is None else places[rows]))
        metrics = {}
        in_all = {name for name in parts[0].metrics if all(_in_every_row(name, part) for part in parts)}
        for name, found in pieces.items():
            if name in in_all:
                metrics[name] = (np.concatenate([values for values, _ in found])[order], None)
                continue
            rows = np.concatenate([rows for _, rows in found])
            by_row = np.argsort(rows)
            values = np.concatenate([values for values, _ in found])[by_row]
            metrics[name] = (values, rows[by_row] if len(rows) < len(order) else None)
        step = np.concatenate([part.step for part in parts])[order]
        self._extend(step, np.concatenate([part.ts for part in parts])[order], optional, metrics)

    def extend(self, after: SessionColumns) -> None:
        """Add the rows of the same session that come after these."""
        if len(after):
            optional = {name: buffer.array for name, buffer in after._optional.items()}
            metrics = {name: (column.values, column.rows) for name, column in after.metrics.items()}
            self._extend(after.step, after.ts, optional, metrics)
        self.saw(after.first_ts)
        self.saw(after.last_ts)

    def _extend(
        self, step: Ints, ts: Floats, optional: dict[str, Floats], metrics: dict[str, tuple[Floats, Ints | None]]
    ) -> None:
        before, added = len(self._step), len(step)
        for name, (values, rows) in metrics.items():
            column = self.metrics.get(name)
            if column is None:
                column = self.metrics[name] = MetricColumn()
            column.append(values, rows, before, added)
        for name, column in self.metrics.items():
            if name not in metrics:
                column.sparsify(before)
        for name, filled in optional.items():
            if name not in self._optional:
                self._optional[name] = Buffer(np.float64, np.full(before, np.nan))
            self._optional[name].append(filled)
        for name, buffer in self._optional.items():
            if name not in optional:
                buffer.append(np.full(added, np.nan))
        self._ts.append(ts)
        self._step.append(step)
        self.saw(float(ts.min()))
        self.saw(float(ts.max()))

    def dump(self, keep: Callable[[memoryview], list[int]]) -> dict[str, object]:
        """JSON-ready description; `keep` stores the bytes of an array and says where."""
        return {
            "session": self.session,
            "first_ts": self.first_ts,
            "last_ts": self.last_ts,
            "step": keep(self.step.data),
            "ts": keep(self.ts.data),
            "optional": {name: keep(buffer.array.data) for name, buffer in self._optional.items()},
            "metrics": [
                [name, keep(column.values.data), None if column.rows is None else keep(column.rows.data)]
                for name, column in self.metrics.items()
            ],
        }

    @classmethod
    def restore(cls, dumped: Mapping[str, Any], part: Callable[[list[int]], memoryview]) -> SessionColumns:
        """The inverse of `dump`, on the stored bytes themselves; they are copied only when rows are added."""
        found = cls(SessionId(dumped["session"]))
        found.first_ts, found.last_ts = float(dumped["first_ts"]), float(dumped["last_ts"])
        found._step = Buffer(np.int64, np.frombuffer(part(dumped["step"]), np.int64))
        found._ts = Buffer(np.float64, np.frombuffer(part(dumped["ts"]), np.float64))
        for name, place in dumped["optional"].items():
            found._optional[name] = Buffer(np.float64, np.frombuffer(part(place), np.float64))
        for name, place, rows in dumped["metrics"]:
            numbers = None if rows is None else np.frombuffer(part(rows), np.int64)
            found.metrics[name] = MetricColumn(np.frombuffer(part(place), np.float64), numbers)
        return found


_OPTIONAL: Final = ("duration_s", "tokens", "samples")


def _optional_of(part: Steps) -> dict[str, Floats]:
    found = {"duration_s": part.duration_s, "tokens": part.tokens, "samples": part.samples}
    return {name: values for name, values in found.items() if values is not None}


def _in_every_row(name: str, part: Steps) -> bool:
    return name in part.metrics and name not in part.metric_rows


def _or_nan(values: Floats | None, count: int) -> Floats:
    return np.full(count, np.nan) if values is None else values
