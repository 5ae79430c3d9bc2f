"""The house stands as docs/architecture.md draws it, seen from fresh interpreters."""

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import lineage

ROOT = Path(__file__).parents[2]


def loaded_by(statement: str) -> set[str]:
    """Top-level modules in a fresh interpreter after `statement`."""
    script = f"{statement}\nimport sys, json; print(json.dumps(sorted({{name.split('.')[0] for name in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        (
            "import lineage",
            {"torch", "textual", "numpy", "pydantic", "orjson", "rich", "lineage_schemas", "lineage_tui"},
        ),
        ("import lineage; lineage.LineageError", {"torch", "textual", "numpy", "pydantic"}),
        ("import lineage; lineage.read", {"torch", "textual", "rich", "lineage_tui"}),
        ("import lineage; lineage.init", {"torch", "textual", "rich", "lineage_tui", "lineage_schemas.run"}),
        ("import lineage.cli", {"torch", "textual", "numpy", "pydantic", "rich", "lineage_tui"}),
        (
            "import lineage_schemas.run, lineage_schemas.events, lineage_schemas.checkpoint",
            {"torch", "textual", "numpy", "rich", "lineage", "lineage_tui"},
        ),
        ("import lineage_tui", {"torch", "textual"}),
        ("import lineage_tui.app", {"torch"}),
        ("import lineage_tui.command", {"torch", "textual"}),
    ],
)
def test_importing_a_floor_loads_nothing_it_does_not_need(statement, absent):
    assert not loaded_by(statement) & absent


def test_every_screen_and_widget_is_free_of_torch():
    modules = [
        ".".join(path.relative_to(ROOT / "tui").with_suffix("").parts)
        for path in sorted((ROOT / "tui" / "lineage_tui").rglob("*.py"))
        if path.name != "__init__.py"
    ]
    assert "torch" not in loaded_by(f"import {', '.join(modules)}")


def test_the_arrows_between_the_packages_hold():
    """import-linter, as `make check` runs it."""
    done = subprocess.run(
        [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout


def test_the_public_names_are_sorted_and_each_is_there():
    assert lineage.__all__ == sorted(lineage.__all__)
    for name in lineage.__all__:
        assert getattr(lineage, name) is not None, name
    assert set(lineage.__all__) <= set(dir(lineage))


def test_the_public_names_are_these_and_no_others():
    """A change here is a change of the public API: it belongs in the CHANGELOG."""
    assert lineage.__all__ == [
        "CheckpointError",
        "ContinuationDivergedError",
        "DamagedError",
        "FormatError",
        "LineageError",
        "LockedError",
        "NewerFormatError",
        "NotFoundError",
        "RefError",
        "ResumableSampler",
        "Run",
        "RunView",
        "Series",
        "UsageError",
        "fingerprint_files",
        "init",
        "read",
    ]


def test_a_name_that_is_not_public_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        lineage.nonsense  # noqa: B018


def test_what_type_checkers_see_is_what_is_loaded():
    """The names under TYPE_CHECKING and those loaded lazily come from the same modules."""
    import ast

    tree = ast.parse(Path(lineage.__file__).read_text("utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {alias.name: node.module for node in block.body for alias in node.names}
    assert set(seen) == set(lineage.__all__)
    for name, module in seen.items():
        assert getattr(import_module(module), name) is getattr(lineage, name)
        assert lineage._HOMES.get(name, "lineage.errors") == module


@pytest.mark.parametrize("package", ["lineage", "schemas/lineage_schemas", "tui/lineage_tui"])
def test_every_package_says_that_it_is_typed(package):
    assert (ROOT / package / "py.typed").exists()


def test_no_test_folder_is_a_package_that_would_hide_a_real_one():
    assert list((ROOT / "tests").rglob("__init__.py")) == []


def test_test_files_have_names_of_their_own():
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("module", ["lineage.errors", "lineage_schemas.errors"])
def test_errors_survive_the_way_out_of_a_worker_process(module):
    import pickle

    for name in ("LineageError", "FormatError", "NewerFormatError", "RefError"):
        error = getattr(import_module(module), name)("what", "where", "hint")
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), again.what, again.where, again.hint) == (type(error), "what", "where", "hint")
    locked = lineage.LockedError("what", pid=7, host="h", session="s")
    again = pickle.loads(pickle.dumps(locked))
    assert (again.pid, again.host, again.session) == (7, "h", "s")
