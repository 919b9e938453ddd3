"""Cells, pushes and pulls: values, magics, displays, tracebacks, and what may not stay alive."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import numpy
import pytest

from integration.live import eventually
from integration.worker.harness import RankProcess, TemplateProcess, run_all
from monarch_nb.proto.run_pb2 import OUTCOME_ERROR, OUTCOME_OK, Display, Push, RankResult

ANSI = re.compile(r"\x1b\[[0-9;]*m")


def plain(text: str) -> str:
    return ANSI.sub("", text)


def bundle(result: RankResult) -> dict[str, Any]:
    return json.loads(result.bundle_json)["data"] if result.bundle_json else {}


def displays(rank: RankProcess, number: int) -> list[tuple[int, dict[str, Any]]]:
    marks = [mark for mark in rank.marks(number) if mark.HasField("display")]
    return [(mark.display.kind, json.loads(mark.display.content_json)) for mark in marks]


# ---- values ----


@pytest.mark.quick
def test_a_cell_magic_of_the_notebooks_in_the_middle_of_a_cell_says_where_it_belongs(rank: RankProcess) -> None:
    failure = rank.run("x = 1\n%%mesh -t 0\nprint(x)").failure
    assert failure.name == "UsageError"
    assert failure.message == "%%mesh must be the cell's first line: put it above comments and code"


def test_the_last_expression_is_shown_and_returned(rank: RankProcess) -> None:
    result = rank.run("x = 2\nx * 21")
    assert result.outcome == OUTCOME_OK
    assert bundle(result) == {"text/plain": "42"}
    assert rank.value(result) == 42
    assert rank.text() == ""


def test_cells_without_a_value(rank: RankProcess) -> None:
    for code in ("x = 1", "1;", "1 ;  # quiet\n", "None", "", "  \n", "# only a comment", "if 1:\n    2"):
        result = rank.run(code)
        assert result.outcome == OUTCOME_OK
        assert result.bundle_json == ""
        assert result.WhichOneof("value") is None
    assert rank.ok("'a;'") == "a;", "that semicolon is not the end"


def test_what_takes_part_in_every_cell_takes_part(rank: RankProcess) -> None:
    """IPython's events, its handlers of errors and its transformers of syntax trees."""
    rank.ok("shell, seen = get_ipython(), []\nbegun, ended = lambda info: seen.append(info.raw_cell), seen.append")
    rank.ok("shell.events.register('pre_run_cell', begun)")
    rank.ok("x = 1\n")
    rank.ok("shell.events.unregister('pre_run_cell', begun)\nshell.events.register('post_run_cell', ended)")
    rank.ok("x = 2\n")
    rank.ok("shell.events.unregister('post_run_cell', ended)")
    raw_cell, unregistering, *results = rank.ok("[getattr(each, 'success', each) for each in seen]")
    assert (raw_cell, results) == ("x = 1\n", [True, True])
    assert unregistering.startswith("shell.events.unregister('pre_run_cell'")

    rank.ok("shell.set_custom_exc((KeyError,), lambda shell, kind, error, trace, tb_offset=None: seen.append(error))")
    rank.run("{}['missing']\n")
    rank.ok("shell.set_custom_exc((), None)")
    assert rank.ok("type(seen[-1]).__name__") == "KeyError"

    visit = "def visit_Constant(self, node): node.value *= 2; return node"
    rank.ok(f"import ast\nclass Doubled(ast.NodeTransformer):\n    {visit}")
    rank.ok("shell.ast_transformers.append(Doubled())")
    assert rank.ok("21\n") == 42
    rank.ok("shell.ast_transformers.clear()")


def test_a_line_may_be_a_command(rank: RankProcess) -> None:
    rank.ok("from IPython.core.macro import Macro\nsix = Macro('y = 6')")
    rank.ok("six")
    assert rank.ok("y") == 6
    rank.ok("echo = 1")
    rank.ok("alias say_it echo said")
    rank.ok("say_it - 1")
    assert "said - 1" in rank.text()
    rank.ok("say_it = 3")
    assert rank.ok("say_it - 1") == 2


def test_rich_values(rank: RankProcess) -> None:
    code = "class Rich:\n    def _repr_html_(self): return '<b>x</b>'\n    def __repr__(self): return 'x'\nRich()"
    assert bundle(rank.run(code)) == {"text/plain": "x", "text/html": "<b>x</b>"}


def test_a_value_that_nobody_wants_is_not_pickled(rank: RankProcess) -> None:
    result = rank.run("object.__new__(type('T', (), {'__reduce__': lambda self: 1 / 0}))", want_value=False)
    assert result.outcome == OUTCOME_OK
    assert result.WhichOneof("value") is None


def test_large_values_travel_as_blobs(rank: RankProcess) -> None:
    result = rank.run("import numpy; numpy.arange(1_000_000)")
    assert result.WhichOneof("value") == "value_blob"
    assert rank.value(result).sum() == sum(range(1_000_000))
    names = [path.name for path in Path(rank.spec.blob_directory).iterdir()]
    assert names.count(result.value_blob) == 1
    assert not [name for name in names if name.startswith(".")]


def test_an_unpicklable_value_is_named_and_the_run_is_still_good(rank: RankProcess) -> None:
    result = rank.run("import threading; {'a': 1, 'b': [threading.Lock()]}")
    assert result.outcome == OUTCOME_OK
    assert "text/plain" in bundle(result)
    assert "the result['b'][0], a lock" in result.value_error
    assert "cannot pickle" in result.value_error
    assert "generator" in rank.run("(n for n in [])").value_error


def test_classes_of_cells_travel(rank: RankProcess) -> None:
    rank.ok("class Point:\n    def __init__(self): self.x = 5")
    assert rank.ok("Point()").x == 5


# ---- push and pull ----


def test_push_and_pull(rank: RankProcess) -> None:
    assert rank.push({"lr": 3e-4, "f": lambda x: x + 1}).outcome == OUTCOME_OK
    assert rank.ok("f(lr)") == 1 + 3e-4
    result = rank.pull("lr * 2")
    assert rank.value(result) == 6e-4
    assert result.bundle_json == ""


def test_pull_of_none_and_of_what_does_not_exist(rank: RankProcess) -> None:
    assert rank.pull("None").outcome == OUTCOME_OK
    result = rank.pull("missing")
    assert (result.outcome, result.failure.name) == (OUTCOME_ERROR, "NameError")
    assert result.failure.where == "Pulled expression:1"
    assert "In[" not in result.failure.traceback
    assert rank.pull("1 +").failure.name == "SyntaxError"
    assert "generator" in rank.pull("(n for n in [])").value_error


def test_a_pushed_array_is_shared_until_it_is_written_to(rank: RankProcess) -> None:
    array = numpy.zeros(4_000_000)
    assert rank.push({"array": array}).outcome == OUTCOME_OK
    private = "int(open('/proc/self/smaps_rollup').read().split('Anonymous:')[1].split()[0])"
    before = rank.ok(private)
    assert rank.ok("float(array.sum())") == 0
    assert rank.ok(private) - before < 8_000
    rank.ok("array += 1")
    assert rank.ok("float(array.sum())") == 4_000_000
    assert rank.push({"array": array}).outcome == OUTCOME_OK
    assert rank.ok("float(array.sum())") == 0


def test_a_bad_push_changes_nothing(rank: RankProcess) -> None:
    directory = Path(rank.spec.blob_directory)
    directory.mkdir(exist_ok=True)
    (directory / "bad").write_bytes(b"no pickle")
    for name in ("bad", "missing", "../template"):
        rank.send_run(rank.spec_of(push=Push(blob=name)))
        result = rank.result()
        assert result.outcome == OUTCOME_ERROR
        assert result.failure.message
        assert "monarch_nb/worker" not in plain(result.failure.traceback)
    assert rank.ok("1 + 1") == 2


# ---- IPython ----


def test_magics(rank: RankProcess) -> None:
    rank.ok("%timeit -n 2 -r 1 sum(range(10))")
    assert "loop" in rank.text()
    rank.ok("!echo from the shell")
    assert rank.text() == "from the shell\n"
    assert rank.ok("names = !ls /proc/self/status\nlist(names)") == ["/proc/self/status"]
    rank.ok("%%writefile mymodule.py\nclass Thing: pass\n")
    assert rank.ok("from mymodule import Thing; Thing.__module__") == "mymodule"
    rank.ok("%%bash\necho $((6 * 7))")
    assert rank.text() == "42\n"
    assert rank.ok("%%capture captured\nprint('hidden')") is None
    assert rank.ok("captured.stdout") == "hidden\n"
    assert rank.ok("%pwd") == rank.spec.directory
    assert rank.ok("%%time\n6 * 7") == 42
    assert "Wall time" in rank.text()


def test_a_line_that_is_valid_python_and_a_magic(rank: RankProcess) -> None:
    rank.ok("pwd = 3")
    assert rank.ok("pwd") == 3
    rank.ok("del pwd")
    assert rank.ok("pwd") == rank.spec.directory


def test_help(rank: RankProcess) -> None:
    rank.ok("len?")
    assert "Return the number of items" in plain(json.dumps(displays(rank, 1)) + rank.text())


def test_top_level_await_and_background_tasks(rank: RankProcess) -> None:
    assert rank.ok("import asyncio\nawait asyncio.sleep(0.01, 'slept')") == "slept"
    rank.ok(
        "ticks = []\nasync def tick():\n    while True:\n        ticks.append(1)\n        await asyncio.sleep(0.005)\n"
    )
    rank.ok("task = asyncio.create_task(tick())")
    rank.ok("before = len(ticks)\nwhile len(ticks) < before + 5: await asyncio.sleep(0.01)")
    rank.ok(
        "before = len(ticks)\nasync def tell():\n"
        "    while len(ticks) < before + 10: await asyncio.sleep(0.01)\n"
        "    open('ticked', 'w').close()\n"
        "telling = asyncio.create_task(tell())"
    )
    eventually(lambda: (Path(rank.spec.directory) / "ticked").exists())  # it ticks while the rank is idle
    rank.ok("task.cancel()")
    assert rank.ok(
        "async def f():\n"
        "    async with asyncio.timeout(5):\n"
        "        return await asyncio.gather(asyncio.sleep(0, 1), asyncio.sleep(0, 2))\n"
        "await f()"
    ) == [1, 2]
    assert rank.ok("sum([await asyncio.sleep(0, i) for i in range(4)])") == 6


def test_asyncio_run_fails_as_in_a_kernel(rank: RankProcess) -> None:
    result = rank.run("import asyncio\nasync def f(): pass\nasyncio.run(f())")
    assert result.failure.name == "RuntimeError"
    assert "running event loop" in result.failure.message


def test_context_variables_last(rank: RankProcess) -> None:
    rank.ok("import contextvars\nv = contextvars.ContextVar('v')\nv.set(1);")
    assert rank.ok("v.get()") == 1
    rank.ok("import asyncio\nawait asyncio.sleep(0)\nv.set(2);")
    assert rank.ok("v.get()") == 2


def test_displays(rank: RankProcess) -> None:
    rank.ok(
        "from IPython.display import display, HTML, clear_output\n"
        "print('before')\nhandle = display(HTML('<i>a</i>'), display_id='one')\n"
        "handle.update(HTML('<i>b</i>'))\nclear_output(wait=True)\nprint('after')"
    )
    (show, shown), (update, updated), (clear, cleared) = displays(rank, 1)
    assert (show, update, clear) == (Display.KIND_SHOW, Display.KIND_UPDATE, Display.KIND_CLEAR)
    assert shown["data"]["text/html"] == "<i>a</i>"
    assert shown["transient"] == {"display_id": "one"}
    assert updated["data"]["text/html"] == "<i>b</i>"
    assert cleared == {"wait": True}
    assert [mark.stdout_bytes for mark in rank.marks(1)] == [7, 7, 7]


def test_figures_are_shown_at_the_end_of_their_cell(rank: RankProcess) -> None:
    rank.ok("import matplotlib.pyplot as plt\nplt.plot([1, 2, 3]);")
    [(kind, content)] = displays(rank, 1)
    assert kind == Display.KIND_SHOW
    assert content["data"]["image/png"].startswith("iVBOR")
    assert "Figure" in content["data"]["text/plain"]
    rank.ok("pass")
    assert displays(rank, 2) == []


def test_autoreload(rank: RankProcess) -> None:
    module = Path(rank.spec.directory) / "reloaded.py"
    module.write_text("value = 1")
    rank.ok("%load_ext autoreload\n%autoreload 2\nimport reloaded")
    module.write_text("value = 22  # longer")
    assert rank.ok("reloaded.value") == 22


# ---- failures ----


def test_equal_failures_have_equal_tracebacks(template: TemplateProcess) -> None:
    ranks = template.fork(3)
    code = "def f(x):\n    return {}[x]\n\nf('missing')"
    results = run_all(ranks, code, cell_number=7)
    assert len({result.failure.traceback for result in results}) == 1
    failure = results[0].failure
    assert (failure.name, failure.message, failure.where) == ("KeyError", "'missing'", "Cell In[7]:2")
    text = plain(failure.traceback)
    assert "Cell In[7], line 4" in text
    assert text.rstrip().endswith("KeyError: 'missing'")
    assert "\x1b[" in failure.traceback
    assert "interactiveshell" not in text
    assert "monarch_nb" not in text


def test_a_failure_without_a_cell_number_is_named_by_its_run(rank: RankProcess) -> None:
    rank.ok("pass")
    assert rank.run("1/0").failure.where == "Run 2:1"


def test_the_innermost_line_of_the_users_is_named(rank: RankProcess) -> None:
    (Path(rank.spec.directory) / "train.py").write_text("import json\n\ndef step():\n    json.loads('{')\n")
    result = rank.run("import train\ntrain.step()")
    assert result.failure.where == "train.py:4"
    assert "json" in result.failure.traceback


def test_syntax_errors(rank: RankProcess) -> None:
    for code in ("def f(:", "x = = 1", "  indented\nnot", "return 5", "%%time\nx = = 1", "'unterminated"):
        result = rank.run(code, cell_number=4)
        assert result.outcome == OUTCOME_ERROR
        assert result.failure.name in ("SyntaxError", "IndentationError", "NameError")
        assert result.failure.traceback
        assert "monarch_nb" not in result.failure.traceback
        assert rank.text("err") == ""
    failure = rank.run("a = 1\nx = = 1", cell_number=4).failure
    assert "Cell In[4], line 2" in plain(failure.traceback)
    assert failure.where == "Cell In[4]:2"
    assert failure.message.endswith("(Cell In[4], line 2)")
    (Path(rank.spec.directory) / "broken.py").write_text("x = = 1")
    failure = rank.run("import broken").failure
    assert failure.name == "SyntaxError"
    assert "broken.py" in failure.traceback


def test_nothing_stands_between_a_cell_and_an_interrupt(rank: RankProcess) -> None:
    assert rank.ok("sum(get_ipython().events.callbacks.values(), [])") == [], "what is raised in a callback is lost"


def test_each_cell_warns_with_its_own_line(rank: RankProcess) -> None:
    for number, code in enumerate(("import warnings\nwarnings.warn('careful')",) * 2 + ("x = 1\nx is 1",), 4):
        rank.ok(code, cell_number=number)
        name, source = rank.text("err").splitlines()
        assert name.startswith(f"Cell In[{number}]:2: ")
        assert source.strip() == code.splitlines()[1]


def test_exit_fails_and_the_rank_lives(rank: RankProcess) -> None:
    rank.ok("x = 5")
    for code in ("import sys; sys.exit()", "exit()", "quit()", "exit", "raise SystemExit(3)"):
        result = rank.run(code)
        assert (result.outcome, result.failure.name) == (OUTCOME_ERROR, "SystemExit")
        assert "%mesh restart" in result.failure.message
    assert rank.ok("x") == 5


def test_sys_exit_in_a_background_task_does_not_end_the_rank(rank: RankProcess) -> None:
    rank.ok("import asyncio, sys\nasync def leave(): sys.exit(3)\ntask = asyncio.create_task(leave())")
    assert rank.ok("await asyncio.sleep(0.05)\n'alive'") == "alive"


def test_input_is_a_clear_error(rank: RankProcess) -> None:
    for code in ("input('name? ')", "import getpass; getpass.getpass()"):
        failure = rank.run(code).failure
        assert failure.name == "StdinNotImplementedError"
        assert "push" in failure.message


def test_a_script_that_fails_fails_its_cell(rank: RankProcess) -> None:
    script = Path(rank.spec.directory) / "failing.py"
    script.write_text("import sys\nprint('began')\nsys.exit(3) if sys.argv[1:] else 1 / 0\n")
    result = rank.run("%run failing.py\n5")
    assert (result.failure.name, result.failure.where) == ("ZeroDivisionError", "failing.py:3")
    assert result.WhichOneof("value") is None
    assert rank.run("%run failing.py x").failure.name == "SystemExit"
    assert rank.ok("5") == 5


def test_a_script_that_is_not_there_is_one_clean_error(rank: RankProcess) -> None:
    package = Path(rank.spec.directory) / "nomain"
    package.mkdir()
    (package / "__init__.py").touch()
    for code, said in {
        "%run -m nomain": "No module named nomain.__main__; 'nomain' is a package and cannot be directly executed",
        "%run -m nomain.nope": "'nomain.nope' is not a valid modulename on sys.path",
        "%run bad.py": "File `'bad.py'` not found.",
    }.items():
        failure = rank.run(code).failure
        assert (failure.name, failure.message) == ("UsageError", said)
        assert failure.traceback.count("\n") == 0


def test_cells_inside_cells(rank: RankProcess) -> None:
    assert rank.ok("get_ipython().run_cell('1/0').success") is False
    assert "ZeroDivisionError" in rank.text("err")
    assert rank.ok("get_ipython().run_cell('x = = 1').success") is False
    assert "SyntaxError" in rank.text("err")
    assert rank.ok("get_ipython().run_cell('y = 6 * 7'); y") == 42


def test_magics_work_after_a_cell_has_deleted_all_names(rank: RankProcess) -> None:
    for _ in range(2):
        rank.ok("for name in list(globals()):\n    if not name.startswith('__'):\n        del globals()[name]")
        assert rank.ok("x = !echo 3\nx[0]") == "3"


def test_reset_keeps_what_every_rank_starts_with(rank: RankProcess) -> None:
    rank.ok("x = 1\nrank")
    rank.ok("%reset -f")
    assert rank.run("x").failure.name == "NameError"
    assert rank.ok("rank, dist.__name__, str(device)") == (0, "torch.distributed", "cpu")


def test_exception_groups_notes_causes_and_odd_errors(rank: RankProcess) -> None:
    result = rank.run("raise ExceptionGroup('several', [ValueError('a'), KeyError('b')])")
    assert result.failure.name == "ExceptionGroup"
    assert "ValueError: a" in result.failure.traceback
    assert "Run 1, line 1, in <module>" in result.failure.traceback
    assert "interactiveshell" not in result.failure.traceback
    result = rank.run("try:\n    1/0\nexcept Exception as e:\n    raise ValueError('worse') from e")
    assert "ZeroDivisionError" in result.failure.traceback
    assert "interactiveshell" not in result.failure.traceback
    result = rank.run("class Odd(Exception):\n    def __str__(self): raise RuntimeError('no')\nraise Odd")
    assert result.failure.name == "Odd"
    assert rank.run("raise KeyboardInterrupt").failure.name == "KeyboardInterrupt"
    result = rank.run("raise ValueError('x' * 10_000_000)")
    assert len(result.failure.message) < 100_000
    assert len(result.failure.traceback) < 100_000
    assert rank.run("def f(): f()\nf()").failure.name == "RecursionError"
    trace = plain(rank.run("def f(n): 1 / n if n < 1 else f(n - 1)\nf(300)").failure.traceback)
    assert trace.count(", in f(n)") + int(re.findall(r"f at line 1 \((\d+) times\)", trace)[0]) == 301, trace
    trace = rank.run("import sys\nsys.setrecursionlimit(9_000)\nf(3000)").failure.traceback
    assert trace.startswith("… 1,002 frames in the middle left out …")


def test_text_that_is_no_unicode(rank: RankProcess) -> None:
    result = rank.run("raise ValueError('\\udc80')")
    assert result.failure.message == "\\udc80"
    assert bundle(rank.run("'\\udc80'"))["text/plain"] == "'\\udc80'"
    assert rank.run("class T:\n    def __reduce__(self): raise ValueError('\\udc80')\nT()").value_error
    rank.ok("display({'text/plain': '\\udc80'}, raw=True)")
    assert displays(rank, 4)[0][1]["data"] == {"text/plain": "\udc80"}


def test_errors_of_magics(rank: RankProcess) -> None:
    result = rank.run("%no_such_magic")
    assert result.outcome == OUTCOME_ERROR
    assert "no_such_magic" in result.failure.traceback
    assert rank.run("%%no_such_magic\nx").outcome == OUTCOME_ERROR
    assert rank.run("get_ipython().showtraceback()").outcome == OUTCOME_OK


def test_a_repr_that_raises_does_not_fail_the_cell_silently(rank: RankProcess) -> None:
    result = rank.run("class Bad:\n    def __repr__(self): raise ValueError('bad repr')\nBad()", want_value=False)
    assert "bad repr" in plain(result.failure.traceback + rank.text("err"))


def test_a_five_megabyte_cell_and_one_of_many_lines(rank: RankProcess) -> None:
    assert rank.ok("text = '''" + "x" * 5_000_000 + "'''\nlen(text)") == 5_000_000
    assert rank.ok("\n".join(f"x{i} = {i}" for i in range(20_000)) + "\nx19999") == 19_999


@pytest.mark.parametrize(
    "code",
    [
        "import ctypes; ctypes.string_at(0)",
        (
            "import ctypes\nfrom torch.distributed.elastic.multiprocessing.errors import record\n"
            "@record\ndef main():\n    ctypes.string_at(0)\nmain()"
        ),
    ],
    ids=["plain", "record"],
)
def test_a_segmentation_fault_leaves_its_stack_where_people_do_not_read(template: TemplateProcess, code: str) -> None:
    [rank] = template.fork()
    rank.submit(code)
    while (ended := template.receive_kind("exit")).pid != rank.pid:
        pass
    assert os.waitstatus_to_exitcode(ended.wait_status) == -signal.SIGSEGV
    assert "Segmentation fault" in Path(rank.spec.stacks_file).read_text()
    assert rank.text("err") == "", "with our own frames it is no text for people"


@pytest.mark.parametrize("first", ["import tqdm.notebook", "import tqdm"])
def test_tqdm_notebook_is_a_text_bar(rank: RankProcess, first: str) -> None:
    rank.ok(first)
    code = "from tqdm.notebook import tqdm, trange\nfor _ in tqdm(range(10), desc='steps', display=False): pass"
    rank.ok(f"{code}\nfor _ in trange(3, colour='green', leave=False): pass")
    assert "steps: 100%" in rank.text("err")
    assert "| 10/10 [" in rank.text("err")
    assert not rank.text("out")


# ---- after an error ----


def test_the_last_error_stays_as_in_ipython(rank: RankProcess) -> None:
    rank.ok("%tb")
    assert "No traceback available" in rank.text("err")
    failed = rank.run("import sys\ndef step(batch):\n    return 1 / batch\nstep(0)")
    rank.ok("%tb")
    assert rank.text("err").rstrip("\n") == failed.failure.traceback
    assert rank.ok("sys.last_type is ZeroDivisionError and sys.last_type is type(sys.last_value)") is True
    assert rank.ok("getattr(sys, 'last_exc', sys.last_value) is sys.last_value") is True
    assert rank.ok("dict(sys.last_traceback.tb_next.tb_frame.f_locals)") == {"batch": 0}
    rank.ok("6 * 7")
    assert rank.ok("repr(sys.last_value)") == "ZeroDivisionError('division by zero')"
    rank.ok("%tb")
    hollow = plain(failed.failure.traceback).replace("in step(batch)", "in step(…)")
    assert plain(rank.text("err")).rstrip("\n") == hollow
    rank.run("x = = 1")
    rank.ok("%tb")
    assert "SyntaxError" in rank.text("err")


def test_no_other_debugger_without_a_keyboard(rank: RankProcess) -> None:
    rank.run("import sys\nbatch = 0\n1 / batch")
    for code in ("%debug", "import pdb; pdb.Pdb().set_trace(); 1"):
        failure = rank.run(code).failure
        assert failure.name == "StdinNotImplementedError"
        assert "a rank has no keyboard" in failure.message
        assert rank.ok("repr(sys.last_value)") == "ZeroDivisionError('division by zero')"
