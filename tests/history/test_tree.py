"""Runs, sessions, checkpoints, forks and exports as lines of text."""

from __future__ import annotations

from history_records import OTHER_RUN, RUN, T0, gen, resumed, run_of, session, sid

from lineage.history.tree import RunLeaves, build_tree, render_tree
from lineage_schemas.run import Continuation, Parent, Run, Start


def family() -> dict[str, Run]:
    exact = Continuation(verdict="exact", from_step=400, compared_steps=37)
    parent = run_of(
        session(1, checkpoints=[gen(200, 1), gen(400, 1)], status="killed", last_step=437),
        session(2, resumed(400, 1), checkpoints=[gen(800, 2)], status="completed", last_step=900, continuation=exact),
        id=OTHER_RUN,
    )
    start = Start(kind="fork", step=400, checkpoint=gen(400, 1), run=OTHER_RUN, session=sid(1))
    child = run_of(
        session(1, start, last_step=520), parent=Parent(run=OTHER_RUN, session=sid(1), checkpoint=gen(400, 1), step=400)
    )
    return {RUN: child, OTHER_RUN: parent}


def test_the_whole_family_is_drawn_and_each_thing_once() -> None:
    leaves = {OTHER_RUN: RunLeaves(state="completed", exports=["final"]), RUN: RunLeaves(state="running")}
    assert render_tree(family(), leaves) == [
        f"{OTHER_RUN}  completed",
        "├─ @1 killed, steps 1 to 437 (401 on superseded by @2)",
        f"│  ├─ {gen(200, 1)}",
        f"│  └─ {gen(400, 1)}",
        f"│     └─ fork {RUN}  running",
        "│        └─ @1 running, steps 401 to 520",
        "├─ @2 completed, from 400 of @1, steps 401 to 900, exact",
        f"│  └─ {gen(800, 2)}",
        "└─ export final",
    ]


def test_a_tree_without_box_drawing_is_plain_ascii() -> None:
    assert all(line.isascii() for line in render_tree(family(), ascii_only=True))


def test_only_the_family_asked_for_is_drawn() -> None:
    other = run_of(session(1), id="20261201-000000-other")
    runs = {**family(), other.id: other}
    assert not any(other.id in line for line in render_tree(runs, only=RUN))
    assert render_tree(runs, only=other.id)[0].startswith(other.id)
    assert render_tree(runs, only="no such run") == []


def test_a_fork_whose_parent_is_not_here_names_it() -> None:
    child = family()[RUN]
    lines = render_tree({RUN: child}, only=RUN)
    assert lines[0].startswith(f"{OTHER_RUN}  not here")
    assert RUN in lines[1]


def test_a_deleted_checkpoint_is_marked_and_a_fork_still_hangs_on_it() -> None:
    lines = render_tree(family(), {OTHER_RUN: RunLeaves(present=frozenset({gen(800, 2)}))})
    assert [line for line in lines if line.endswith("deleted")] == [
        f"│  ├─ {gen(200, 1)}  deleted",
        f"│  └─ {gen(400, 1)}  deleted",
    ]
    assert "│     └─ fork" in "\n".join(lines)


def test_careless_and_dead_sessions_are_told() -> None:
    run = run_of(
        session(1, last_step=437),
        session(2, Start(kind="fresh", step=400), last_step=500),
        session(3, resumed(400, 1)),
        session(4, last_step=3),
    )
    lines = "\n".join(render_tree({run.id: run}))
    assert "@2 running, from 400 of @1, no checkpoint restored, steps 401 to 500" in lines
    assert "@3 running, from 400 of @1, no step" in lines
    assert "@4 running, started over, steps 1 to 3" in lines


def test_circles_of_parents_end() -> None:
    one, two = "20261129-000000-one", "20261129-000001-two"
    runs = {
        one: run_of(session(1), id=one, parent=Parent(run=two, checkpoint=gen(4, 1), step=4)),
        two: run_of(session(1), id=two, parent=Parent(run=one, checkpoint=gen(4, 1), step=4)),
    }
    assert {node.id for node in build_tree(runs)} == {one, two}


def test_a_chain_of_a_thousand_forks_is_no_crash() -> None:
    runs = {}
    for i in range(1_000):
        id_ = f"20261129-000000-r{i:04d}"
        parent = (
            Parent(run=f"20261129-000000-r{i - 1:04d}", session=sid(1), checkpoint=gen(4, 1), step=4) if i else None
        )
        runs[id_] = run_of(session(1, checkpoints=[gen(4, 1)], last_step=9), id=id_, parent=parent, created_at=T0)
    assert len(render_tree(runs)) == 3_000
