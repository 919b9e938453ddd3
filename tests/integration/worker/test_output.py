"""Where output goes: files by run, in order, whatever writes and whatever breaks."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from integration.live import Gate, eventually
from integration.worker.harness import RankProcess, TemplateProcess
from monarch_nb.proto.run_pb2 import OUTCOME_OK


def interleaved(rank: RankProcess, number: int) -> list[tuple[str, str]]:
    """Return the pieces of both streams in the order that the marks tell."""
    files = {kind: rank.text(kind, number) for kind in ("out", "err")}
    shown = {"out": 0, "err": 0}
    pieces = []

    def take(kind: str, end: int) -> None:
        if end > shown[kind]:
            pieces.append((kind, files[kind][shown[kind] : end]))
            shown[kind] = end

    for mark in rank.marks(number):
        take("out", mark.stdout_bytes)
        take("err", mark.stderr_bytes)
    take("out", len(files["out"]))
    take("err", len(files["err"]))
    return pieces


def wait_for(rank: RankProcess, text: str, kind: str = "out", number: int = 1) -> None:
    eventually(lambda: text in rank.text(kind, number))


def test_each_run_has_its_own_files(rank: RankProcess) -> None:
    first = rank.run("print('one')")
    second = rank.run("import sys; print('two', file=sys.stderr)")
    assert (rank.text("out", 1), rank.text("err", 1)) == ("one\n", "")
    assert (rank.text("out", 2), rank.text("err", 2)) == ("", "two\n")
    assert (first.end.stdout_bytes, first.end.stderr_bytes, first.end.marks_bytes) == (4, 0, 0)
    assert second.end.stderr_bytes == 4


def test_marks_keep_the_order_of_both_streams(rank: RankProcess) -> None:
    rank.ok("import sys\nprint('a')\nprint('b', file=sys.stderr)\nprint('c')\nprint('d')\nprint('e', file=sys.stderr)")
    assert interleaved(rank, 1) == [("out", "a\n"), ("err", "b\n"), ("out", "c\nd\n"), ("err", "e\n")]


def test_what_c_code_and_child_processes_print_is_in_order(rank: RankProcess) -> None:
    rank.ok(
        "import ctypes, os, subprocess\nlibc = ctypes.CDLL(None)\n"
        "print('python')\nlibc.puts(b'c'); libc.fflush(None)\nos.system('echo system')\n"
        "subprocess.run(['echo', 'child'])\nprint('end')",
    )
    assert rank.text() == "python\nc\nsystem\nchild\nend\n"


def test_a_python_started_with_an_exclamation_mark_shows_lines_at_once(rank: RankProcess) -> None:
    (Path(rank.spec.directory) / "slow.py").write_text("import time\nprint('first')\ntime.sleep(600)\n")
    rank.submit("!python3 slow.py")
    wait_for(rank, "first")
    rank.interrupt()
    assert rank.result().failure.name == "KeyboardInterrupt"


def test_a_task_prints_to_the_run_that_started_it(rank: RankProcess) -> None:
    rank.ok(
        "import asyncio, sys\ngo = asyncio.Event()\n"
        "async def later():\n    await go.wait()\n    print('from the task', file=sys.stderr)\n"
        "task = asyncio.create_task(later())"
    )
    rank.ok("print('second run')\ngo.set()\nawait task")
    assert rank.text("err", 1) == "from the task\n"
    assert (rank.text("out", 2), rank.text("err", 2)) == ("second run\n", "")


HEARTBEAT = """
import os, queue, threading
asked, done = queue.Queue(), queue.Queue()
class Heartbeat(threading.Thread):
    def run(self):
        for text in iter(asked.get, None):
            print(text)
            os.system(f'echo child of {text}')
            display(text)
            nested = threading.Thread(target=print, args=('nested', text)); nested.start(); nested.join()
            done.put(None)
thread = Heartbeat(daemon=True)
thread.start()
def beat(text):
    asked.put(text)
    done.get()
"""


def test_a_thread_prints_to_the_run_that_started_it_while_that_goes_on_then_to_the_one_that_executes(
    rank: RankProcess,
) -> None:
    rank.ok(f"{HEARTBEAT}beat('one')")
    rank.ok("beat('two')")
    rank.ok("print('quiet')")
    rank.ok("beat('four')")
    for number, text in ((1, "one"), (2, "two"), (4, "four")):
        assert rank.text("out", number) == f"{text}\nchild of {text}\nnested {text}\n"
        assert sum(mark.HasField("display") for mark in rank.marks(number)) == 1
    assert rank.text("out", 3) == "quiet\n"


def test_between_runs_a_thread_prints_to_the_last_or_to_its_own_when_the_last_left_no_trace(
    rank: RankProcess, tmp_path: Path
) -> None:
    with closing(Gate(tmp_path)) as gate:
        started = rank.run(
            f"import threading\ndef late():\n    {gate.wait}\n    print('one')\n    {gate.wait}\n    print('two')\n"
            "thread = threading.Thread(target=late); thread.start()"
        )
        assert not started.untouched, "what the thread prints later is to be seen in its cell"
        assert rank.run("x = 1").untouched, "a cell is silent whatever an earlier one left behind"
        gate.open()
        wait_for(rank, "one\n", number=1)
        rank.ok("print('loud')")
        gate.open()
        wait_for(rank, "loud\ntwo\n", number=3)


POOLS = {
    "a pool": (
        "from concurrent.futures import ThreadPoolExecutor\npool = ThreadPoolExecutor(1)\n"
        "def say(text): pool.submit(print, text).result()"
    ),
    "a queue of logging": (
        "import logging, logging.handlers, queue, sys\nrecords = queue.Queue()\n"
        "listener = logging.handlers.QueueListener(records, logging.StreamHandler(sys.stdout))\nlistener.start()\n"
        "log = logging.getLogger('mine'); log.propagate = False\n"
        "log.addHandler(logging.handlers.QueueHandler(records))\n"
        "def say(text): log.error(text); listener.stop(); listener.start()"
    ),
    "multiprocessing's pool of threads": (
        "from multiprocessing.pool import ThreadPool\npool = ThreadPool(1)\ndef say(text): pool.apply(print, [text])"
    ),
}


def test_pools_made_in_an_earlier_run_print_to_the_one_that_uses_them(rank: RankProcess) -> None:
    for place, (kind, made) in enumerate(POOLS.items()):
        rank.ok(f"{made}\nsay('one')")
        rank.ok("say('two')")
        first = 2 * place + 1
        assert (rank.text("out", first), rank.text("out", first + 1)) == ("one\n", "two\n"), kind


def test_a_child_process_prints_to_the_run_that_started_it(rank: RankProcess) -> None:
    rank.ok("import subprocess\nchild = subprocess.Popen('read x; echo late', shell=True, stdin=subprocess.PIPE)")
    rank.ok("child.communicate(b'go\\n')\nprint('second')")
    assert rank.text("out", 1) == "late\n"
    assert rank.text("out", 2) == "second\n"


def test_handlers_made_in_one_run_work_in_later_ones(rank: RankProcess) -> None:
    rank.ok(
        "import logging, sys\n"
        "logging.basicConfig(level='INFO', stream=sys.stderr, format='%(message)s')\n"
        "kept = sys.stdout"
    )
    rank.ok("logging.info('logged'); print('kept', file=kept)")
    assert (rank.text("err", 2), rank.text("out", 2)) == ("logged\n", "kept\n")


def test_what_a_wrapper_holds_back_is_written_when_its_run_ends(rank: RankProcess) -> None:
    number = 0
    for wrapper in (
        "io.TextIOWrapper(sys.stdout.buffer, encoding='utf-8')",
        "io.TextIOWrapper(sys.stdout.detach(), encoding='utf-8')",
        "os.fdopen(1, 'w')",
        "io.open(sys.stdout.fileno(), 'w', closefd=False)",
        "io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, 'w', closefd=False)))",
    ):
        rank.ok(f"import io, os, sys\nsys.stdout = {wrapper}\nprint('first')\nos.system('echo child')")
        failed = rank.run("print('second')\n1 / 0")
        assert failed.end.stdout_bytes == len("second\n")
        rank.ok("sys.stdout = sys.__stdout__\nprint('third')")
        rank.ok("os.system('echo child')\nprint('fourth')")
        words = [sorted(rank.text(number=number + place).split()) for place in (1, 2, 3, 4)]
        assert words == [["child", "first"], ["second"], ["third"], ["child", "fourth"]]
        number += 4


def test_a_wrapper_that_can_not_be_flushed_costs_its_text_only(rank: RankProcess) -> None:
    rank.ok(
        "import sys\n"
        "class Broken:\n"
        "    def write(self, text): pass\n"
        "    def flush(self): raise RuntimeError\n"
        "sys.stdout, sys.stderr = Broken(), object()"
    )
    assert rank.ok("1 + 1") == 2


def test_a_flush_that_waits_can_be_interrupted(rank: RankProcess) -> None:
    rank.submit(
        "import sys, threading\n"
        "class Waits:\n"
        "    def write(self, text): pass\n"
        "    def flush(self): threading.Event().wait()\n"
        "sys.stdout = Waits()"
    )
    eventually(lambda: "flush" in rank.stack())
    rank.interrupt()
    assert rank.result().failure.name == "KeyboardInterrupt"


def test_bytes_and_odd_text(rank: RankProcess) -> None:
    rank.ok(
        "import sys\n"
        "print('a', end='')\n"
        "sys.stdout.buffer.write(b'\\xff\\xfe|')\n"
        "print('\\udc80 ü')\n"
        "sys.stdout.write('x')"
    )
    data = (Path(rank.spec.log_directory) / "1" / "0.out").read_bytes()
    assert data == b"a\xff\xfe|\\udc80 \xc3\xbc\nx"


def test_what_the_streams_say_of_themselves(rank: RankProcess) -> None:
    code = (
        "import io, sys\n"
        "def facts(stream):\n"
        "    told = stream.fileno(), stream.isatty(), stream.encoding, stream.writable(), stream.closed\n"
        "    return *told, isinstance(stream, io.TextIOBase)\n"
        "[facts(sys.stdout), facts(sys.stderr)]"
    )
    assert rank.ok(code) == [(1, False, "utf-8", True, False, True), (2, False, "utf-8", True, False, True)]
    result = rank.run("import sys; sys.stdout.write(5)")
    assert result.failure.name == "TypeError"


def test_a_rank_that_closes_its_streams_goes_on(rank: RankProcess) -> None:
    rank.ok("import os, sys\nsys.stdout.close(); sys.stderr.close()\nprint('still')")
    assert rank.text("out", 1) == "still\n"
    rank.ok("os.close(1); os.close(2)\nprint('python still')")
    assert rank.text("out", 2) == "python still\n"
    rank.ok("os.system('echo again')\nprint('and again')")
    assert rank.text("out", 3) == "again\nand again\n"
    rank.ok("sys.stdout = open('/dev/null', 'w'); sys.stdout.close()")
    rank.ok("print('back')")
    assert rank.text("out", 5) == "back\n"
    rank.ok("sys.stdout = None")
    rank.ok("print('back')")
    assert rank.text("out", 7) == "back\n"


def test_a_full_disk_costs_output_only(rank: RankProcess) -> None:
    # A limit on the size of files refuses writes as a full disk does.
    limit = "import resource, sys\nresource.setrlimit(resource.RLIMIT_FSIZE, ({}, resource.RLIM_INFINITY))"
    rank.ok(limit.format(1000))
    result = rank.run(
        "for i in range(1000): print('line', i)\nprint('x' * 100_000)\nprint('e', file=sys.stderr)\nx = 7"
    )
    assert result.outcome == OUTCOME_OK
    assert result.notice
    assert rank.ok("x") == 7
    rank.ok(limit.format("resource.RLIM_INFINITY"))
    result = rank.run("print('works again')")
    assert result.notice == ""
    assert rank.text() == "works again\n"


def test_a_log_directory_that_can_not_be_made_costs_output_only(template: TemplateProcess) -> None:
    spec = template.rank_spec(0, 1)
    spec.log_directory = "/proc/nowhere"
    [pid] = template.fork_specs([spec])
    rank = RankProcess(template, spec, pid)
    result = rank.run("print('lost')\n1 + 1")
    assert result.outcome == OUTCOME_OK
    assert "/proc/nowhere" in result.notice


def test_a_line_of_ten_megabytes(rank: RankProcess) -> None:
    assert rank.run("print('x' * 10_000_000)").end.stdout_bytes == 10_000_001


def test_the_beginning_of_a_line_does_not_wait_for_its_end(rank: RankProcess, tmp_path: Path) -> None:
    with closing(Gate(tmp_path)) as gate, closing(Gate(tmp_path)) as second_gate:
        rank.submit(
            f"print('step 1 ...', end='')\n{gate.wait}\nprint(' done')\n"
            f"print('step 2 ...', end='')\n{second_gate.wait}\nprint(' done')"
        )
        wait_for(rank, "step 1 ...")
        gate.open()
        wait_for(rank, "step 1 ... done\nstep 2 ...")
        second_gate.open()
        rank.result()
    assert rank.text() == "step 1 ... done\nstep 2 ... done\n"


def test_redirecting_in_python_works(rank: RankProcess) -> None:
    code = (
        "import contextlib, io\n"
        "with contextlib.redirect_stdout(io.StringIO()) as held:\n"
        "    print('held')\n"
        "held.getvalue()"
    )
    assert rank.ok(code) == "held\n"
    rank.ok("print('shown')")
    assert rank.text() == "shown\n"


def test_files_of_old_runs_are_closed(rank: RankProcess) -> None:
    for _ in range(30):
        rank.ok("print(1)")
    rank.ok("import os")
    opened = "[os.path.realpath('/proc/self/fd/' + f) for f in os.listdir('/proc/self/fd')]"
    # What was printed may wait for a flush.
    eventually(lambda: len([path for path in rank.ok(opened) if "runs" in path]) <= 6)


def test_an_update_that_changes_nothing_is_not_stored_again(rank: RankProcess) -> None:
    rank.ok(
        "from IPython.display import clear_output, display\n"
        "class Chart:\n"
        "    def __init__(self, text): self.text = text\n"
        "    def __repr__(self): return 'a chart'\n"
        "    def _repr_mimebundle_(self, **_): return {'application/json': {'a': self.text}}\n"
        "handle = display(Chart('one'), display_id=True)\n"
        "for _ in range(100): handle.update(Chart('one'))\n"
        "handle.update(Chart('two')); handle.update(Chart('one'))\n"
        "clear_output(); handle.update(Chart('one'))"
    )
    assert len(rank.marks(1)) == 5
    rank.ok("handle.update(Chart('one'))")
    assert len(rank.marks(2)) == 1, "nobody knows whether the first cell still shows it"


def test_what_a_cell_left_turned_away_shows_again_in_the_next(rank: RankProcess) -> None:
    rank.ok("import os\nos.dup2(os.open(os.devnull, os.O_WRONLY), 1)\nprint('away')")
    spec = rank.submit("print('here')")
    assert rank.result().outcome == OUTCOME_OK
    assert rank.text("out", spec.number) == "here\n"
