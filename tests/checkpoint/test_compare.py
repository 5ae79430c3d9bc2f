"""The table of rules: what continues an experiment, what is noted, what is another one."""

from __future__ import annotations

import math
from typing import Any

import pytest

from lineage.checkpoint import compare
from lineage.checkpoint.compare import RULES, Rule, Side, flatten
from lineage_schemas.checkpoint import Finding


def one(path: str, saved: Any, live: Any, **more: Any) -> Finding | None:
    found = compare.compare(Side({path: saved}), Side({path: live}), **more)
    assert len(found) <= 1
    return found[0] if found else None


VERDICTS: list[tuple[str, Any, Any, str]] = [
    ("recipe.max_steps", 100, 200, "allowed"),
    ("recipe.max_steps", 200, 100, "refuse"),
    ("recipe.max_steps", 100, None, "refuse"),
    ("recipe.train.total_steps", 1, 2, "allowed"),
    ("recipe.num_epochs", 3, 4, "allowed"),
    ("recipe.warmup_steps", 10, 20, "refuse"),
    ("recipe.lr_decay_iters", 10, 20, "refuse"),
    ("recipe.log_every", 1, 2, "noted"),
    ("recipe.eval_interval", 1, 2, "noted"),
    ("recipe.trainer.save_steps", 1, 2, "noted"),
    ("recipe.logging.log_interval", 1, None, "noted"),
    ("recipe.out_dir", "a", "b", "noted"),
    ("recipe.lr", 0.1, 0.2, "refuse"),
    ("recipe.lr", 1, 1.0, "refuse"),
    ("recipe.model.width", 128, 256, "refuse"),
    ("recipe.seed", 1, 2, "refuse"),
    ("recipe.clip.max_norm", 1.0, None, "refuse"),
    ("recipe.brand_new", None, 1, "refuse"),
    ("model.tensors.model.head.weight", "F32[2,3]", "F32[3,3]", "refuse"),
    ("model.tensors.model.head.weight", "F32[2,3]", "BF16[2,3]", "refuse"),
    ("model.tokenizer", "a", "b", "refuse"),
    ("optimizer.adamw.type", "AdamW", "SGD", "refuse"),
    ("optimizer.adamw.groups[0].params", ["a", "b"], ["b", "a"], "refuse"),
    ("optimizer.adamw.groups[1].hyper.weight_decay", 0.1, 0.0, "refuse"),
    ("component.scaler.constants.growth_interval", 2000, 1000, "refuse"),
    ("component.schedulers.0.constants.T_max", 10, 20, "refuse"),
    ("component.s.constants.functions.lr_lambdas[0].code", "3.11:aa", "3.11:bb", "refuse"),
    ("component.s.constants.functions.lr_lambdas[0].code", "3.11:aa", "3.12:bb", "noted"),
    ("component.model.cache.declared", None, "a constant", "noted"),
    ("component.scheduler.state", "present", "absent", "refuse"),
    ("loader.train.batch_size", 8, 16, "refuse"),
    ("loader.train.num_workers", 0, 2, "refuse"),
    ("data.train.fingerprint", "a", "b", "refuse"),
    ("data.val.fingerprint", "a", None, "refuse"),
    ("runtime.torch", "2.13.0+cpu", "2.13.1", "noted"),
    ("runtime.torch", "2.12.0", "2.13.0", "refuse"),
    ("runtime.threads", 2, 4, "refuse"),
    ("runtime.device", "cuda", "cpu", "refuse"),
    ("runtime.precision", "float16", "bfloat16", "refuse"),
    ("runtime.accumulation", 2, 4, "refuse"),
    ("runtime.deterministic_algorithms", True, False, "refuse"),
    ("runtime.driver", "550", "560", "noted"),
    ("runtime.host", "a", "b", "noted"),
    ("runtime.world", 1, 2, "refuse"),
    ("code.commit", "a", "b", "noted"),
    ("run", "a", "b", "fork"),
    ("something.else", 1, 2, "refuse"),
]


@pytest.mark.parametrize(("path", "saved", "live", "verdict"), VERDICTS)
def test_a_difference_gets_its_verdict(path: str, saved: Any, live: Any, verdict: str) -> None:
    found = one(path, saved, live)
    assert found is not None
    assert (found.verdict, found.path, found.saved, found.live) == (verdict, path, saved, live)
    assert found.rule


@pytest.mark.parametrize("value", [None, True, 1, 0.1, math.nan, math.inf, "x", [1, [2.0]], {"a": [1]}, -0.0], ids=repr)
def test_what_is_equal_is_no_finding(value: Any) -> None:
    assert one("recipe.anything", value, value) is None


@pytest.mark.parametrize(("a", "b"), [(1, True), (1, 1.0), (0, False), ("1", 1), ([1], [1.0]), ({"a": 1}, {"a": 1.0})])
def test_equal_values_of_other_types_are_a_difference(a: Any, b: Any) -> None:
    assert one("recipe.x", a, b) is not None


def test_an_unknown_path_refuses() -> None:
    found = one("telescope.angle", 1, 2)
    assert found is not None
    assert (found.verdict, found.rule) == ("refuse", compare.UNKNOWN.why)


def test_a_fork_may_change_the_recipe_and_not_the_shape_of_the_state() -> None:
    recipe = one("recipe.lr", 0.1, 0.2, mode="fork")
    shapes = one("model.tensors.model.w", "F32[1]", "F32[2]", mode="fork")
    assert recipe is not None
    assert shapes is not None
    assert (recipe.verdict, shapes.verdict) == ("fork", "refuse")
    assert compare.refusing([recipe], "fork") == []
    assert compare.refusing([recipe, shapes], "fork") == [shapes]


def test_a_person_may_take_responsibility_by_path_or_pattern_and_not_for_shapes() -> None:
    for allow in (["recipe.lr"], ["recipe.*"], ["*"]):
        found = one("recipe.lr", 1, 2, allow=allow)
        assert found is not None
        assert found.verdict == "allowed"
        assert "on purpose" in found.rule
    group = one("optimizer.a.groups[0].hyper.lr", 1, 2, allow=["optimizer.a.groups[0].hyper.*"])
    assert group is not None
    assert group.verdict == "allowed"
    shapes = one("model.tensors.model.w", "F32[1]", "F32[2]", allow=["*"])
    assert shapes is not None
    assert shapes.verdict == "refuse"


def test_the_callers_own_rules_come_first() -> None:
    mine = Rule(r"recipe\.dropout", "noted", "we know")
    found = one("recipe.dropout", 0.1, 0.2, rules=[mine])
    assert found is not None
    assert (found.verdict, found.rule) == ("noted", "we know")


def test_findings_are_ordered_and_all_there() -> None:
    saved = Side({"code.commit": "a", "recipe.max_steps": 1, "recipe.lr": 1, "run": "a", "recipe.gone": 1})
    live = Side({"code.commit": "b", "recipe.max_steps": 2, "recipe.lr": 2, "run": "b", "recipe.new": 1})
    found = compare.compare(saved, live)
    assert [f.verdict for f in found] == ["refuse", "refuse", "refuse", "fork", "allowed", "noted"]
    text = compare.table(found)
    for finding in found:
        assert finding.path in text
    assert len({line.index("recipe") for line in text.splitlines() if " recipe." in line}) == 1, "columns are aligned"


@pytest.mark.parametrize(
    ("paths", "part"),
    [
        (["run"], "fork=True"),
        (["recipe.lr"], "allow=['recipe.lr']"),
        (["recipe.lr", "model.tensors.model.w"], "cannot be loaded here (model.tensors.model.w first)"),
    ],
)
def test_the_way_on_is_exact(paths: list[str], part: str) -> None:
    found = compare.compare(Side(dict.fromkeys(paths, 1)), Side(dict.fromkeys(paths, 2)))
    assert part in compare.way_on(found)


def test_hostile_values_stay_on_their_line() -> None:
    found = one("recipe.name", "a\x1b[31m\nb", "x" * 500)
    assert found is not None
    text = compare.table([found])
    assert len(text.splitlines()) == 2
    assert "\x1b" not in text


def test_flattening_keeps_lists_of_plain_values_whole() -> None:
    value = {"a": {"b": 1, "c": [1, 2]}, "d": [{"e": 1}, {"e": 2}], "f": {}}
    assert flatten(value, "recipe") == {"recipe.a.b": 1, "recipe.a.c": [1, 2], "recipe.d[0].e": 1, "recipe.d[1].e": 2}


def test_every_rule_says_why() -> None:
    assert all(rule.why and rule.path for rule in RULES)
