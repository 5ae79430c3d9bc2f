"""The table of keys: what it may bind, what the footer and the help say of it."""

import pytest

from lineage_tui import keys
from lineage_tui.screens import FACTORIES

SCREENS = sorted(keys.SCOPES)


def bound(screen: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for entry in keys.entries(screen):
        for one in entry.bound:
            found.setdefault(one.key, []).append(one.action)
    return found


@pytest.mark.parametrize("screen", SCREENS)
def test_no_key_means_two_things_on_one_screen(screen: str) -> None:
    for key, actions in bound(screen).items():
        assert len(set(actions)) == 1, (screen, key, actions)


@pytest.mark.parametrize("screen", SCREENS)
def test_nothing_is_only_on_ctrl_or_alt_and_no_chord_is_tmuxs_or_the_shells(screen: str) -> None:
    by_action: dict[str, set[str]] = {}
    for entry in keys.entries(screen):
        for one in entry.bound:
            by_action.setdefault(one.action, set()).add(one.key)
            assert one.key not in {"ctrl+b", "ctrl+a", "ctrl+z", "ctrl+s", "ctrl+q", "ctrl+c", "ctrl+d", "ctrl+w"}
    for action, found in by_action.items():
        assert any(not key.startswith(("ctrl+", "alt+")) for key in found), (action, found)


@pytest.mark.parametrize("width", [80, 100, 120, 200])
@pytest.mark.parametrize("screen", SCREENS)
def test_a_footer_fits_its_width_and_always_has_help_and_quit(screen: str, width: int) -> None:
    chosen = keys.footer(screen, width)
    assert sum(map(keys.entry_width, chosen)) <= width
    assert [entry.label for entry in chosen[-2:]] == ["help", "quit"]
    assert len(chosen) > 4


@pytest.mark.parametrize("ascii_only", [False, True])
@pytest.mark.parametrize("screen", SCREENS)
def test_what_is_drawn_of_a_footer_entry_is_as_wide_as_was_counted(screen: str, *, ascii_only: bool) -> None:
    """An arrow of two cells that counts as one pushes `q quit` over the edge."""
    from lineage_tui.widgets.bars import Footer

    drawn = Footer(screen, ascii_only=ascii_only)
    for entry in keys.entries(screen):
        assert drawn._entry(entry).cell_length == keys.entry_width(entry, ascii_only=ascii_only)


@pytest.mark.parametrize("screen", [name for name in SCREENS if name in FACTORIES])
def test_every_action_of_the_table_is_there(screen: str) -> None:
    """A key whose action is missing does nothing, without a word."""
    from lineage_tui.app import LineageApp

    made = FACTORIES[screen]("braille")
    for entry in keys.entries(screen):
        for one in entry.bound:
            scope, _, name = one.action.partition("(")[0].rpartition(".")
            holder = LineageApp if scope == "app" else type(made)
            assert hasattr(holder, f"action_{name}"), (screen, entry.label, one.action)


def test_every_screen_of_the_tab_line_has_a_scope_and_a_digit() -> None:
    assert [key for key, _, _ in keys.SCREENS] == list("12345678")
    assert {name for _, name, _ in keys.SCREENS} <= set(keys.SCOPES)


@pytest.mark.parametrize("screen", SCREENS)
def test_the_help_shows_every_entry_that_holds(screen: str) -> None:
    from lineage_tui.screens.help import help_content

    text = " ".join(help_content(screen, 70).plain.split())
    for entry in keys.entries(screen):
        assert " ".join(entry.help.split()) in text
        assert entry.shown in text


def test_the_help_in_ascii_has_nothing_else() -> None:
    from lineage_tui.screens.help import help_content

    assert help_content("run", 70, ascii_only=True).plain.isascii()
