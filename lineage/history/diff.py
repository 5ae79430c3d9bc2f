"""What differs between two sessions, and how much it matters.

Every difference has a section, a path, both values with their types, and a grade:

    experiment   it is another experiment
    numerics     the same experiment, whose numbers may come out otherwise
    harmless     it changes what is written where, or nothing

Grades come from one table, `RULES`: the first rule whose section and pattern fit decides (docs/decisions/042).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from lineage_schemas.run import DataIdentity, Environment, Run, Session, Source

Section = Literal["recipe", "environment", "source", "data", "argv", "world"]
Grade = Literal["experiment", "numerics", "harmless"]
Change = Literal["added", "removed", "changed", "retyped"]

SECTIONS: Final[tuple[Section, ...]] = ("recipe", "environment", "source", "data", "argv", "world")
GRADES: Final[tuple[Grade, ...]] = ("experiment", "numerics", "harmless")


class Rule(NamedTuple):
    """One line of the table; `pattern` is a shell pattern over the dotted path, `|` between alternatives."""

    section: Section
    pattern: str
    grade: Grade
    why: str


RULES: Final[tuple[Rule, ...]] = (
    # -- recipe: what a person configures
    Rule("recipe", "name|notes|tags|tags[[]*|description|project|group|entity", "harmless", "a label"),
    Rule("recipe", "*run_name|*experiment_name|wandb|wandb.*|*verbose|*progress_bar|*tqdm", "harmless", "for display"),
    Rule(
        "recipe",
        "*output_dir|*out_dir|*save_dir|*log_dir|*logs_dir|*runs_dir|*checkpoint_dir|*ckpt_dir|*cache_dir|*work_dir"
        "|*output_path|*log_path|*save_path",
        "harmless",
        "where things are written",
    ),
    Rule("recipe", "*log_every*|*log_interval|*logging_steps|*print_every*", "harmless", "how often it is logged"),
    Rule(
        "recipe",
        "*save_every*|*save_interval|*save_steps|*checkpoint_every*|*checkpoint_interval|*keep_last*|*save_total_limit",
        "harmless",
        "when it is saved",
    ),
    Rule(
        "recipe",
        "*eval_every*|*eval_interval|*eval_steps|*eval_iters",
        "numerics",
        "evaluation may draw random numbers",
    ),
    Rule("recipe", "*num_workers|*prefetch*|*pin_memory|*persistent_workers", "numerics", "how batches are loaded"),
    Rule(
        "recipe",
        "*compile|*compile.*|*torch_compile*|*allow_tf32|*tf32|*matmul_precision|*determinis*|*cudnn*",
        "numerics",
        "other kernels",
    ),
    Rule("recipe", "*device|*backend|*attn_implementation|*num_threads", "numerics", "other kernels"),
    # -- environment: the machine and what is installed
    Rule(
        "environment",
        "packages.pytest*|packages.ruff|packages.mypy*|packages.black|packages.isort|packages.pre-commit|packages.pip"
        "|packages.setuptools|packages.wheel|packages.uv|packages.hatch*|packages.ipython|packages.jupyter*"
        "|packages.notebook|packages.matplotlib*|packages.seaborn|packages.plotly|packages.tensorboard*|packages.wandb"
        "|packages.mlflow*|packages.textual*|packages.rich|packages.tqdm|packages.types-*|packages.coverage|packages.tox"
        "|packages.debugpy|packages.hypothesis|packages.lineage-tracker",
        "harmless",
        "a tool beside the training",
    ),
    Rule("environment", "packages.*", "numerics", "installed code"),
    Rule("environment", "num_cpus|memory_bytes|gpus[[]*].memory_bytes|platform", "harmless", "size of the machine"),
    Rule(
        "environment",
        "variables.CUDA_VISIBLE_DEVICES|variables.SLURM_*|variables.HOSTNAME",
        "harmless",
        "the placement",
    ),
    Rule("environment", "*", "numerics", "what computes"),
    # -- source
    Rule("source", "commit|patch|dirty", "experiment", "the code that trains"),
    Rule("source", "num_untracked", "numerics", "code that git does not know may be among them"),
    Rule("source", "*", "harmless", "where the code came from"),
    # -- data
    Rule("data", "*.method", "numerics", "fingerprints of two methods say nothing about each other"),
    Rule("data", "*", "experiment", "what is trained on"),
    # -- argv
    Rule("argv", "*", "harmless", "what it sets stands in the recipe"),
    # -- world: processes and flags of execution
    Rule("world", "host|rank", "harmless", "the placement"),
    Rule("world", "runtime.*threads*|runtime.device*|runtime.*determinis*|runtime.*tf32*", "numerics", "other kernels"),
    Rule("world", "runtime.*benchmark*|runtime.*matmul_precision*|runtime.torch*", "numerics", "other kernels"),
    Rule("world", "*", "experiment", "how a step is computed"),
    Rule("recipe", "*", "experiment", "what determines training"),
)
"""First fit decides. Paths end where the value differs; lists count as `[0]`."""


@dataclass(frozen=True)
class Difference:
    """One thing that is not the same.

    Attributes:
        before, after: JSON values; None where that side has nothing (see `change`).
        change: `retyped` is a number or container of equal value and another type.
        why: what the grade says, in a few words.
        before_type, after_type: `int`, `float`, `str`, `bool`, `null`, `list`, `tuple`, `dict`, `bytes`; empty when
            absent.
    """

    section: Section
    path: str
    before: object
    after: object
    grade: Grade
    change: Change = "changed"
    why: str = ""
    before_type: str = ""
    after_type: str = ""

    def to_wire(self) -> dict[str, object]:
        """One entry of `lineage diff --json`."""
        return {
            "section": self.section,
            "path": self.path,
            "before": self.before,
            "after": self.after,
            "grade": self.grade,
            "change": self.change,
            "before_type": self.before_type or None,
            "after_type": self.after_type or None,
            "why": self.why,
        }


@dataclass(frozen=True)
class SessionSide:
    """All of a session that is compared; one side of a diff may be this machine, now.

    Attributes:
        label: what to call it (`<run>@2`, `live`).
        recipe: tagged JSON (`lineage_schemas.tagged`).
        unknown: sections this side cannot know (`live` has no recipe); they are not compared.
        unknown_paths: shell patterns of paths it cannot know within the others.
    """

    label: str
    recipe: object = None
    environment: Environment | None = None
    source: Source | None = None
    data: Mapping[str, DataIdentity] = field(default_factory=dict)
    argv: Sequence[str] = ()
    world: int = 1
    rank: int = 0
    host: str | None = None
    runtime: Mapping[str, object] = field(default_factory=dict)
    unknown: frozenset[Section] = frozenset()
    unknown_paths: tuple[str, ...] = ()

    @classmethod
    def of(cls, run: Run, session: Session) -> SessionSide:
        """A recorded session."""
        return cls(
            label=f"{run.id}@{session.ordinal}",
            recipe=session.recipe.value,
            environment=run.environments.get(session.environment),
            source=session.source,
            data=session.data,
            argv=session.argv,
            world=session.world,
            rank=session.rank,
            host=session.host,
            runtime=session.runtime,
            unknown=frozenset() if session.environment in run.environments else frozenset({"environment"}),
        )


class Leaf(NamedTuple):
    """A value at the end of a path: its type and its JSON form."""

    type: str
    value: object


def diff_sessions(before: SessionSide, after: SessionSide) -> list[Difference]:
    """Every difference, by section and path; values that are equal in value and type are none.

    A section that one side cannot know is left out.
    """
    unknown = before.unknown | after.unknown
    both = (before, after)
    found: list[Difference] = []
    for section in SECTIONS:
        if section in unknown:
            continue
        old, new = ({p: leaf for p, leaf in leaves_of(s, section).items() if not _hidden(p, both)} for s in both)
        grade = _argv_grade(before, after) if section == "argv" else None
        found += _compare(section, old, new, grade)
    return found


def _hidden(path: str, sides: Sequence[SessionSide]) -> bool:
    return any(fnmatchcase(path, pattern) for side in sides for pattern in side.unknown_paths)


def same_paths(before: SessionSide, after: SessionSide) -> list[tuple[Section, str, object]]:
    """What both sides have and agree on, for `--all`."""
    unknown = before.unknown | after.unknown
    return [
        (section, path, leaf.value)
        for section in SECTIONS
        if section not in unknown
        for old, new in ((leaves_of(before, section), leaves_of(after, section)),)
        for path, leaf in sorted(old.items(), key=_by_path)
        if path in new and leaf.type != _CONTAINER and _equal(leaf, new[path])
    ]


def grade_of(section: Section, path: str) -> tuple[Grade, str]:
    """Grade and reason of a difference at a path, from `RULES`."""
    for rule in RULES:
        if rule.section == section and any(fnmatchcase(path, pattern) for pattern in rule.pattern.split("|")):
            return rule.grade, rule.why
    return "experiment", ""


def leaves_of(side: SessionSide, section: Section) -> dict[str, Leaf]:
    """The section as dotted path to value."""
    return _READERS[section](side)


def _compare(
    section: Section, old: Mapping[str, Leaf], new: Mapping[str, Leaf], fixed: tuple[Grade, str] | None
) -> Iterator[Difference]:
    for path, _ in sorted({**old, **new}.items(), key=_by_path):
        x, y = old.get(path), new.get(path)
        if x is not None and y is not None:
            if _equal(x, y):
                continue
            if x.type == y.type == _CONTAINER:
                kinds = (str(x.value), str(y.value))
                yield Difference(section, path, *kinds, "harmless", "retyped", "another container", *kinds)
                continue
        x, y = (None if leaf is not None and leaf.type == _CONTAINER else leaf for leaf in (x, y))
        if x is None and y is None:
            continue  # what is in the container tells
        grade, why = fixed or grade_of(section, path)
        change: Change = "changed"
        if x is None:
            change = "added"
        elif y is None:
            change = "removed"
        elif x.type != y.type and _equal_value(x, y):
            change = "retyped"
            if grade == "experiment":
                grade, why = "numerics", f"the same value, {x.type} before and {y.type} now"
        elif section == "data" and path.endswith(".fingerprint"):
            split = path[: -len("fingerprint")]
            if old.get(split + "method") != new.get(split + "method"):
                grade, why = "numerics", "fingerprints of two methods say nothing about each other"
        yield Difference(
            section=section,
            path=path,
            before=x.value if x else None,
            after=y.value if y else None,
            grade=grade,
            change=change,
            why=why,
            before_type=x.type if x else "",
            after_type=y.type if y else "",
        )


def _by_path(item: tuple[str, Leaf]) -> tuple[tuple[int, str], ...]:
    """Paths in the order of people: `a[2]` before `a[10]`."""
    parts: list[tuple[int, str]] = []
    for part in item[0].replace("[", ".[").split("."):
        number = part.strip("[]")
        parts.append((int(number), "") if part.startswith("[") and number.isdigit() else (-1, part))
    return tuple(parts)


def _equal(x: Leaf, y: Leaf) -> bool:
    return x.type == y.type and _equal_value(x, y)


def _equal_value(x: Leaf, y: Leaf) -> bool:
    if isinstance(x.value, bool) is not isinstance(y.value, bool):
        return False
    if isinstance(x.value, float) and isinstance(y.value, float) and math.isnan(x.value) and math.isnan(y.value):
        return True
    return x.value == y.value


# -- trees to paths --------------------------------------------------------------------------------------------------

_CONTAINER: Final = "container"
"""Type of the entry that stands for a container with something in it; its value is the kind."""

_NAMES: Final = {bool: "bool", int: "int", float: "float", str: "str", type(None): "null"}


def flatten(value: object, path: str = "") -> dict[str, Leaf]:
    """A tree in plain or tagged JSON as dotted path to leaf; an empty container is a leaf.

    A container with something in it has an entry of type `container`, so that a list and a tuple stay apart.
    Keys with a dot or a bracket in them are written as `["a.b"]`.
    """
    found: dict[str, Leaf] = {}
    _flatten(value, path, found)
    return found


def _flatten(value: object, path: str, found: dict[str, Leaf]) -> None:
    # A stack of our own: a recipe from elsewhere may be nested deeper than Python's.
    stack: list[tuple[object, str]] = [(value, path)]
    while stack:
        item, at = stack.pop()
        kind, children, leaf = _open(item)
        if children:
            for key, child in children:
                stack.append((child, _join(at, key, kind)))
            found[at] = Leaf(_CONTAINER, kind)
        else:
            found[at] = Leaf(kind, leaf)


def _open(item: object) -> tuple[str, list[tuple[str, object]], object]:
    """Type, children by key, and the value of one without children."""
    if isinstance(item, dict):
        if len(item) == 1:
            ((tag, body),) = item.items()
            match tag, body:
                case "$tuple", list():
                    return "tuple", [(str(i), child) for i, child in enumerate(body)], []
                case "$float", str():
                    return "float", [], body
                case "$int", str():
                    return "int", [], body
                case "$bytes", str():
                    return "bytes", [], body
                case "$dict", list() if all(isinstance(pair, list) and len(pair) == 2 for pair in body):
                    return "map", [(_key_text(key), child) for key, child in body], {}
                case _:
                    pass
        return "dict", [(str(key), child) for key, child in item.items()], {}
    if isinstance(item, list | tuple):
        kind = "tuple" if isinstance(item, tuple) else "list"
        return kind, [(str(i), child) for i, child in enumerate(item)], []
    return _NAMES.get(type(item), type(item).__name__), [], item


def _key_text(key: object) -> str:
    """A key that is no string: its type shows, so that 1 and "1" stay apart."""
    if isinstance(key, str):
        return key
    kind, children, leaf = _open(key)
    return f"<{kind} {[child for _, child in children] if children else leaf}>"


def _join(path: str, key: str, kind: str) -> str:
    if kind in ("list", "tuple"):
        return f"{path}[{key}]"
    if not key or any(mark in key for mark in '.[]"'):
        return f'{path}["{key}"]'
    return f"{path}.{key}" if path else key


# -- one reader for each section -------------------------------------------------------------------------------------


def _recipe(side: SessionSide) -> dict[str, Leaf]:
    return (
        {} if side.recipe in (None, {}, []) else {path or "recipe": leaf for path, leaf in flatten(side.recipe).items()}
    )


def _environment(side: SessionSide) -> dict[str, Leaf]:
    if side.environment is None:
        return {}
    found: dict[str, Leaf] = {}
    for name, value in side.environment.to_wire().items():
        if name in ("packages", "variables", "threads", "determinism") and isinstance(value, dict):
            # Names of packages have dots in them and are no trees.
            for key, item in value.items():
                if item is not None:
                    found[f"{name}.{key}"] = Leaf(*_leaf(item))
        elif value not in (None, [], {}):
            found.update(flatten(value, name))
    return found


def _leaf(item: object) -> tuple[str, object]:
    kind, _, value = _open(item)
    return kind, value


def _source(side: SessionSide) -> dict[str, Leaf]:
    if side.source is None:
        return {}
    wire = side.source.to_wire()
    for name in (
        "patch",
        "patch_bytes",
        "problem",
    ):  # the path has the session in its name; the digest says what is in it
        wire.pop(name, None)
    if "patch_sha256" in wire:
        wire["patch"] = wire.pop("patch_sha256")
    return flatten(wire) if wire else {}


def _data(side: SessionSide) -> dict[str, Leaf]:
    found: dict[str, Leaf] = {}
    for split, identity in side.data.items():
        found.update(flatten(identity.to_wire(), _join("", split, "dict")))
    return found


def _argv(side: SessionSide) -> dict[str, Leaf]:
    """Options by name, the rest by position: one more option shifts nothing."""
    found: dict[str, Leaf] = {}
    position = 0
    words = list(side.argv)
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        if not word.startswith("-") or word in ("-", "--") or _is_number(word):
            found[f"[{position}]"] = Leaf("str", word)
            position += 1
            continue
        name, equals, value = word.partition("=")
        if not equals and index < len(words) and (not words[index].startswith("-") or _is_number(words[index])):
            value, equals = words[index], "="
            index += 1
        path, count = name, 1
        while path in found:
            count += 1
            path = f"{name}[{count}]"
        found[path] = Leaf("str", value) if equals else Leaf("bool", value=True)
    return found


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _argv_grade(before: SessionSide, after: SessionSide) -> tuple[Grade, str] | None:
    """Without a recipe on either side the command line is all that is known of the experiment."""
    if before.recipe in (None, {}) and after.recipe in (None, {}):
        return "experiment", "no recipe was recorded, so this is all that is known of it"
    return None


def _world(side: SessionSide) -> dict[str, Leaf]:
    found = {"world": Leaf("int", side.world), "rank": Leaf("int", side.rank)}
    if side.host is not None:
        found["host"] = Leaf("str", side.host)
    if side.runtime:
        found.update(flatten(dict(side.runtime), "runtime"))
    return {path: leaf for path, leaf in found.items() if leaf.type != "null"}


_READERS: Final[Mapping[Section, Callable[[SessionSide], dict[str, Leaf]]]] = {
    "recipe": _recipe,
    "environment": _environment,
    "source": _source,
    "data": _data,
    "argv": _argv,
    "world": _world,
}


@dataclass(frozen=True)
class Compared:
    """What a comparison found.

    Attributes:
        equal: how many values of each section are the same on both sides; sections without any are left out.
        unknown: sections that one side has no record of, so that nothing in them was compared.
    """

    differences: tuple[Difference, ...]
    equal: Mapping[Section, int]
    unknown: tuple[Section, ...]

    @property
    def num_equal(self) -> int:
        return sum(self.equal.values())

    @classmethod
    def of(cls, before: SessionSide, after: SessionSide) -> Compared:
        """Compare two sides; a recipe can be large, so the reading thread of a screen does."""
        unknown = before.unknown | after.unknown
        return cls(
            tuple(diff_sessions(before, after)),
            Counter(section for section, _, _ in same_paths(before, after)),
            tuple(section for section in SECTIONS if section in unknown),
        )

    def told(self) -> str:
        """What was compared and is equal, section by section, and what nothing is known of."""
        unknown = f"not recorded of one session, so not compared: {', '.join(self.unknown)}" if self.unknown else ""
        return "; ".join(part for part in (self.told_equal(), unknown, self.told_absent()) if part)

    def told_equal(self) -> str:
        """What was compared and is equal, section by section; empty when nothing is."""
        counted = [f"{section} {num:,}" for section in SECTIONS if (num := self.equal.get(section, 0))]
        return f"values compared and equal: {', '.join(counted)}" if counted else ""

    def told_absent(self) -> str:
        """The sections that neither side has anything of; empty when there are none."""
        seen = {one.section for one in self.differences} | set(self.equal) | set(self.unknown)
        absent = [section for section in SECTIONS if section not in seen]
        return f"recorded of neither: {', '.join(absent)}" if absent else ""


def count_by_grade(differences: Sequence[Difference]) -> dict[Grade, int]:
    """How many of each grade, in the order of weight; grades without any are left out."""
    counts: dict[Grade, int] = {}
    for grade in GRADES:
        number = sum(difference.grade == grade for difference in differences)
        if number:
            counts[grade] = number
    return counts


def describe(difference: Difference) -> str:
    """One line for people: `optimizer.lr 0.001 -> 0.0003`."""

    def shown(value: Any, kind: str) -> str:
        if kind in ("float", "int") and isinstance(value, str):
            return value  # beyond JSON: nan, or an integer of more than 64 bits
        return repr(value) if kind != "str" else f"'{value}'"

    if difference.change == "added":
        return f"{difference.path} added: {shown(difference.after, difference.after_type)}"
    if difference.change == "removed":
        return f"{difference.path} removed: {shown(difference.before, difference.before_type)}"
    before, after = shown(difference.before, difference.before_type), shown(difference.after, difference.after_type)
    if difference.change == "retyped" and difference.before == difference.before_type:
        return f"{difference.path} was a {difference.before_type} and is a {difference.after_type}"
    if difference.change == "retyped":
        return f"{difference.path} {before} ({difference.before_type}) -> {after} ({difference.after_type})"
    return f"{difference.path} {before} -> {after}"
