"""A folder of runs as a tree of text: runs, their sessions, checkpoints, forks and exports.

    20261129-134012-tiny-gpt  completed
    ├─ @1 killed, steps 1 to 437 (401 on superseded by @2)
    │  ├─ step-00000200-s01-0c7f1a2b
    │  └─ step-00000400-s01-7f3a9c1e
    │     └─ fork 20261130-090000-tiny-gpt-wide  running
    │        └─ @1 running, steps 401 to 520
    ├─ @2 completed, from 400 of @1, steps 401 to 900, exact
    │  └─ step-00000800-s02-11d09f3e
    └─ export final

Sessions stand side by side under their run, since a run resumed fifty times is a line and no staircase; what each
began from is said. A fork stands under the checkpoint it was made from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from lineage.history.segments import Segment, segments
from lineage_schemas.ids import SessionId

if TYPE_CHECKING:
    from lineage_schemas.run import Run, Session

_BRANCH: Final = ("├─ ", "│  ")
_LAST: Final = ("└─ ", "   ")


@dataclass(frozen=True)
class RunLeaves:
    """What stands beside a run's record.

    Attributes:
        state: of the run; empty when not known.
        session_states: by session id; else the recorded status.
        last_steps: last step each session logged; else as recorded.
        exports: names of its exported weights.
        present: generations still on disk; None when nobody looked.
        unread: why a generation, or `exports`, could not be looked at, by name.
    """

    state: str = ""
    session_states: Mapping[str, str] = field(default_factory=dict)
    last_steps: Mapping[SessionId, int] = field(default_factory=dict)
    exports: Sequence[str] = ()
    present: frozenset[str] | None = None
    unread: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Node:
    """One line of a tree, and what hangs under it.

    Attributes:
        kind: `run`, `session`, `checkpoint`, `export`, or `missing` for a run that is named and not there.
        id: the run's, session's or generation's.
    """

    kind: str
    id: str
    text: str
    children: list[Node] = field(default_factory=list)


def build_tree(runs: Mapping[str, Run], leaves: Mapping[str, RunLeaves] | None = None) -> list[Node]:
    """The roots, oldest first: runs that are no forks, and forks of runs that are not there.

    Runs that are each other's parents (no writer makes such) are roots.
    """
    leaves = leaves or {}
    found = {id_: _run_node(run, leaves.get(id_, RunLeaves())) for id_, run in runs.items()}
    roots: list[Node] = []
    for id_, run in sorted(runs.items(), key=lambda item: (item[1].created_at, item[0])):
        node = found[id_].node
        if run.parent is None or _is_circle(id_, runs):
            roots.append(node)
            continue
        node.text = f"fork {node.text}"
        parent = found.get(run.parent.run)
        if parent is None:
            said = f"{run.parent.run}  not here; forked at {run.parent.checkpoint}"
            roots.append(Node("missing", run.parent.run, said, [node]))
        else:
            parent.under(run.parent.checkpoint, run.parent.session).children.append(node)
    return roots


def render_tree(
    runs: Mapping[str, Run],
    leaves: Mapping[str, RunLeaves] | None = None,
    *,
    only: str | None = None,
    ascii_only: bool = False,
) -> list[str]:
    """The tree as lines of text.

    Args:
        runs: records by run id.
        leaves: what stands beside them.
        only: the family of this run: everything that hangs on its oldest ancestor.
        ascii_only: for terminals without box-drawing characters.
    """
    lines: list[str] = []
    for root in build_tree(runs, leaves):
        if only is None or _holds(root, only):
            lines.append(root.text)
            lines += _children(root, "")
    if ascii_only:
        table = str.maketrans({"├": "|", "│": "|", "└": "`", "─": "-"})
        lines = [line.translate(table) for line in lines]
    return lines


def _children(root: Node, indent: str) -> Iterator[str]:
    # A stack, not recursion: forks of forks may come from anywhere.
    stack = [(child, indent, child is root.children[-1]) for child in reversed(root.children)]
    while stack:
        node, before, last = stack.pop()
        mark, below = _LAST if last else _BRANCH
        yield f"{before}{mark}{node.text}"
        stack += [(child, before + below, child is node.children[-1]) for child in reversed(node.children)]


def family_of(runs: Mapping[str, Run], only: str) -> set[str]:
    """The runs that `render_tree` draws of the family of one."""
    return {node.id for root in build_tree(runs) if _holds(root, only) for node in _walk(root) if node.kind == "run"}


def _holds(root: Node, run: str) -> bool:
    return any(node.id == run and node.kind in ("run", "missing") for node in _walk(root))


def _walk(root: Node) -> Iterator[Node]:
    stack = [root]
    while stack:
        node = stack.pop()
        yield node
        stack += node.children


def _is_circle(id_: str, runs: Mapping[str, Run]) -> bool:
    seen = {id_}
    run = runs.get(id_)
    while run is not None and run.parent is not None:
        if run.parent.run == id_:
            return True
        if run.parent.run in seen:
            return False  # a circle further up; its members are roots, this one hangs under them
        seen.add(run.parent.run)
        run = runs.get(run.parent.run)
    return False


@dataclass
class _Built:
    """A run's node, with the nodes inside it that others may hang under."""

    node: Node
    sessions: dict[str, Node]
    checkpoints: dict[str, Node]

    def under(self, checkpoint: str | None, session: str | None) -> Node:
        if checkpoint is not None and checkpoint in self.checkpoints:
            return self.checkpoints[checkpoint]
        return self.sessions.get(session or "", self.node)


def _run_node(run: Run, leaves: RunLeaves) -> _Built:
    state = f"  {leaves.state}" if leaves.state else ""
    built = _Built(Node("run", run.id, f"{run.id}{state}"), {}, {})
    placed = {s.session: s for s in segments(run, leaves.last_steps)}
    ordinals = {s.session: s.ordinal for s in placed.values()}
    for session in sorted(run.sessions, key=lambda s: s.ordinal):
        segment = placed[SessionId(session.id)]
        node = Node("session", session.id, _session_text(session, segment, leaves, ordinals))
        for name in session.checkpoints:
            built.checkpoints[name] = Node("checkpoint", name, f"{name}{_remark(name, leaves)}")
            node.children.append(built.checkpoints[name])
        built.node.children.append(node)
        built.sessions[session.id] = node
    built.node.children += [Node("export", name, f"export {name}") for name in leaves.exports]
    if "exports" in leaves.unread:
        built.node.children.append(Node("export", "", f"exports{_remark('exports', leaves)}"))
    return built


def _remark(name: str, leaves: RunLeaves) -> str:
    if name in leaves.unread:
        return f"  cannot be read: {leaves.unread[name]}"
    return "  deleted" if leaves.present is not None and name not in leaves.present else ""


def _session_text(session: Session, segment: Segment, leaves: RunLeaves, ordinals: Mapping[SessionId, int]) -> str:
    state = leaves.session_states.get(session.id, session.status)
    text = f"@{session.ordinal} {state}"
    if segment.origin == "unknown":
        text += f", from {segment.start_step} of a session that is not here"
    elif segment.parent is not None:
        careless = "" if session.start.checkpoint else ", no checkpoint restored"
        text += f", from {segment.start_step} of @{ordinals[segment.parent]}{careless}"
    elif segment.origin == "fresh" and session.ordinal > min(ordinals.values()):
        text += ", started over"
    if segment.num_steps == 0:
        return f"{text}, no step"
    text += f", steps {segment.start_step + 1} to {segment.last_step}"
    if segment.num_superseded and segment.superseded_by is not None:
        by = f"@{ordinals[segment.superseded_by]}"
        whole = segment.num_effective == 0
        text += f" (superseded by {by})" if whole else f" ({segment.effective_to + 1} on superseded by {by})"
    if session.continuation is not None:
        text += f", {session.continuation.verdict.replace('_', ' ')}"
    return text
