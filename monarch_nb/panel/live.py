"""A view that is kept up to date while somebody looks, the subscribers that hear what changed, and the pools that can
be shown.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from monarch_nb.client.connections.bridge import background_loop, post
from monarch_nb.client.connections.connection import Connection
from monarch_nb.client.pools.answering import told_apart
from monarch_nb.client.pools.held import HeldReservation, current_owner
from monarch_nb.client.pools.others import no_nodes, other_pools
from monarch_nb.client.pools.pool import STATUS_TIMEOUT_S, Pool
from monarch_nb.client.reservations.memory import Memories
from monarch_nb.config import NodePaths, cadence, patience
from monarch_nb.errors import MonarchNbError, PoolError
from monarch_nb.panel.refusal import clickable
from monarch_nb.panel.shown.changes import notices, told
from monarch_nb.panel.shown.view import Before, Json, NodeAnswer, Notebooks, build_view, no_view
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.provision import jobs, provisioner_of
from monarch_nb.provision.known import is_known, known_pools, no_such_pool
from monarch_nb.provision.launchers import Job
from monarch_nb.trust.pools import is_pool

ASK_EVERY_S = cadence(10.0)
"""How often an engine is asked, while somebody looks, what has become of a job of which a node does not answer."""
ENGINE_ANSWERS_S = cadence(0.5)
"""How long a refresh waits for an engine while nodes answer; what it says later is in the next one."""


def pools_to_show(*always: str) -> list[Json]:
    """Return the pools that there are from here, each {"name", "what"}. Those of jobs that still wait have nothing to
    show.

    Args:
        always: those that are there also when they are not up; they are the first.
    """
    of_jobs = {job.pool: job for job in reversed(jobs.jobs())}
    try:
        known = known_pools()
    except MonarchNbError:  # there is nowhere to look; what is shown says so
        known = []
    there = [pool for pool in known if pool not in of_jobs or of_jobs[pool].served]
    return [{"name": pool, "what": _what(pool, of_jobs.get(pool))} for pool in dict.fromkeys([*always, *there])]


def _what(pool: str, job: Job | None) -> str:
    if job is None:
        return "hosts" if is_pool(pool) else "this machine"
    return jobs.title_of_pool(pool)


class Fate:
    """What the jobs of a pool cost, and what has become of those whose nodes do not answer. Used on one loop."""

    def __init__(self) -> None:
        self._said, self._ended = "", frozenset[str]()
        self._asked_s = -float("inf")
        self._asking: asyncio.Task[None] | None = None

    async def note(self, view: Json) -> None:
        """Have a view say it. Where a node is lost its engine is asked; while others answer it is not waited for."""
        pool, held = view["pool"], [each for each in view["reservations"].values() if each["mine"]]
        is_silent = pool["state"] == "silent"
        is_lost = is_silent or any(each["nodes_answering"] < each["nodes"] for each in held)
        if not is_lost or not await asyncio.to_thread(jobs.job_of_pool, pool["name"]):
            self._said, self._ended, self._asked_s = "", frozenset(), -float("inf")
        elif self._asking is None and time.monotonic() - self._asked_s >= ASK_EVERY_S:
            self._asking = asyncio.create_task(asyncio.to_thread(self._ask, pool["name"]))
        if self._asking is not None:
            await asyncio.wait([self._asking], timeout=None if is_silent else ENGINE_ANSWERS_S)
            if self._asking.done():
                asked, self._asking = self._asking, None
                asked.result()
        if is_lost:
            pool["message"] = clickable(self._said) or pool["message"]
        await asyncio.to_thread(self._price, pool["name"], held)

    def _ask(self, pool: str) -> None:
        self._said, self._ended = jobs.trouble(pool), jobs.ended_in(pool)
        self._asked_s = time.monotonic()

    def _price(self, pool: str, held: Iterable[Json]) -> None:
        for each in held:
            each["price_per_hour"] = jobs.price_per_hour(pool, each["name"], self._ended) or None


_log = logging.getLogger(__name__)

ANSWER_S = cadence(0.5)
"""How long a refresh waits for nodes; who answers later is in the next one."""
SILENT_AFTER_S = patience(3.0)
"""So long it waits for those that have never answered: without them, what they hold looks as if it were released."""
BETWEEN_DELIVERIES_S = cadence(0.125)
"""A log that grows and the pool that changes are then fewer than ten messages a second."""
NODES_A_SECOND = 64
"""Of a larger pool looks are further apart: it costs Jupyter's server no more than one of this size."""
MAX_NOTICES = 100
_REQUEST = pb.StatusRequest(readings=True)

Deliver = Callable[[list[Json]], Awaitable[None]]
"""Takes events, in order; the next ones come when it has returned."""


@dataclass
class _Node:
    connection: Connection
    answer: NodeAnswer
    asked: asyncio.Task[None] | None = None
    asked_at: float = 0.0
    called: str = ""
    """As it has said, or had when it was heard last."""


class Subscription:
    """One browser or widget. What it has not taken yet is replaced by what is newer: there is no backlog."""

    def __init__(self, live: Live, deliver: Deliver, *, looking: bool) -> None:
        self._live, self._deliver = live, deliver
        self.looking = looking
        self._told: Json | None = None
        self._jobs: dict[str, Json] = {}
        self._logs: dict[str, Json] = {}
        self._notices: deque[Json] = deque(maxlen=MAX_NOTICES)
        self._ready = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._pump())

    def look(self, looking: bool) -> None:
        """Say whether anybody sees the view: only then is it refreshed every second."""
        self.looking = looking
        self._live.wake()

    def begin_again(self) -> None:
        """Deliver the whole view next: somebody listens who has heard nothing yet."""
        self._told = None
        self._ready.set()

    def close(self) -> None:
        """Deliver nothing more."""
        self._task.cancel()
        self._live.forget(self)

    def look_soon(self, looking: bool) -> None:
        """As `look`, from any thread."""
        post(self.look, looking)

    def close_soon(self) -> None:
        """As `close`, from any thread."""
        post(self.close)

    def put(self, event: Json) -> None:
        """Note an event that is to be delivered."""
        kind = event["type"]
        if kind == "job":
            self._jobs[event["job"]["id"]] = event
        elif kind == "log":
            self._logs[event["log"]] = event
        else:
            self._notices.append(event)
        self._ready.set()

    def view_changed(self) -> None:
        """Note that the view is not as it was."""
        self._ready.set()

    async def _pump(self) -> None:
        while True:
            await self._ready.wait()
            self._ready.clear()
            if events := self._take(self._live.told):
                await self._deliver(events)
                await asyncio.sleep(BETWEEN_DELIVERIES_S)

    def _take(self, view: Json | None) -> list[Json]:
        events: list[Json] = []
        if view is not None and (self._told is None or view != self._told | {"now": view["now"]}):
            events.append({"type": "view", "view": view})
            self._told = view
        events += [*self._jobs.values(), *self._logs.values(), *self._notices]
        self._jobs.clear()
        self._logs.clear()
        self._notices.clear()
        return events


class Live:
    """What a pool shows now. Made anywhere; everything else happens on the client's background loop.

    Args:
        home: the pool that is meant where none is named; by default this one.
        root: see Notebooks.
        refresh_s: how often nodes are asked while somebody looks.
        notice_s: how often while subscribers do not look, to notice deaths and what ends.
    """

    def __init__(
        self, pool: Pool, *, home: str = "", root: str = "", refresh_s: float = 1.0, notice_s: float = 10.0
    ) -> None:
        self.pool, self._root, self._refresh_s, self._notice_s = pool, root, refresh_s, notice_s
        self._home = home or pool.name
        self.view: Json | None = None
        self.told: Json | None = None
        self._viewed_at = -float("inf")
        self._owner = current_owner()
        self._nodes: dict[str, _Node] = {}
        self._before, self._memories, self._fate = Before(), Memories(), Fate()
        self._subscriptions: list[Subscription] = []
        self._refreshing = asyncio.Lock()
        self._wake = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None
        self._healing: asyncio.Task[None] | None = None

    # ---- subscribers ----

    def subscribe(self, deliver: Deliver, *, looking: bool = True) -> Subscription:
        """Deliver the view, again whenever it changes, and what else happens, until the subscription is closed."""
        subscription = Subscription(self, deliver, looking=looking)
        self._subscriptions.append(subscription)
        if self.view is not None:
            subscription.view_changed()
            for notice in notices(None, self.view):
                subscription.put(notice)
        if self._keeping is None or self._keeping.done():
            self._keeping = background_loop().create_task(self._keep())
        self.wake()
        return subscription

    def forget(self, subscription: Subscription) -> None:
        with contextlib.suppress(ValueError):
            self._subscriptions.remove(subscription)
        self.wake()

    def wake(self) -> None:
        """Look at once, not when it is time: something was just done, or somebody just began to look."""
        self._viewed_at = -float("inf")
        self._wake.set()

    def publish(self, event: Json) -> None:
        """Send an event to all subscribers."""
        for subscription in self._subscriptions:
            subscription.put(event)

    async def _keep(self) -> None:
        while self._subscriptions:
            self._wake.clear()
            await self.refresh()
            looking = any(subscription.looking for subscription in self._subscriptions)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._apart_s(self._refresh_s if looking else self._notice_s)):
                    await self._wake.wait()

    # ---- the view ----

    async def fresh(self) -> Json:
        """Return a view that is not older than a refresh."""
        if self.view is None or time.monotonic() - self._viewed_at > self._apart_s(self._refresh_s):
            await self.refresh()
        assert self.view is not None
        return self.view

    async def refresh(self) -> None:
        """Ask the nodes and tell subscribers."""
        async with self._refreshing:
            try:
                await self._ask()
                answers = [node.answer for node in self._nodes.values()]
                notebooks = Notebooks(self._root, self._memories.read() if self._root else ())
                view = build_view(self.pool.name, answers, self._owner, time.time(), self._before, notebooks)
                if not answers and not is_known(self.pool.name):
                    view["pool"]["message"] = clickable(no_such_pool(self.pool.name))
                elif not answers and (others := other_pools(self.pool.name)):
                    view["pool"]["message"] += f"; {clickable(others)}"
            except MonarchNbError as error:
                view = no_view(self.pool.name, self._owner, time.time(), clickable(str(error)))
            view["pools"] = await asyncio.to_thread(pools_to_show, self.pool.name, self._home)  # there is a way back
            await self._fate.note(view)
            before, self.view, self._viewed_at = self.view, view, time.monotonic()
            self.told = told(self.told, view, view["now"])
            for subscription in self._subscriptions:
                subscription.view_changed()
            for notice in notices(before, view):
                self.publish(notice)

    def replies(self) -> list[tuple[Connection, pb.StatusReply]]:
        """Return what every node that answers said last."""
        return [
            (node.connection, node.answer.reply)
            for node in self._nodes.values()
            if node.answer.answers and node.answer.reply is not None
        ]

    def held(self, reservation_id: str) -> HeldReservation:
        """Return a reservation as all nodes told of it, also those that do not answer now."""
        nodes = {
            status.node_rank: (node.connection, status)
            for node in self._nodes.values()
            for status in (node.answer.reply.reservations if node.answer.reply else ())
            if status.reservation_id == reservation_id
        }
        return HeldReservation(reservation_id, nodes)

    def is_silent(self, name: str) -> bool:
        """Whether a node, named as its connection, did not answer when it was asked last."""
        return any(node.connection.name == name and not node.answer.answers for node in self._nodes.values())

    @property
    def owner(self) -> str:
        """Who we are to the pool."""
        return self._owner

    @property
    def is_watched(self) -> bool:
        """Whether anybody has subscribed."""
        return bool(self._subscriptions)

    def _apart_s(self, wanted_s: float) -> float:
        """Return how long to wait from one look to the next."""
        return max(wanted_s, len(self._nodes) / NODES_A_SECOND)

    async def _ask(self) -> None:
        # In a thread: a name server may take its time.
        there = await asyncio.to_thread(lambda: provisioner_of(self.pool.name).nodes(pool=self.pool.name))
        if not there and is_pool(self.pool.name):
            raise PoolError(no_nodes(self.pool.name))
        now = time.monotonic()
        known, self._nodes = self._nodes, {}
        for found in there:
            self._owner = current_owner(found.identity)
            connection = self.pool.connection_to(found)
            node = known.get(found.address)
            if node is None or node.connection is not connection:
                node = _Node(connection, NodeAnswer(found.node_id), called=found.node_id)
            self._nodes[found.address] = node
            node.answer.alive = found.alive
            node.answer.served = found.alive or NodePaths(found.directory).facts.exists()
            if found.alive and (node.asked is None or node.asked.done()):
                node.asked_at = now
                node.asked = asyncio.create_task(self._ask_one(node))
        is_looked_at = any(subscription.looking for subscription in self._subscriptions)
        has_lost = any(node.answer.served and not node.answer.alive for node in self._nodes.values())
        if is_looked_at and has_lost and (self._healing is None or self._healing.done()):
            self._healing = asyncio.create_task(self._heal())
        await self._wait(now + ANSWER_S, lambda _: True)
        await self._wait(now + SILENT_AFTER_S, lambda answer: answer.is_starting)
        for node in self._nodes.values():
            late_s = time.monotonic() - node.asked_at if node.asked and not node.asked.done() else 0.0
            node.answer.silent_s = late_s if late_s >= SILENT_AFTER_S else 0.0
            if node.answer.answers:
                node.answer.away_since = 0.0
            elif not node.answer.away_since and not node.answer.is_starting:
                node.answer.away_since = time.time() - late_s

    async def _heal(self) -> None:
        """Have a local pool start allocators again that died."""
        lines: list[str] = []
        await asyncio.to_thread(self.pool.heal, lines.append)
        for line in lines:
            notice = {"type": "notice", "level": "warning", "id": f"healed-{time.time()}", "text": line}
            self.publish(notice | {"reservation": ""})

    async def _wait(self, until_s: float, is_meant: Callable[[NodeAnswer], bool]) -> None:
        nodes = (node for node in self._nodes.values() if is_meant(node.answer))
        asked = [node.asked for node in nodes if node.asked is not None and not node.asked.done()]
        if asked:
            await asyncio.wait(asked, timeout=max(0.0, until_s - time.monotonic()))

    async def _ask_one(self, node: _Node) -> None:
        try:
            reply = node.answer.reply = await node.connection.unary("Status", _REQUEST, STATUS_TIMEOUT_S)
            self._name(node, reply.node.node_id, reply.node.address)
            node.answer.error = ""
        except MonarchNbError as error:
            node.answer.error = clickable(str(error))

    def _name(self, node: _Node, name: str, address: str) -> None:
        """Call a node as it calls itself, and not by where it is; of two of one name each with its address."""
        if any(other is not node and other.called == name for other in self._nodes.values()):
            node.answer.node_id = told_apart(name, address)
        else:
            node.answer.node_id = name
        node.called = name
        node.connection.is_known_as(node.answer.node_id, address)
