"""Who calls a node in tests: people and nodes of a pool."""

from __future__ import annotations

from monarch_nb.rpc.callers import Caller

ALICE = Caller("alice", "user")
BOB = Caller("bob", "user")
MADE_THE_POOL = Caller("carol", "admin")
NODE = Caller("host2", "node")
FOR_ALICE = Caller("alice", "user", node="host2")
LOCAL = Caller("root", "admin", local=True)
