"""What a sync did, what one would do, and what ranks did to their copies."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from monarch_nb.client.files.local_tree import Report
from monarch_nb.client.files.transfer import Transfer
from monarch_nb.errors import MonarchNbError
from monarch_nb.files.tree import printable
from monarch_nb.proto import files_pb2 as pb

OnNodes = Mapping[str, tuple[str, ...]]
"""Paths, and the nodes that each of them is about."""


@dataclass(frozen=True)
class Given:
    """How many files a node got, and how many went there."""

    files: int = 0
    removed: int = 0

    def __add__(self, other: Given) -> Given:
        return Given(self.files + other.files, self.removed + other.removed)


@dataclass(frozen=True)
class SyncReport:
    """What a sync did.

    Attributes:
        files, removed: that a node got, and that went there; the most where nodes differ. size_bytes: of what went.
        sent_bytes: that left this process: content, compressed, and what was said about it; nodes pass it on to one
            another.
        nodes: how many got something or, if none did, have all of it already.
        given: those that got something, and what.
        missed: nodes that do not have all of it: they did not answer, or could not take it.
        seconds: it took.
        kept: files that ranks wrote or changed and that were left as they are, though there is another version here.
        left: the same of files that are here no longer: they stay as the ranks'.
        overwritten: files that ranks wrote or changed and that are gone: `overwrite` asked for it.
        restored: files that ranks had removed and that are back: `overwrite` asked for it.
        modules: whether Python files changed that ranks may have imported.
        local: by mount, what is not synced and why.
    """

    files: int = 0
    size_bytes: int = 0
    removed: int = 0
    sent_bytes: int = 0
    nodes: int = 0
    seconds: float = 0.0
    kept: OnNodes = field(default_factory=dict)
    left: OnNodes = field(default_factory=dict)
    overwritten: OnNodes = field(default_factory=dict)
    restored: OnNodes = field(default_factory=dict)
    given: Mapping[str, Given] = field(default_factory=dict)
    missed: tuple[str, ...] = ()
    modules: bool = False
    local: Mapping[str, Report] = field(default_factory=dict)

    @property
    def anything(self) -> bool:
        """Whether something changed on the nodes, or could not."""
        return bool(self.files or self.removed or self.kept or self.left)

    def __add__(self, other: SyncReport) -> SyncReport:
        nothing = Given()
        given = {
            node: self.given.get(node, nothing) + other.given.get(node, nothing)
            for node in {**self.given, **other.given}
        }
        most = _most(given.values())
        return replace(
            self,
            files=most.files,
            size_bytes=self.size_bytes + other.size_bytes,
            removed=most.removed,
            sent_bytes=self.sent_bytes + other.sent_bytes,
            kept={**self.kept, **other.kept},
            left={**self.left, **other.left},
            overwritten={**self.overwritten, **other.overwritten},
            given=given,
            modules=self.modules or other.modules,
        )


@dataclass(frozen=True)
class Differences:
    """Where the copies are not what was put there.

    Attributes:
        changed: files that ranks wrote or changed. missing: files that ranks removed.
        theirs: files that ranks wrote and that came back from here: the same, but another version would not replace
            them.
        unanswered: nodes that could not say, and why.
    """

    changed: OnNodes = field(default_factory=dict)
    missing: OnNodes = field(default_factory=dict)
    theirs: OnNodes = field(default_factory=dict)
    unanswered: Mapping[str, MonarchNbError] = field(default_factory=dict)


@dataclass
class Pending:
    """What a sync would do.

    Attributes:
        files: with their sizes. removed: files that would go.
        unknown: nodes may have some of it: this process has not sent all of it to all of them.
        there: what ranks wrote stays, `overwrite` apart.
        local: by mount, what is not synced and why.
    """

    files: list[tuple[str, int]] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    unknown: bool = False
    there: Differences = field(default_factory=Differences)
    local: dict[str, Report] = field(default_factory=dict)


def report_of(change: pb.TreeChange, entries: Mapping[bytes, pb.TreeEntry], transfer: Transfer) -> SyncReport:
    """Return what became of one mount's change.

    Args:
        entries: of the tree as it is here now.
    """
    applied = transfer.applied
    files = [entry for entry in change.changed if entry.kind != pb.TreeEntry.KIND_DIRECTORY]
    given = {node: Given(one.written, one.removed) for node, one in applied.items() if one.written or one.removed}
    most = _most(given.values())
    kept = on_nodes(change.mount, {node: one.kept for node, one in applied.items()})
    here = {
        os.path.join(change.mount, printable(path)) for one in applied.values() for path in one.kept if path in entries
    }
    return SyncReport(
        files=most.files,
        size_bytes=transfer.total_bytes or sum(entry.size_bytes for entry in files if not change.whole),
        removed=most.removed,
        sent_bytes=transfer.sent_bytes,
        kept={path: nodes for path, nodes in kept.items() if path in here},
        left={path: nodes for path, nodes in kept.items() if path not in here},
        overwritten=on_nodes(change.mount, {node: one.overwritten for node, one in applied.items()}),
        given=given,
        modules=not change.whole and any(entry.path.endswith(b".py") for entry in files),
    )


def _most(given: Iterable[Given]) -> Given:
    """Return the most that a node got, and the most that went on one."""
    nodes = list(given)
    return Given(max((one.files for one in nodes), default=0), max((one.removed for one in nodes), default=0))


def on_nodes(mount: str, paths: Mapping[str, Iterable[bytes]]) -> dict[str, tuple[str, ...]]:
    """Return by path in the workspace the nodes that name it."""
    found: dict[str, tuple[str, ...]] = {}
    for node, named in paths.items():
        for path in named:
            name = os.path.join(mount, printable(path))
            found[name] = (*found.get(name, ()), node)
    return found


def differences(replies: Mapping[str, pb.WorkspaceReply | MonarchNbError]) -> Differences:
    """Return what nodes that looked say."""
    found: dict[str, dict[str, tuple[str, ...]]] = {"changed": {}, "missing": {}, "theirs": {}}
    mounts: dict[str, dict[str, pb.MountStatus]] = {}
    for node, reply in replies.items():
        for mount in reply.mounts if isinstance(reply, pb.WorkspaceReply) else ():
            mounts.setdefault(mount.mount, {})[node] = mount
    for name, by_node in mounts.items():
        for kind, paths in found.items():
            paths |= on_nodes(name, {node: getattr(mount, kind) for node, mount in by_node.items()})
    unanswered = {node: reply for node, reply in replies.items() if isinstance(reply, MonarchNbError)}
    return Differences(**found, unanswered=unanswered)
