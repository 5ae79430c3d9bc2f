"""Compare the experiment a checkpoint was made by with the one that wants to go on. Pure.

Both sides are flattened to dotted paths (`recipe.optimizer.lr`, `model.tensors.model.wte.weight`,
`optimizer.adamw.groups[0].params`, `loader.train.batch_size`, `runtime.torch`, ...). Each path whose values differ is
looked up in `RULES`, top to bottom; the first rule that matches decides. A path that no rule knows refuses: what nobody
thought about is not the same experiment until somebody says so.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from lineage_schemas import checkpoint as schema
from lineage_schemas.checkpoint import Finding, RuleVerdict

Mode = Literal["resume", "fork"]

_STEPS: Final = (
    "(max|total|num|n|train|training)_?(train_|training_)?(steps|iters|iterations|epochs|updates)"
    "|steps|iters|iterations|epochs|max_iter|n_iter|train_iters|train_steps|num_train_epochs"
)
_INTERVALS: Final = (
    "(log|logging|eval|evaluate|evaluation|validate|validation|val|test|save|saving|checkpoint|ckpt|print|report|"
    "sample|sampling|plot|display|tensorboard|wandb)_?(interval|every|freq|frequency|period|steps|iters|each)"
    "(_n)?(_steps|_iters|_s|_seconds|_epochs)?"
    "|(every|each)_?n?_?(log|eval|save|checkpoint)(s|_steps)?"
    "|(keep|save_total|keep_last|max_to_keep|save_top)(_n|_k|_limit|_checkpoints)?"
    "|log_level|verbose|progress|progress_bar|quiet|debug"
)
_PLACES: Final = (
    "(out|output|log|logging|save|run|runs|work|working|checkpoint|ckpt|tensorboard|wandb|cache)_?(dir|path|root|folder)"
    "|run_name|experiment_name|notes|tags|description|wandb_.*|tracker|tracking|report_to|resume|resume_from|hostname"
)


@dataclass(frozen=True)
class Rule:
    """One line of the table.

    Attributes:
        path: regular expression over the whole dotted path.
        verdict: what a difference means for a resume.
        why: the reason, in the words a person reads in the report.
        when: further condition on the two values; the rule is passed over where it is false.
        forkable: a fork may differ here (the state can still be loaded).
    """

    path: str
    verdict: RuleVerdict
    why: str
    when: Callable[[Any, Any], bool] | None = None
    forkable: bool = True


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _more(saved: Any, live: Any) -> bool:
    return _number(saved) and _number(live) and live > saved


def _same_minor(saved: Any, live: Any) -> bool:
    def minor(version: Any) -> list[str]:
        return str(version).split("+", maxsplit=1)[0].split(".")[:2]

    return isinstance(saved, str) and isinstance(live, str) and minor(saved) == minor(live)


def _python_differs(saved: Any, live: Any) -> bool:
    """Digests of code are comparable only under one minor version of Python."""
    return isinstance(saved, str) and isinstance(live, str) and saved.split(":")[0] != live.split(":")[0]


RULES: Final[tuple[Rule, ...]] = (
    # -- which run -----------------------------------------------------------------------------------------------------
    Rule(r"run", "fork", "another run's checkpoint starts a new, linked run"),
    Rule(r"format\..*", "refuse", "another format", forkable=False),
    # -- recipe --------------------------------------------------------------------------------------------------------
    Rule(rf"recipe\.(.*\.)?({_STEPS})", "allowed", "training longer changes no step that was trained", _more),
    Rule(rf"recipe\.(.*\.)?({_STEPS})", "refuse", "only more total steps continue the same experiment"),
    Rule(rf"recipe\.(.*\.)?({_INTERVALS})", "noted", "when to log, evaluate or save trains nothing"),
    Rule(rf"recipe\.(.*\.)?({_PLACES})", "noted", "where results go trains nothing"),
    Rule(r"recipe(\..*)?", "refuse", "the recipe decides the training"),
    # -- model ---------------------------------------------------------------------------------------------------------
    Rule(r"model\.tensors\..*", "refuse", "parameters and buffers must match by name, shape and type", forkable=False),
    Rule(r"model\.aliases\..*", "refuse", "other weights are tied", forkable=False),
    Rule(r"model\..*", "refuse", "the model or its tokenizer is another one"),
    # -- optimizers ----------------------------------------------------------------------------------------------------
    Rule(r"optimizer\..+\.type", "refuse", "another optimizer cannot use this state", forkable=False),
    Rule(r"optimizer\..+\.groups", "refuse", "an optimizer is on one side only, or has other groups", forkable=False),
    Rule(r"optimizer\..*\.params", "refuse", "parameters must be in the same group in the same order", forkable=False),
    Rule(r"optimizer\..*\.(foreach|maximize|differentiable)", "refuse", "another kernel sums in another order"),
    Rule(r"optimizer\..*\.hyper\..*", "refuse", "hyper-parameters decide the next update"),
    Rule(r"optimizer\..*", "refuse", "the optimizer's state does not fit", forkable=False),
    # -- schedulers, scaler, everything registered ---------------------------------------------------------------------
    Rule(
        r"component\..*\.functions\..*\.code",
        "noted",
        "code of another Python version cannot be compared",
        _python_differs,
    ),
    Rule(r"component\..+\.constants\..*", "refuse", "constants of a schedule or scaler decide the next update"),
    Rule(r"component\..+\.type", "refuse", "an object of another class"),
    Rule(r"component\..+\.frozen", "refuse", "other parameters are trained"),
    Rule(r"component\..+\.declared", "noted", "what somebody declared to need no saving"),
    Rule(r"component\..+\.reason", "noted", "the same absence, for another reason"),
    Rule(r"component\..*", "refuse", "the set of state is not the same", forkable=False),
    # -- data ----------------------------------------------------------------------------------------------------------
    Rule(r"data\..*\.method", "noted", "the fingerprint was made in another way"),
    Rule(r"data(\..*)?", "refuse", "other data is another experiment"),
    Rule(r"loader\..*\.(cursor(\..*)?|state)", "refuse", "the loader's position does not fit", forkable=False),
    Rule(r"loader\..*", "refuse", "a cursor means the same only in the same geometry"),
    # -- where it runs -------------------------------------------------------------------------------------------------
    Rule(r"runtime\.torch", "noted", "a patch version of torch", _same_minor),
    Rule(r"runtime\.torch", "refuse", "another torch may compute and draw differently"),
    Rule(
        r"runtime\.(.*\.)?(host|hostname|driver|gpu_name|gpus|cpu|device_name|python|cuda|cudnn|num_cpus|platform|"
        r"memory_bytes|torch_git|nccl)(\..*|\[.*)?",
        "noted",
        "another machine or driver may round differently",
    ),
    Rule(
        r"runtime\.(.*\.)?(interop|inter_op|interop_threads|num_interop_threads)", "noted", "order of independent work"
    ),
    Rule(r"runtime\.(.*\.)?world(_size)?", "refuse", "another number of ranks", forkable=False),
    Rule(r"runtime\..*", "refuse", "this changes how training is executed"),
    Rule(r"code\..*", "noted", "the source changed between the sessions"),
)
"""The table; first match decides, and nothing matching refuses."""

UNKNOWN: Final = Rule(r".*", "refuse", "nobody has said whether this may differ")


@dataclass(frozen=True)
class Side:
    """One experiment, flattened: path to value. Made by `side_of_manifest` or `restore.live_side`."""

    values: Mapping[str, Any]


def flatten(value: Any, path: str) -> dict[str, Any]:
    """Nested dicts to dotted paths; lists of plain values stay whole, lists of dicts are indexed."""
    if isinstance(value, Mapping):
        if not value:
            return {}
        found: dict[str, Any] = {}
        for key, item in value.items():
            found |= flatten(item, f"{path}.{key}" if path else str(key))
        return found
    if isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value):
        found = {}
        for index, item in enumerate(value):
            found |= flatten(item, f"{path}[{index}]")
        return found
    return {path: value}


def side(
    *,
    run: str | None,
    components: Iterable[schema.Component],
    tensors: Mapping[str, Mapping[str, str]],
    optimizers: Iterable[schema.OptimizerLayout],
    aliases: Mapping[str, str],
    loaders: Mapping[str, Mapping[str, Any]],
    recipe: schema.RecipePoint,
    model: Mapping[str, Any],
    data: Mapping[str, Any],
    runtime: Mapping[str, Any],
    code: Mapping[str, Any],
) -> Side:
    """Flatten the facts of one side into the paths that `RULES` speak of."""
    values: dict[str, Any] = {"run": run}
    values |= flatten(recipe.value, "recipe") if recipe.value is not None else {"recipe": recipe.fingerprint}
    values |= flatten(model, "model")
    for component, table in tensors.items():
        values |= {f"model.tensors.{component}.{name}": facts for name, facts in table.items()}
    values |= {f"model.aliases.{alias}": name for alias, name in aliases.items()}
    for optimizer in optimizers:
        base = f"optimizer.{optimizer.name}"
        values[f"{base}.type"] = optimizer.type
        values[f"{base}.groups"] = len(optimizer.groups)
        for index, group in enumerate(optimizer.groups):
            values[f"{base}.groups[{index}].params"] = group.params
            values |= {f"{base}.groups[{index}].hyper.{k}": v for k, v in group.declared.items()}
    for item in components:
        base = f"component.{item.name}"
        if item.family == "declared":
            values[f"{base}.declared"] = item.reason
            continue
        values[f"{base}.family"] = item.family
        values[f"{base}.state"] = item.state
        values[f"{base}.version"] = item.version
        if item.state == "present":
            values |= flatten(item.details, base)
        elif item.reason is not None:
            values[f"{base}.reason"] = item.reason
    for name, geometry in loaders.items():
        values |= flatten(geometry, f"loader.{name}")
    values |= flatten(data, "data") | flatten(_execution(runtime), "runtime") | flatten(code, "code")
    return Side(values)


def _execution(runtime: Mapping[str, Any]) -> dict[str, Any]:
    """Threads sum on the CPU, in an order of their number; beside an accelerator they are the machine's own affair."""
    facts = dict(runtime)
    if facts.get("device") not in (None, "cpu") and "threads" in facts:
        facts["host"] = {"threads": facts.pop("threads")}
    return facts


def side_of_manifest(manifest: schema.Manifest) -> Side:
    """What a checkpoint says about the experiment it belongs to."""
    modules = {c.name for c in manifest.components if c.state == "present"}
    tensors = {
        artifact.component: {
            name: f"{info.dtype}[{','.join(map(str, info.shape))}]" for name, info in artifact.tensors.items()
        }
        for artifact in manifest.artifacts
        if artifact.component in modules
    }
    return side(
        run=manifest.run.run,
        components=manifest.components,
        tensors=tensors,
        optimizers=manifest.optimizers,
        aliases=manifest.aliases,
        loaders=manifest.loaders,
        recipe=manifest.recipe,
        model=manifest.model,
        data=manifest.data,
        runtime=manifest.runtime,
        code=manifest.code,
    )


def compare(
    saved: schema.Manifest | Side,
    live: Side,
    *,
    mode: Mode = "resume",
    allow: Sequence[str] = (),
    rules: Sequence[Rule] = (),
) -> list[Finding]:
    """Every difference between two experiments, with its verdict; refusals first. Empty when they are the same.

    Args:
        saved: the checkpoint's manifest, or its side.
        live: the experiment that wants to go on.
        mode: `"resume"` continues the same run; `"fork"` starts a linked one, where a recipe may differ but state must
            still load.
        allow: paths or shell patterns (`recipe.lr`, `runtime.*`) whose differences a person takes responsibility for.
        rules: the caller's own, asked before `RULES`.
    """
    before = (saved if isinstance(saved, Side) else side_of_manifest(saved)).values
    after = live.values
    findings: list[Finding] = []
    for path in [*before, *(p for p in after if p not in before)]:
        left, right = before.get(path), after.get(path)
        if path in before and path in after and same(left, right):
            continue
        rule = next((r for r in (*rules, *RULES) if _matches(r, path, left, right)), UNKNOWN)
        findings.append(judge(path, left, right, rule, mode=mode, allow=allow))
    return order(findings)


def judge(path: str, saved: Any, live: Any, rule: Rule, *, mode: Mode, allow: Sequence[str]) -> Finding:
    """The finding that a rule makes of one difference."""
    verdict, why = rule.verdict, rule.why
    if mode == "fork" and verdict in ("refuse", "fork") and rule.forkable:
        verdict = "fork"
    elif verdict in ("refuse", "fork") and rule.forkable and any(_allows(pattern, path) for pattern in allow):
        verdict, why = "allowed", f"allowed on purpose; the rule was: {why}"
    return Finding(path=path, saved=saved, live=live, rule=why, verdict=verdict)


def _allows(pattern: str, path: str) -> bool:
    # `[` is part of our paths, not a character class.
    return fnmatch.fnmatchcase(path, pattern.replace("[", "[[]"))


def _matches(rule: Rule, path: str, saved: Any, live: Any) -> bool:
    return re.fullmatch(rule.path, path) is not None and (rule.when is None or rule.when(saved, live))


def same(saved: Any, live: Any) -> bool:
    """Equal in value and in type: 1 is not 1.0 and not True; a tuple and a list of JSON are one."""
    if isinstance(saved, list | tuple) and isinstance(live, list | tuple):
        return len(saved) == len(live) and all(same(a, b) for a, b in zip(saved, live, strict=True))
    if isinstance(saved, Mapping) and isinstance(live, Mapping):
        return saved.keys() == live.keys() and all(same(saved[k], live[k]) for k in saved)
    if type(saved) is not type(live):
        return False
    return bool(saved == live) or (saved != saved and live != live)  # noqa: PLR0124  # NaN is the same NaN


_ORDER: Final[dict[RuleVerdict, int]] = {"refuse": 0, "fork": 1, "allowed": 2, "noted": 3, "identical": 4}


def order(findings: Iterable[Finding]) -> list[Finding]:
    """Refusals first; within a verdict as found."""
    return sorted(findings, key=lambda finding: _ORDER[finding.verdict])


def refusing(findings: Iterable[Finding], mode: Mode = "resume") -> list[Finding]:
    """Findings that stand in the way."""
    stopping = ("refuse", "fork") if mode == "resume" else ("refuse",)
    return [finding for finding in findings if finding.verdict in stopping]


def table(findings: Sequence[Finding], *, width: int = 34) -> str:
    """The findings as aligned text, refusals first; values are shortened, never the paths."""
    if not findings:
        return "saved and live experiment are identical"
    rows = [("verdict", "path", "saved", "live", "why")]
    rows += [(f.verdict, f.path, show(f.saved, width), show(f.live, width), f.rule) for f in order(findings)]
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    return "\n".join(
        "  ".join([*(cell.ljust(w) for cell, w in zip(row[:4], widths, strict=True)), row[4]]) for row in rows
    )


def show(value: Any, width: int = 34) -> str:
    """A value for a person: short, on one line, without control characters."""
    text = "-" if value is None else value if isinstance(value, str) else repr(value)
    text = "".join(ch if ch.isprintable() else "?" for ch in text)
    return text if len(text) <= width else text[: width - 3] + "..."


def way_on(findings: Sequence[Finding]) -> str:
    """The exact thing to do about a refusal."""
    stopping = refusing(findings)
    paths = [finding.path for finding in stopping]
    if paths == ["run"]:
        return "start a linked run from it: lineage.init(..., resume=<checkpoint>, fork=True)"
    structural = [f.path for f in stopping if f.verdict == "refuse" and not is_forkable(f)]
    if structural:
        return f"this state cannot be loaded here ({structural[0]} first); make the code match, or start a new run"
    listed = ", ".join(repr(path) for path in paths[:4]) + (", ..." if len(paths) > 4 else "")
    return (
        "set it back to continue the run; or start a linked run with lineage.init(..., fork=True); "
        f"or take responsibility with lineage.init(..., allow=[{listed}])"
    )


def is_forkable(finding: Finding) -> bool:
    """Whether the state can be loaded in spite of this difference."""
    rule = next((r for r in RULES if _matches(r, finding.path, finding.saved, finding.live)), UNKNOWN)
    return rule.forkable
