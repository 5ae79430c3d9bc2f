"""What differs between two sessions: by path, with types, graded."""

from __future__ import annotations

from typing import Any

import pytest
from history_records import run_of, session, sid
from hypothesis import given
from hypothesis import strategies as st

from lineage.history.diff import (
    GRADES,
    RULES,
    SECTIONS,
    Difference,
    SessionSide,
    count_by_grade,
    describe,
    diff_sessions,
    flatten,
    grade_of,
    same_paths,
)
from lineage_schemas.run import DataIdentity, Environment, Gpu, Recipe, Source
from lineage_schemas.tagged import encode

RECIPE: dict[str, Any] = {
    "name": "tiny",
    "seed": 1,
    "model": {"layers": 4, "width": 256, "dropout": 0.1},
    "optimizer": {"name": "adamw", "lr": 0.001, "betas": (0.9, 0.95), "warmup": 100},
    "log_every": 10,
    "stages": [{"steps": 100}, {"steps": 200}],
}


def env(**changes: Any) -> Environment:
    fields: dict[str, Any] = {
        "python": "3.11.9",
        "implementation": "CPython",
        "platform": "Linux-6.1",
        "machine": "x86_64",
        "torch": "2.13.0",
        "cuda": "12.8",
        "driver": "570.1",
        "gpus": [Gpu(name="H200", memory_bytes=141)],
        "packages": {"numpy": "2.1.0", "ruamel.yaml": "0.18", "pytest": "9.0", "torch": "2.13.0"},
        "threads": {"intra_op": 2},
        "determinism": {"deterministic_algorithms": True},
        "variables": {"OMP_NUM_THREADS": "2"},
    }
    return Environment(**(fields | changes))


def side(recipe: Any = None, **changes: Any) -> SessionSide:
    fields: dict[str, Any] = {
        "label": "x",
        "recipe": encode(RECIPE if recipe is None else recipe),
        "environment": env(),
        "source": Source(commit="a" * 40, branch="main", dirty=False, remote="https://host/x.git", root="x"),
        "data": {"train": DataIdentity(fingerprint="abc", num_files=3)},
        "argv": ["train.py", "--lr", "1e-3", "--resume"],
        "host": "node-1",
        "runtime": {"device": "cpu", "precision": "fp16", "accumulation": 2},
    }
    return SessionSide(**(fields | changes))


def told(found: list[Difference]) -> list[tuple[str, str, object, object, str]]:
    return [(d.section, d.path, d.before, d.after, d.grade) for d in found]


def changed(**changes: Any) -> dict[str, Any]:
    return RECIPE | changes


def test_two_equal_sessions_have_no_difference() -> None:
    assert diff_sessions(side(), side()) == []


def test_an_upgrade_a_changed_rate_and_an_int_that_became_a_float_are_exactly_these_graded() -> None:
    packages = env().packages | {"numpy": "2.2.0"}
    optimizer = RECIPE["optimizer"] | {"lr": 0.0003, "warmup": 100.0}
    found = diff_sessions(side(), side(changed(optimizer=optimizer), environment=env(packages=packages)))
    assert told(found) == [
        ("recipe", "optimizer.lr", 0.001, 0.0003, "experiment"),
        ("recipe", "optimizer.warmup", 100, 100.0, "numerics"),
        ("environment", "packages.numpy", "2.1.0", "2.2.0", "numerics"),
    ]
    assert [d.change for d in found] == ["changed", "retyped", "changed"]
    assert (found[1].before_type, found[1].after_type) == ("int", "float")
    assert set(found[0].to_wire()) >= {"section", "path", "before", "after", "grade"}


@pytest.mark.parametrize(
    ("before", "after", "types"),
    [
        (1, 1.0, ("int", "float")),
        (1, True, ("int", "bool")),
        (1, "1", ("int", "str")),
        (0, None, ("int", "null")),
        (0.0, False, ("float", "bool")),
    ],
)
def test_types_are_part_of_a_value(before: object, after: object, types: tuple[str, str]) -> None:
    (found,) = diff_sessions(side(changed(x=before)), side(changed(x=after)))
    assert (found.path, found.before_type, found.after_type) == ("x", *types)


def test_lists_are_compared_by_element_and_paths_sort_as_people_count() -> None:
    long = [{"steps": i} for i in range(12)]
    other = [{"steps": i if i not in (2, 10) else 99} for i in range(12)]
    found = diff_sessions(side(changed(stages=long)), side(changed(stages=other)))
    assert told(found) == [
        ("recipe", "stages[2].steps", 2, 99, "experiment"),
        ("recipe", "stages[10].steps", 10, 99, "experiment"),
    ]


def test_added_and_removed_are_told_from_a_null() -> None:
    gone = {key: value for key, value in RECIPE.items() if key != "seed"}
    (removed,) = diff_sessions(side(), side(gone))
    (added,) = diff_sessions(side(gone), side(changed(seed=None)))
    assert (removed.change, removed.before, removed.after, removed.after_type) == ("removed", 1, None, "")
    assert (added.change, added.after, added.after_type) == ("added", None, "null")


def test_a_tuple_that_came_back_as_a_list_is_harmless() -> None:
    optimizer = RECIPE["optimizer"] | {"betas": [0.9, 0.95]}
    (found,) = diff_sessions(side(), side(changed(optimizer=optimizer)))
    assert (found.path, found.before, found.after, found.grade, found.change) == (
        "optimizer.betas",
        "tuple",
        "list",
        "harmless",
        "retyped",
    )


def test_a_tree_in_place_of_a_value_is_told_by_what_is_in_it() -> None:
    found = diff_sessions(side(changed(x=3)), side(changed(x={"y": 3})))
    assert [(d.path, d.change) for d in found] == [("x", "removed"), ("x.y", "added")]


def test_nonfinite_and_large_numbers_are_numbers() -> None:
    assert diff_sessions(side(changed(x=float("nan"))), side(changed(x=float("nan")))) == []
    (found,) = diff_sessions(side(changed(x=2**70)), side(changed(x=2**70 + 1)))
    assert (found.before, found.before_type) == (str(2**70), "int")
    (found,) = diff_sessions(side(changed(x=float("inf"))), side(changed(x=1.0)))
    assert (found.before, found.before_type) == ("inf", "float")


def test_keys_of_any_kind_make_paths_that_stay_apart() -> None:
    tricky = {"a.b": 1, "a": {"b": 2}, "c[0]": 3, "": 4}
    assert {path: leaf.value for path, leaf in flatten(tricky).items() if leaf.type == "int"} == {
        '["a.b"]': 1,
        "a.b": 2,
        '["c[0]"]': 3,
        '[""]': 4,
    }
    assert len(flatten(encode({1: "a", "1": "b", (1, 2): "c"}))) == 1 + 3


def test_a_recipe_a_thousand_levels_deep_is_no_crash() -> None:
    deep: Any = 1
    for _ in range(2_000):
        deep = [deep]
    assert len(flatten(deep)) == 2_001


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"python": "3.12.0"}, ("python", "numerics")),
        ({"torch": "2.14.0"}, ("torch", "numerics")),
        ({"cuda": None}, ("cuda", "numerics")),
        ({"driver": "580"}, ("driver", "numerics")),
        ({"gpus": [Gpu(name="A100", memory_bytes=141)]}, ("gpus[0].name", "numerics")),
        ({"gpus": [Gpu(name="H200", memory_bytes=140)]}, ("gpus[0].memory_bytes", "harmless")),
        ({"threads": {"intra_op": 4}}, ("threads.intra_op", "numerics")),
        ({"determinism": {"deterministic_algorithms": False}}, ("determinism.deterministic_algorithms", "numerics")),
        ({"variables": {"OMP_NUM_THREADS": "4"}}, ("variables.OMP_NUM_THREADS", "numerics")),
        ({"packages": env().packages | {"ruamel.yaml": "0.19"}}, ("packages.ruamel.yaml", "numerics")),
        ({"packages": env().packages | {"pytest": "9.1"}}, ("packages.pytest", "harmless")),
        ({"packages": env().packages | {"einops": "1"}}, ("packages.einops", "numerics")),
        ({"platform": "Linux-6.2"}, ("platform", "harmless")),
    ],
)
def test_the_environment_is_compared_piece_by_piece(changes: dict[str, Any], expected: tuple[str, str]) -> None:
    (found,) = diff_sessions(side(), side(environment=env(**changes)))
    assert (found.section, found.path, found.grade) == ("environment", *expected)


def test_source_says_commit_and_patch_but_not_where_the_patch_lies() -> None:
    dirty = Source(
        commit="b" * 40,
        branch="main",
        dirty=True,
        patch="source/s02.patch",
        patch_sha256="c" * 64,
        patch_bytes=9,
        remote="https://host/x.git",
        root="x",
    )
    found = diff_sessions(side(), side(source=dirty))
    assert [(d.path, d.grade) for d in found] == [
        ("commit", "experiment"),
        ("dirty", "experiment"),
        ("patch", "experiment"),
    ]
    moved = dirty.model_copy(update={"patch": "source/s03.patch", "branch": "topic"})
    assert [(d.path, d.grade) for d in diff_sessions(side(source=dirty), side(source=moved))] == [
        ("branch", "harmless")
    ]


def test_other_data_are_another_experiment_but_another_method_says_nothing() -> None:
    (found,) = diff_sessions(side(), side(data={"train": DataIdentity(fingerprint="xyz", num_files=3)}))
    assert (found.path, found.grade) == ("train.fingerprint", "experiment")
    found_all = diff_sessions(
        side(), side(data={"train": DataIdentity(fingerprint="xyz", num_files=3, method="content")})
    )
    assert {d.grade for d in found_all} == {"numerics"}


def test_one_more_option_shifts_nothing() -> None:
    (found,) = diff_sessions(side(), side(argv=["train.py", "--seed=3", "--lr", "1e-3", "--resume"]))
    assert (found.section, found.path, found.after, found.grade) == ("argv", "--seed", "3", "harmless")
    (found,) = diff_sessions(side(), side(argv=["train.py", "--lr=3e-4", "--resume"]))
    assert (found.path, found.before, found.after) == ("--lr", "1e-3", "3e-4")


def test_without_a_recipe_the_command_line_is_the_experiment() -> None:
    (found,) = diff_sessions(side({}), side({}, argv=["train.py", "--lr=3e-4", "--resume"]))
    assert found.grade == "experiment"


def test_world_and_runtime_are_graded_by_what_they_change() -> None:
    after = side(world=2, host="node-2", runtime={"device": "cuda", "precision": "bf16", "accumulation": 2})
    assert {d.path: d.grade for d in diff_sessions(side(), after)} == {
        "world": "experiment",
        "host": "harmless",
        "runtime.device": "numerics",
        "runtime.precision": "experiment",
    }


@pytest.mark.parametrize(
    ("path", "grade"),
    [
        ("name", "harmless"),
        ("optimizer.name", "experiment"),
        ("log_every", "harmless"),
        ("trainer.output_dir", "harmless"),
        ("data_dir", "experiment"),
        ("data.num_workers", "numerics"),
        ("seed", "experiment"),
        ("model.dropout", "experiment"),
        ("progressive_resizing", "experiment"),
        ("compile", "numerics"),
        ("tags[0]", "harmless"),
    ],
)
def test_recipe_grades(path: str, grade: str) -> None:
    assert grade_of("recipe", path)[0] == grade


def test_every_rule_can_fire_and_every_section_has_a_last_word() -> None:
    assert {rule.section for rule in RULES if rule.pattern == "*"} == set(SECTIONS)
    for index, rule in enumerate(RULES):
        earlier = [r for r in RULES[:index] if r.section == rule.section]
        assert not any(r.pattern == "*" for r in earlier), rule
        assert rule.grade in GRADES


def test_a_side_that_cannot_know_a_section_is_not_compared_there() -> None:
    live = side({}, unknown=frozenset({"recipe", "data", "world"}), environment=env(python="3.12.0"))
    assert [d.path for d in diff_sessions(side(), live)] == ["python"]


def test_sections_come_in_order_and_are_counted_by_grade() -> None:
    after = side(changed(seed=2, log_every=5), environment=env(torch="2.14"), argv=["other.py"], host="b", data={})
    found = diff_sessions(side(), after)
    assert [d.section for d in found] == sorted((d.section for d in found), key=SECTIONS.index)
    assert sum(count_by_grade(found).values()) == len(found)
    assert list(count_by_grade(found)) == ["experiment", "numerics", "harmless"]


def test_a_recorded_session_is_a_side() -> None:
    one = session(1, recipe=Recipe(value={"lr": 1}, fingerprint="0" * 64))
    two = session(2, recipe=Recipe(value={"lr": 2}, fingerprint="1" * 64), environment="f" * 16)
    run = run_of(one, two)
    first, second = (SessionSide.of(run, s) for s in run.sessions)
    assert first.label.endswith("@1")
    assert [d.path for d in diff_sessions(first, second)] == ["lr"]  # an environment that is not stored is not known
    assert sid(1) != sid(2)


def test_what_is_the_same_can_be_listed_too() -> None:
    listed = {(section, path) for section, path, _ in same_paths(side(), side(changed(seed=2)))}
    assert ("recipe", "model.layers") in listed
    assert ("recipe", "seed") not in listed
    assert ("environment", "packages.numpy") in listed


def test_lines_for_people_show_types_only_where_they_matter() -> None:
    found = diff_sessions(side(changed(a=1, b=2, d=1)), side(changed(a=1.0, b=3, c="x")))
    assert [describe(d) for d in found] == ["a 1 (int) -> 1.0 (float)", "b 2 -> 3", "c added: 'x'", "d removed: 1"]


TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(TREES, TREES)
def test_a_diff_is_empty_for_equal_recipes_and_the_same_backwards(a: Any, b: Any) -> None:
    assert diff_sessions(side({"x": a}), side({"x": a})) == []
    there, back = diff_sessions(side({"x": a}), side({"x": b})), diff_sessions(side({"x": b}), side({"x": a}))
    assert [(d.path, repr(d.before), repr(d.after)) for d in there] == [
        (d.path, repr(d.after), repr(d.before)) for d in back
    ]
    if not there:
        assert flatten(encode(a)) == flatten(encode(b)) or "nan" in repr(a)
