"""The magics in a real kernel, on a real pool."""

from __future__ import annotations

import re
from collections.abc import Callable

from integration.kernels import Kernel
from integration.live import Gate, eventually


def test_cells(kernel: Kernel) -> None:
    assert "already held, 4 ranks alive" in kernel.run("%mesh reserve dev --nodes 2 --procs 2")
    shown = kernel.run("%%mesh\nprint('hello')\nprint('I am', rank)\nlosses = [rank]")
    assert "[0-3] hello" in shown
    assert "[2] I am 2" in shown
    assert kernel.run("twice = %mesh pull rank * 2\ntwice") == "[0, 2, 4, 6]"
    kernel.run("lr = 1e-3\n%mesh push lr")
    assert kernel.run("%%mesh -t 1 -o kept\nlr * 10") != ""
    assert kernel.run("kept") == "[0.01]"
    assert "1 of 4 ranks failed" in kernel.run("%%mesh\n1 / (rank - 1)")
    eventually(lambda: kernel.complete("%%mesh\nloss") == ["losses"])  # a busy rank is not waited for
    assert kernel.complete("%mesh attach ") == ["dev"]
    kernel.run("%%mesh\nimport threading\ndef step(batch, lr=0.1):\n    'Do one.'")
    kernel.run("%%mesh -a\nthreading.Event().wait()")

    def helps(code: str, *parts: str) -> bool:
        shown = kernel.inspect(code)["data"].get("text/plain", "")
        return all(part in shown for part in parts)

    eventually(lambda: helps("%%mesh -t 3\nstep(", "step(batch, lr=0.1)", "Do one.", "On rank 3."))
    assert not kernel.inspect("step(")["found"]
    eventually(lambda: helps("%%mesh\nobject", "object"))
    kernel.run("%mesh interrupt")
    assert "4 of 4 ranks alive" in kernel.run("%mesh status")


def test_lines_that_differ_only_in_numbers_are_one_row(kernel: Kernel) -> None:
    step = "print(f'step 5 loss {2 + rank / 4}')"
    assert "[2] step 5 loss 2.5" in kernel.run(f"%%mesh\n{step}"), "on few ranks who prints four losses wants four"
    assert kernel.run(f"%%mesh --fold numbers\n{step}") == "[0-3] step 5 loss 2.0–2.75"
    kernel.run("%mesh fold numbers")
    shown = kernel.run(f"%%mesh\n{step}\nprint('loss', float('nan') if rank == 2 else rank / 2)")
    assert shown.split("\n") == ["[0-3] step 5 loss 2.0–2.75", "[0-3] loss 0.0–1.5  [2]! loss: nan"]
    assert "[3] step 5 loss 2.75" in kernel.run("%mesh logs -n 2 --fold equal")
    kernel.run("%mesh fold default")


def test_only_some_ranks_are_shown(kernel: Kernel) -> None:
    code = "import sys\nprint('from', rank)\nsys.stderr.write('a warning\\n')\nrank"
    shown = kernel.run(f"%%mesh --show 0\n{code}").splitlines()
    assert (shown[:2], shown[3]) == (["[0] from 0", "[stderr:0] a warning"], "Out[0]: 0")
    assert shown[2].startswith("… 3 lines on stderr of ranks 1-3 not shown: ")
    assert shown[2].endswith(" has them, `%mesh show all` shows all ranks'")
    assert "[3] from 3" in kernel.run(shown[2].split("`")[1]), "%mesh logs --run N"
    kernel.run("%mesh show 0")
    assert "[1] from 1" not in kernel.run(f"%%mesh -o kept\n{code}")
    assert kernel.run("kept") == "[0, 1, 2, 3]", "values are kept of all"
    assert "[3] from 3" in kernel.run(f"%%mesh -t 3\n{code}"), "of a cell without rank 0 all is shown"
    assert "1 of 4 ranks failed" in kernel.run("%%mesh\n1 / (rank - 1)"), "who fails is named"
    kernel.run("%mesh show all")


def test_output_lands_in_the_cell_that_caused_it(kernel: Kernel, gate: Gate, second_gate: Gate) -> None:
    slow = kernel.start(f"%%mesh --timeout 0.3\n{gate.wait}\nprint('late')")
    assert "TimeoutError" in kernel.wait(slow)
    background = kernel.start("%%mesh --noblock\nprint('behind')")
    kernel.wait(background)
    meanwhile = kernel.start(f"print('meanwhile')\n{second_gate.wait}")
    kernel.wait(meanwhile, "meanwhile")
    gate.open(4)
    kernel.wait(slow, "[0-3] late")
    kernel.wait(background, "[0-3] behind")
    second_gate.open()
    assert kernel.wait(meanwhile) == "meanwhile\n"


def test_output_of_a_thread_lands_in_the_cell_that_runs(kernel: Kernel, make_gate: Callable[[], Gate]) -> None:
    """Its own as long as that goes on; when none runs in the last one, also when that has shown nothing."""
    telling, silent, busy = make_gate(), make_gate(), make_gate()
    telling_cell = kernel.start(f"%%mesh\nprint('told')\n{in_a_thread(telling)}")
    busy_cell = kernel.start(f"%%mesh\nprint('busy')\n{busy.wait}")
    kernel.wait(busy_cell, "[0-3] busy")
    telling.open(4)
    kernel.wait(busy_cell, "[3] from the thread 3")
    busy.open(4)
    kernel.wait(busy_cell)
    assert kernel.text(telling_cell) == "[0-3] told"
    silent_cell = kernel.start(f"%%mesh\n{in_a_thread(silent)}")
    kernel.wait(silent_cell)
    empty_cell = kernel.start("%%mesh\nx = 1")
    kernel.wait(empty_cell)
    assert kernel.outputs(empty_cell) == [], "no area of output, although threads of another cell may print"
    silent.open(4)
    kernel.wait(silent_cell, "[3] from the thread 3")


def test_a_bar_of_rich_is_live(kernel: Kernel, gate: Gate) -> None:
    bar = (
        f"with Progress() as bar:\n    task = bar.add_task('training', total=2)\n    bar.advance(task)\n    {gate.wait}"
    )
    cell = kernel.start(f"%%mesh -t 0\nfrom rich.progress import Progress\n{bar}\n    bar.advance(task)")
    kernel.wait(cell, "50%")
    gate.open()
    assert "100%" in kernel.wait(cell)
    assert "50%" not in kernel.text(cell)


def test_who_follows_the_hint_of_what_is_shortened_has_all_of_it(kernel: Kernel) -> None:
    shown = kernel.run("%%mesh\nprint('x' * 5_000)")
    assert "x" * 2_001 not in shown
    assert "[0-3] " + "x" * 5_000 in kernel.run(shown.splitlines()[-1].split("`")[1])
    assert "`-o NAME` keeps all" in kernel.run("%%mesh\n'v' * 30_000")
    kernel.run("%%mesh -o kept\n'v' * 30_000")
    assert kernel.run("print(kept == ['v' * 30_000] * 4)") == "True\n"
    shown = kernel.run("%%mesh -t 1\nraise ValueError('e' * 200_000)")
    assert "e" * 100_000 not in shown
    line = next(line for line in shown.splitlines() if "left out" in line)
    assert "%%mesh -t 1 with %tb prints all" in line
    shown = kernel.run("%%mesh -t 1\n%tb")
    assert "e" * 200_000 in kernel.run(shown.splitlines()[-1].split("`")[1])


def in_a_thread(gate: Gate) -> str:
    """Code that starts a thread that waits at a gate and then prints."""
    return (
        f"import threading\ndef later():\n    {gate.wait}\n    print('from the thread', rank)\n"
        "threading.Thread(target=later).start()"
    )


def test_environments(kernel: Kernel) -> None:
    shown = kernel.run("import numpy\n%mesh doctor")
    assert shown.startswith("dev: 2 nodes × 2 procs")
    assert "fine: monarch_nb" in shown
    assert "imported package" in shown
    assert "none on" not in shown, "the ranks have what this kernel has"
    assert " seen by all" in shown
    shown = kernel.run("%mesh pip --version")
    assert "[0] pip " in shown
    assert "pip ran once" in shown


def test_cells_run_on_the_mesh_while_on(kernel: Kernel) -> None:
    kernel.run("%mesh on -t 0:2")
    assert kernel.run("print('hello')") == "on mesh dev · ranks 0-1\n[0-1] hello"
    assert kernel.run("%%local\nprint('hello')") == "hello\n"
    kernel.run("%mesh off")
    assert kernel.run("print('hello')") == "hello\n"


def test_a_pushed_function_is_as_one_of_the_ranks_cells(kernel: Kernel) -> None:
    kernel.run("import inspect\nlr = 0.1\nclass Net: pass\ndef of_it(net): return isinstance(net, Net)")
    kernel.run("%%mesh\nlr = rank / 2\nclass Net: pass")
    kernel.run("def step(): return lr, str(device), of_it(Net())\ndef fails():\n    return 1 / 0  # here")
    kernel.run("%mesh push step fails net=Net()")
    assert kernel.run("%%mesh -t 3\nstep(), isinstance(net, Net)") == "Out[3]: ((1.5, 'cpu', True), True)"
    assert kernel.run("%%mesh -t 3\nlr = 7\nstep()") == "Out[3]: (7, 'cpu', True)", "later, too"
    assert kernel.run("%%mesh -t 0\nimport inspect\nprint(inspect.getsource(fails))").startswith("[0] def fails():")
    shown = re.sub(r"\x1b\[[\d;]+m", "", kernel.run("%%mesh\nfails()"))
    assert re.search(r"Cell In\[\d+\], line \d+, in fails\(\)", shown), shown
    assert "return 1 / 0  # here" in shown
