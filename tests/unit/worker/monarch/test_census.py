"""A process tells what its actors execute, and the rank of its node asks it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monarch_nb.worker.monarch import census, loop


def instance(kind: str, name: str) -> Any:
    rank = SimpleNamespace(rank=1)
    return SimpleNamespace(class_name=kind, actor_id=f"{name}<9f>.anon-0@ipc", name=name, rank=rank)


def messages(kind: str = "__main__.Trainer", name: str = "trainers") -> tuple[Any, Any]:
    return SimpleNamespace(actor_instance=instance(kind, name)), SimpleNamespace(name="step")


class Handler:
    """As Monarch's `_Actor`."""

    async def handle(self, context: Any, method: Any, body: Any) -> None:
        await body()

    def handle_sync(self, context: Any, method: Any, body: Any) -> None:
        body()


@pytest.fixture
def handler() -> type[Handler]:
    return type("Handler", (Handler,), {})


def test_what_a_sync_actor_executes_is_told_with_its_line(handler: type[Handler]) -> None:
    known, seen = census.Census(), []
    known.watch(handler)
    actor, of_monarch = handler(), handler()
    of_monarch.handle_sync(*messages("monarch._src.actor.Logging", "logs"), lambda: None)  # is left out
    for _ in range(2):
        actor.handle_sync(*messages(), lambda: seen.append(known.told()))
    [told] = seen[-1]
    assert (told["name"], told["class_name"], told["uid"], told["rank"]) == (
        "trainers",
        "__main__.Trainer",
        "trainers<9f>",
        1,
    )
    [running] = told["running"]
    assert (running["endpoint"], told["called"]) == ("step", 2)
    assert running["line"].startswith("test_census.py:")
    assert known.told()[0]["running"] == []
    del actor
    assert known.told() == []


def test_what_an_async_actor_awaits_is_told_with_its_line(handler: type[Handler]) -> None:
    known = census.Census()
    known.watch(handler)

    async def main() -> list[dict[str, Any]]:
        actor, never = handler(), asyncio.get_running_loop().create_future()

        async def body() -> None:
            await never

        task = asyncio.ensure_future(actor.handle(*messages(), body))
        await asyncio.sleep(0)
        told = known.told()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert known.told()[0]["running"] == []
        return told

    [told] = asyncio.run(main())
    assert told["running"][0]["line"].startswith("test_census.py:")


def test_the_rank_asks_processes_and_forgets_those_that_have_ended(
    handler: type[Handler], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "_directories", [])
    assert loop.actors() == []
    directory = tmp_path / ("long" * 30)
    directory.mkdir()
    loop.look_in(directory)
    known, seen = census.Census(), []
    known.watch(handler)
    census.serve(known, directory)
    handler().handle_sync(*messages(), lambda: seen.extend(loop.actors()))
    [state] = seen
    assert (state.name, state.pid, state.running[0].endpoint) == ("trainers", os.getpid(), "step")
    assert state.memory_bytes > 0
    assert state.line.startswith("loop.py:")
    ended = directory / "4194305"
    with census.short_name(directory) as short:
        listener = census.socket.socket(census.socket.AF_UNIX)
        listener.bind(f"{short}/{ended.name}")
        listener.close()
    loop.actors()
    assert not ended.exists()


def test_a_process_that_does_not_answer_hides_no_other(
    handler: type[Handler], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "_directories", [tmp_path])
    monkeypatch.setattr(loop, "ANSWER_S", 0.25)
    known = census.Census()
    known.watch(handler)
    census.serve(known, tmp_path)
    actor = handler()
    actor.handle_sync(*messages(), lambda: None)
    with census.short_name(tmp_path) as short, census.socket.socket(census.socket.AF_UNIX) as silent:
        silent.bind(f"{short}/1")
        silent.listen()
        assert [state.pid for state in loop.actors()] == [os.getpid()]


def test_an_actor_that_has_failed_says_so_and_one_that_was_stopped_is_gone(handler: type[Handler]) -> None:
    known = census.Census()
    handler._run_cleanup = lambda self, item: None  # type: ignore[attr-defined]
    known.watch(handler)
    failed, stopped = handler(), handler()

    def fail() -> None:
        raise ValueError("no data")

    with pytest.raises(ValueError, match="no data"):
        failed.handle_sync(*messages(), fail)
    stopped.handle_sync(*messages(), lambda: None)
    for each in (failed, stopped):
        each._run_cleanup("now")  # type: ignore[attr-defined]
    [told] = known.told()
    assert (told["failure"], told["running"]) == ("ValueError: no data", [])


def test_an_actor_at_a_breakpoint_is_told_so(handler: type[Handler]) -> None:
    known = census.Census()
    known.watch(handler)
    stopped = "def stop(then): then()"
    space: dict[str, Any] = {}
    exec(compile(stopped, "/lib/monarch/_src/actor/debugger/pdb_wrapper.py", "exec"), space)
    seen: list[Any] = []
    exec(compile("def step(stop, then):\n    stop(then)", "Cell In[7]", "exec"), space)
    then = eval(compile("lambda: seen.append(known.told())", "/lib/monarch/_src/actor/x.py", "eval"), locals())
    handler().handle_sync(*messages(), lambda: space["step"](space["stop"], then))
    [[told]] = seen
    assert told["running"][0]["line"] == "a breakpoint (Cell In[7]:2)"
