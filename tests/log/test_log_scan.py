from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lineage.log.scan as scan_module
from lineage.log.scan import Damage, Line, fault_of, merge_damage, scan, whole_end

whole_lines = st.lists(st.binary(max_size=60).map(lambda data: data.replace(b"\n", b"")), max_size=20)
tails = st.binary(max_size=60).map(lambda data: data.replace(b"\n", b""))


@given(whole_lines, tails, st.integers(0, 10**12))
def test_lines_and_a_tail_come_back_as_they_were_put_together(lines: list[bytes], tail: bytes, offset: int) -> None:
    data = b"".join(line + b"\n" for line in lines) + tail
    found = scan(data, offset)
    assert [line.data for line in found.lines] == lines
    assert found.torn == tail
    assert found.torn_offset + len(tail) == offset + len(data)
    for line in found.lines:
        assert data[line.offset - offset : line.end - offset] == line.data + b"\n"


@given(st.binary(max_size=400), st.lists(st.integers(1, 50), min_size=1, max_size=200))
def test_any_chunking_finds_the_same_lines(data: bytes, sizes: list[int]) -> None:
    lines: list[Line] = []
    torn, offset, position = b"", 0, 0
    for size in [*sizes, len(data)]:
        part = scan(torn + data[position : position + size], offset)
        position += size
        lines += part.lines
        torn, offset = part.torn, part.torn_offset
    whole = scan(data)
    assert (lines, torn, offset) == (whole.lines, whole.torn, whole.torn_offset)


@pytest.mark.parametrize("block", range(1, 8))
def test_the_last_newline_is_found_from_the_end_wherever_the_blocks_meet(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan_module, "_BLOCK_BYTES", block)
    for size in range(20):
        for place in range(-1, size):
            data = bytes(10 if i == place else 120 for i in range(size))
            assert whole_end(lambda n, offset, data=data: data[offset : offset + n], size) == place + 1


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"", "the line is empty"),
        (b" \r", "the line is empty"),
        (b"\0\0\0", "not JSON"),
        (b'{"kind":"step"', "not JSON"),
        (b'{"kind":"st\xffep"}', "not JSON"),
        (b'{"kind":"step"}{"kind":"step"}', "not JSON"),
        (b'{"kind":NaN}', "not JSON"),
        (b"\xef\xbb\xbf{}", "not JSON"),
        (b"[" * 1_000_000, "not JSON"),
        (b"[" * 1_000_000 + b"]" * 1_000_000, "not JSON"),
        (b'{"kind":' * 100_000 + b"1" + b"}" * 100_000, "not JSON"),
        (b"[]", "not a JSON object"),
        (b"3", "not a JSON object"),
        (b'{"a":1}', "the object has no kind"),
        (b'{"kind":3}', "the object has no kind"),
    ],
)
def test_a_line_that_is_no_event_says_why(line: bytes, reason: str) -> None:
    found = fault_of(line)
    assert found is not None
    assert found.startswith(reason)


def test_a_carriage_return_at_the_end_is_no_fault() -> None:
    assert fault_of(b'{"kind":"note"}\r') is None


def test_the_reason_never_repeats_what_the_line_held() -> None:
    reason = fault_of(b'{"kind":"\x1b]0;owned\x07 ev\xffil"}')
    assert reason is not None
    assert "\x1b" not in reason
    assert "owned" not in reason


@given(st.binary(max_size=200))
def test_no_bytes_make_the_check_raise(data: bytes) -> None:
    fault_of(data)


def test_bad_lines_that_touch_are_one_report_with_their_number() -> None:
    damage = [Damage(0, 5, "a"), Damage(5, 1, "a"), Damage(6, 2, "a", num_lines=3), Damage(20, 1, "d")]
    assert list(merge_damage(damage)) == [Damage(0, 8, "a", num_lines=5), Damage(20, 1, "d")]


def test_one_report_names_every_way_in_which_its_lines_are_bad_once_and_the_first_in_full() -> None:
    reasons = (
        "not JSON: unexpected character at byte 3",
        "the line is empty",
        "not JSON: unexpected end of data at byte 9",
        "not an event: step: Field required",
        "the line is empty",
        "not an event: ts: Field required",
    )
    damage = [Damage(at, 1, reason) for at, reason in enumerate(reasons)]
    said = f"{reasons[0]}; others: the line is empty, not an event"
    assert list(merge_damage(damage)) == [Damage(0, 6, said, num_lines=6)]


@given(st.lists(st.sampled_from(["a: x", "a: y", "b", "c: z", "d"]), min_size=1), st.data())
def test_joining_again_what_was_joined_changes_nothing(reasons: list[str], data: st.DataObject) -> None:
    damage = [Damage(at, 1, reason) for at, reason in enumerate(reasons)]
    cut = data.draw(st.integers(0, len(damage)))
    parts = [*merge_damage(damage[:cut]), *merge_damage(damage[cut:])]
    assert list(merge_damage(parts)) == list(merge_damage(damage))


def test_a_restart_is_never_joined_with_the_damage_beside_it() -> None:
    damage = [Damage(0, 0, "replaced", restart=True), Damage(0, 4, "x"), Damage(4, 4, "x")]
    assert list(merge_damage(damage)) == [damage[0], Damage(0, 8, "x", num_lines=2)]
