"""The parts of a rank that need no process: completion, values, stacks, text, results, output files."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import socket
import sys
import threading
import traceback
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any

import numpy
import pytest

from monarch_nb.ground import escapes, frames
from monarch_nb.ground.frames import FrameError, FrameSplitter, pack_pickle, unpack_pickle
from monarch_nb.proto.run_pb2 import Display, Mark, RankResult
from monarch_nb.proto.worker_pb2 import FromRank
from monarch_nb.worker.control import stacks
from monarch_nb.worker.control.completion import complete
from monarch_nb.worker.control.inspection import describe
from monarch_nb.worker.control.interrupts import thread_state
from monarch_nb.worker.forking import after_fork, preload
from monarch_nb.worker.groups import forming, sockets
from monarch_nb.worker.runs import results, values
from monarch_nb.worker.runs.results import Results, send_all
from monarch_nb.worker.shell.shell import clean_data
from monarch_nb.worker.shell.streams import RunOutput
from monarch_nb.worker.text import encodable
from monarch_nb.worker.user_code import UserCode, awaited_frames, cut_middle, outwards

# ---- completion ----


class Trap:
    here = 1

    @property
    def computed(self) -> int:
        raise AssertionError("a property was run")

    def __getattr__(self, name: str) -> Any:
        raise AssertionError("__getattr__ was run")

    def __dir__(self) -> list[str]:
        raise AssertionError("__dir__ was run")


NAMESPACE: dict[str, Any] = {
    "alpha": 1,
    "_hidden": 2,
    "trap": Trap(),
    "os": os,
    "table": {"lr": 1, "batch size": 2, 3: 4},
    "nested": SimpleNamespace(inner=SimpleNamespace(deep=1)),
    "module": SimpleNamespace(_modules={"layer": SimpleNamespace(_parameters={"weight": 1})}),
}


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("al", ["all", "alpha"]),
        ("x = alp", ["alpha"]),
        ("f(alp", ["alpha"]),
        ("_hid", ["_hidden"]),
        ("trap.", ["computed", "here"]),
        ("trap.computed.", []),
        ("trap.missing.", []),
        ("os.path.joi", ["join"]),
        ("nested.inner.", ["deep"]),
        ("module.layer.", ["weight"]),
        ("table['", ["batch size", "lr"]),
        ('table["l', ["lr"]),
        ("f().", []),
        ("x[0].", []),
        ("nowhere.x", []),
        ("if True:\n    alph", ["alpha"]),
        ("whil", ["while"]),
        ("'text al", ["all", "alpha"]),
    ],
)
def test_completion(code: str, expected: list[str]) -> None:
    assert complete(code, len(code), NAMESPACE)[0] == expected


def test_completion_in_the_middle_and_of_nothing() -> None:
    assert complete("alp + 1", 3, NAMESPACE) == (["alpha"], 0)
    assert "alpha" in complete("", 0, NAMESPACE)[0]
    assert "_hidden" not in complete("", 0, NAMESPACE)[0]


# ---- inspection ----


class Model:
    """A model."""

    def step(self, batch: list[int], lr: float = 0.1, *, trap: Any = Trap()) -> None:  # noqa: B008
        """Do a step."""

    @property
    def computed(self) -> int:
        """What is computed."""
        raise AssertionError("a property was run")

    @classmethod
    def load(cls, path: str) -> None: ...

    @staticmethod
    def help(topic: str = "all") -> None: ...

    def __call__(self, x: int) -> int:
        raise AssertionError("it was called")


class Small(Model):
    def step(self, batch: list[int], lr: float = 0.1, *, trap: Any = Trap()) -> None:  # noqa: B008
        pass


INSPECTED = {"Model": Model, "model": Model(), "small": Small(), "os": os, "text": "hello", "trap": Trap(), "n": [1, 2]}


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        (
            "model.step",
            ["Signature: step(batch: list[int], lr: float = 0.1, *, trap: Any = <Trap>) -> None", "Do a step."],
        ),
        ("Model.step", ["Signature: step(self, batch: list[int], lr: float = 0.1, *, trap: Any = <Trap>) -> None"]),
        ("small.step", ["Docstring: Do a step."]),
        ("model.load", ["Signature: load(path: str) -> None"]),
        ("Model.help", ["Signature: help(topic: str = 'all') -> None"]),
        ("model", ["Signature: model(x: int) -> int", "Type: Model", "Docstring: A model."]),
        ("Model", ["Type: type", "Docstring: A model."]),
        ("model.computed", ["Type: property", "Docstring: What is computed."]),
        ("os.path.join", ["Signature: join(a, *p)", "Type: function"]),
        ("print", ["Type: builtin_function_or_method", "Prints the values"]),
        ("text", ["Type: str", "String form: 'hello'", "Length: 5"]),
        ("n", ["Type: list", "Length: 2"]),
        ("trap", ["Type: Trap"]),
        ("trap.missing", []),
        ("trap.computed.real", []),
        ("nowhere", []),
    ],
)
def test_inspection(name: str, lines: list[str]) -> None:
    shown = " ".join(escapes.strip(describe(name, INSPECTED, UserCode(label))).replace("\n", " ").split())
    assert bool(shown) == bool(lines)
    for line in lines:
        assert line.replace("\n", " ") in shown.replace("( ", "(").replace(", )", ")"), shown


# ---- values ----


def test_values_are_inline_until_they_are_large(tmp_path: Path) -> None:
    small, large = RankResult(run_id="a", rank=1), RankResult(run_id="b", rank=1)
    values.store_value(small, {"x": 1}, str(tmp_path))
    assert unpack_pickle(small.value_inline) == {"x": 1}
    values.store_value(large, numpy.ones(100_000), str(tmp_path / "made"))
    assert large.WhichOneof("value") == "value_blob"
    assert os.listdir(tmp_path / "made") == [large.value_blob]


def test_a_value_that_can_not_be_stored_is_explained(tmp_path: Path) -> None:
    result = RankResult(run_id="b", rank=1)
    values.store_value(result, bytes(1_000_000), "/proc/nowhere")
    assert "can not store" in result.value_error


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (threading.Lock(), "the result, a lock"),
        ([1, threading.Lock()], "the result[1], a lock"),
        ({"a": (1, {"b": threading.Lock()})}, "the result['a'][1]['b'], a lock"),
    ],
)
def test_what_can_not_be_pickled_is_named(value: Any, name: str) -> None:
    result = RankResult()
    values.store_value(result, value, "")
    assert result.value_error.startswith(f"can not pickle {name}: TypeError")


def test_pushed_arrays_are_private_views_of_the_file(tmp_path: Path) -> None:
    import cloudpickle

    blob = tmp_path / "blob"
    values.write_blob(blob, pack_pickle({"a": numpy.zeros(1000)}, cloudpickle.dumps))
    first, second = values.load_variables(blob)["a"], values.load_variables(blob)["a"]
    first += 1
    assert (first.sum(), second.sum()) == (1000, 0)
    values.write_blob(blob, pack_pickle([1], cloudpickle.dumps))
    with pytest.raises(TypeError, match="a list"):
        values.load_variables(blob)


def test_binary_data_of_displays_is_base64() -> None:
    assert clean_data({"image/png": b"\x89PNG", "text/plain": "x"}) == {"image/png": "iVBORw==", "text/plain": "x"}


def test_encodable() -> None:
    assert encodable("a\udc80é") == "a\\udc80é"


# ---- after the fork ----


@pytest.mark.parametrize(
    ("visible", "local_rank", "device"),
    [
        ("", "0", "cpu"),
        (None, "1", "cpu"),
        ("-1", "0", "cpu"),
        ("3", "0", "cuda:0"),
        ("2,3", "1", "cuda:1"),
        ("5", "3", "cuda:0"),
    ],
)
def test_device_name(visible: str | None, local_rank: str, device: str) -> None:
    environment = {"LOCAL_RANK": local_rank} | ({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    assert after_fork.device_name(environment) == device


def test_presets() -> None:
    assert after_fork.presets({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}) == {
        "rank": 3, "world_size": 8, "local_rank": 1,
    }  # fmt: skip


# ---- preload ----


def test_an_open_uvm_device_is_a_trace_of_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    assert preload.cuda_traces() == ""
    monkeypatch.setattr(os, "readlink", lambda path: "/dev/nvidia-uvm")
    monkeypatch.setattr(preload, "other_threads", list)  # pytest's own
    assert "/dev/nvidia-uvm" in preload.cuda_traces()
    with pytest.raises(preload.Unfit, match=r"json can not be preloaded.*initialises CUDA"):
        preload.import_modules(["json"])


def test_initialised_torch_is_a_trace_of_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: True)))
    assert "is_initialized" in preload.cuda_traces()


# ---- the user's frames ----


def label(filename: str) -> str | None:
    return "Cell In[7]" if filename == "<cell>" else None


def run_cell(code: str) -> dict[str, Any]:
    namespace: dict[str, Any] = {"sys": sys}
    exec(compile(code, "<cell>", "exec"), namespace)
    return namespace


def test_whose_files_are_whose(tmp_path: Path) -> None:
    user_code = UserCode(label, str(tmp_path))
    assert user_code.is_users("<cell>")
    assert user_code.is_users(str(tmp_path / "train.py"))
    assert not user_code.is_users("<string>")
    assert not user_code.is_users(os.__file__)
    assert not user_code.is_users(numpy.__file__)
    assert not user_code.is_users(values.__file__)
    assert not user_code.is_users(str(tmp_path / "overlay/lib/python3/site-packages/torch/nn.py"))
    assert user_code.line(str(tmp_path / "pkg" / "a.py"), 4) == "pkg/a.py:4"
    assert user_code.line("/else/where/b.py", 4) == "b.py:4"
    assert user_code.line("<cell>", 3) == "Cell In[7]:3"


def files_of(trace: TracebackType | None) -> list[str]:
    return [frame.f_code.co_filename for frame, _ in traceback.walk_tb(trace)]


def test_lines_of_stacks_and_tracebacks() -> None:
    user_code = UserCode(label)
    frame = run_cell("def f():\n    return sys._getframe()\nframe = f()")["frame"]
    assert user_code.line_of_stack(outwards(frame)) == "Cell In[7]:2"
    assert stacks.describe_stack(user_code, [frame])[0] == '  File "Cell In[7]", line 2, in f'
    with pytest.raises(ValueError, match="Expecting") as caught:
        run_cell("import json\n\njson.loads('{')")
    assert user_code.line_of_traceback(caught.value.__traceback__) == "Cell In[7]:3"
    trimmed = user_code.trim(caught.value.__traceback__, only_users=True)
    assert files_of(trimmed)[-1] == "<cell>"
    assert os.path.basename(files_of(user_code.trim(caught.value.__traceback__))[-1]) == "decoder.py"


def deep(depth: int, functions: int) -> TracebackType:
    """Return the traceback of an error below so many calls of so many functions."""
    code = "".join(f"def f{i}(n):\n    if n <= 1: 1 / 0\n    f{(i + 1) % functions}(n - 1)\n" for i in range(functions))
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(depth + 1000)
    try:
        with pytest.raises(ZeroDivisionError) as caught:
            run_cell(f"{code}f0({depth})")
    finally:
        sys.setrecursionlimit(limit)
    trace: Any = caught.value.__traceback__
    return trace.tb_next.tb_next  # type: ignore[no-any-return]  # without our own frames


@pytest.mark.parametrize(
    ("depth", "functions", "left_out"), [(150, 150, 0), (900, 1, 0), (900, 3, 0), (900, 300, 701), (5_000, 1, 3_001)]
)
def test_only_what_takes_long_to_render_is_cut(depth: int, functions: int, left_out: int) -> None:
    whole = deep(depth, functions)
    assert len(files_of(whole)) == depth + 1
    cut, count = cut_middle(whole)
    assert count == left_out
    assert len(files_of(cut)) == depth + 1 - left_out
    assert len(files_of(whole)) == depth + 1


def test_awaited_frames() -> None:
    async def inner() -> None:
        await asyncio.sleep(10)

    async def outer() -> None:
        await inner()

    async def look() -> list[str]:
        task = asyncio.create_task(outer())
        await asyncio.sleep(0)
        names = [frame.f_code.co_name for frame in awaited_frames(task.get_coro())]
        task.cancel()
        return names

    assert asyncio.run(look()) == ["sleep", "inner", "outer"]


def test_stacks_of_threads() -> None:
    user_code = UserCode(label)
    assert stacks.describe_threads(user_code, None, []) == "idle\n"
    frame = run_cell("def f():\n    return sys._getframe()\nframe = f()")["frame"]
    text = stacks.describe_threads(user_code, [frame], [("loader", frame)])
    assert text.count('File "Cell In[7]", line 2, in f') == 2
    assert "\n\nthread loader:\n" in text


@pytest.mark.parametrize(
    ("files", "keeps"),
    [
        (["/home/me/train.py"], False),
        (["/site-packages/torch/x.py", forming.__file__], False),
        ([forming.__file__], True),
        ([contextlib.__file__, sockets.__file__, "/home/me/train.py"], True),
        ([threading.__file__, "/home/me/train.py", forming.__file__], False),
        ([f"{os.path.dirname(os.__file__)}/site-packages/numpy/x.py", forming.__file__], False),
        ([], False),
    ],
)
def test_who_keeps_the_books_of_groups(files: list[str], keeps: bool) -> None:
    frames: list[Any] = [SimpleNamespace(f_code=SimpleNamespace(co_filename=file)) for file in files]
    assert forming.keeps_books(frames) is keeps


def test_the_state_of_a_thread() -> None:
    state, ticks = thread_state(threading.get_native_id())
    assert state == "R"
    assert ticks >= 0
    assert thread_state(2**22 + 1) == ("", -1)


# ---- results ----


def received(connection: socket.socket) -> list[FromRank]:
    connection.setblocking(False)
    return [FromRank.FromString(frame) for frame in FrameSplitter().feed(connection.recv(1 << 20))]


@pytest.fixture
def pair() -> Any:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    yield ours, theirs
    ours.close()
    theirs.close()


def test_results_are_kept_until_they_are_forgotten(pair: tuple[socket.socket, socket.socket]) -> None:
    results = Results(rank=3)
    for run_id in ("a", "b"):
        results.start(run_id)
        results.finish(RankResult(run_id=run_id))
    results.start("c")
    results.forget(["a"])
    results.attach(pair[0])
    [message] = received(pair[1])
    hello = message.hello
    assert (hello.rank, hello.pid, hello.running, list(hello.done)) == (3, os.getpid(), "c", ["a", "b"])
    assert [result.run_id for result in hello.results] == ["b"]
    assert results.knows("b")
    assert [message.result.run_id for message in received(pair[1])] == ["b"]
    assert results.knows("a")
    assert results.knows("c")
    assert not results.knows("d")


def test_a_peer_that_hung_up_costs_nothing(pair: tuple[socket.socket, socket.socket]) -> None:
    results = Results(rank=0)
    results.attach(pair[0])
    pair[1].close()
    results.finish(RankResult(run_id="a"))
    assert results.knows("a")


def test_a_peer_that_does_not_read_is_given_up(pair: tuple[socket.socket, socket.socket]) -> None:
    with pytest.raises(TimeoutError):
        send_all(pair[0], bytes(10_000_000), timeout_s=0.05)


def test_a_peer_that_does_not_read_is_hung_up_on(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the allocator would wait for the rest of the message, and the rank for somebody who connects again."""
    monkeypatch.setattr(results, "_SEND_TIMEOUT_S", 0.05)
    kept = Results(rank=0)
    kept.attach(pair[0])
    kept.finish(RankResult(run_id="a", bundle_json="x" * 10_000_000))
    pair[1].settimeout(10)
    while pair[1].recv(1 << 20):
        pass
    assert kept.knows("a")


def test_any_descriptor_can_be_sent_on(pair: tuple[socket.socket, socket.socket]) -> None:
    """Above 1023, which `select` does not know, it is after user code has opened as many files."""
    with socket.socket(fileno=fcntl.fcntl(pair[0], fcntl.F_DUPFD, 1024)) as high, pytest.raises(TimeoutError):
        send_all(high, bytes(10_000_000), timeout_s=0.05)


def test_a_result_that_is_too_long_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MAX_FRAME_BYTES", 1000)
    kept = Results(rank=0)
    with pytest.raises(FrameError, match="too long"):
        kept.finish(RankResult(run_id="a", bundle_json="x" * 1000))
    assert not kept.knows("a")


# ---- output files ----


def test_output_files_and_marks(tmp_path: Path) -> None:
    output = RunOutput(str(tmp_path), 7, 2)
    output.switch(0)
    output.write_text(0, "out\n")
    output.switch(1)
    output.write_text(1, "err")
    output.display(Display(content_json="{}", kind=Display.KIND_SHOW))
    output.write_bytes(0, b"\xff")
    cursor = output.cursor()
    assert (cursor.stdout_bytes, cursor.stderr_bytes) == (5, 3)
    assert (tmp_path / "7" / "2.out").read_bytes() == b"out\n\xff"
    frames = FrameSplitter().feed((tmp_path / "7" / "2.marks").read_bytes())
    marks = [Mark.FromString(frame) for frame in frames]
    assert [(mark.stdout_bytes, mark.stderr_bytes) for mark in marks] == [(4, 0), (4, 3), (4, 3)]
    assert marks[1].display.kind == Display.KIND_SHOW


def test_output_files_close_with_the_last_reference(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    output = RunOutput(str(tmp_path), 1, 0)
    output.switch(0)
    output.write_text(0, "x")
    assert len(os.listdir("/proc/self/fd")) == before + 2
    del output
    assert len(os.listdir("/proc/self/fd")) == before
    assert (tmp_path / "1" / "0.out").read_text() == "x"


def test_output_that_can_not_be_written_is_noted_once() -> None:
    output = RunOutput("/proc/nowhere", 1, 0)
    assert "/proc/nowhere/1/0.out" in output.notice
    output.write_text(0, "lost\n")
    assert output.cursor().stdout_bytes == 0
