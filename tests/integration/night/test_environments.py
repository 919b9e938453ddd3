"""`doctor` and `pip` on a real pool."""

from __future__ import annotations

import socket
import zipfile
from pathlib import Path

import pytest

from integration.live import TIMEOUT_S, Recorder, kill, pids_of
from monarch_nb.client.doctor.environments import pip_code
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.client.reservations.reservation import Reservation
from monarch_nb.errors import RunFailed


class TestDoctor:
    def test_one_environment_is_fine(self, dev: Reservation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        diagnosis = dev.doctor()
        differing = {difference.what for difference in diagnosis.differences}
        assert differing <= {"disk of the node's directory", "/dev/shm", "open files"}, "this machine may be small"
        fine = ", ".join(diagnosis.fine)
        assert "Python " in fine
        assert "torch 2." in fine
        assert "clocks" in fine
        assert f"{dev.files.root} seen by all" in fine, "from another directory, too"
        assert diagnosis.notes == ()
        assert list(tmp_path.iterdir()) == []


def wheel(directory: Path, name: str) -> Path:
    """A tiny package."""
    path = directory / f"{name}-1.0-py3-none-any.whl"
    facts = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", "ANSWER = 42\n")
        archive.writestr(f"{facts}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{facts}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{facts}/RECORD", "")
    return path


class TestPip:
    def test_it_installs_once_where_all_nodes_share_one_environment(self, mesh: Mesh, tmp_path: Path) -> None:
        target = tmp_path / "target"
        look = "import importlib.util, sys\nimportlib.util.find_spec('tiny_thing') is not None"
        mesh.run(f"import sys; sys.path.append({str(target)!r})")
        assert mesh.run(look).values == [False] * 8
        ran: list[tuple[int, ...]] = []

        def run(chosen: Mesh, code: str) -> None:
            ran.append(chosen.ranks)
            chosen.run(code)

        report = mesh.reservation.pip(
            *("install", "--no-index", "--no-deps", "--target", str(target), str(wheel(tmp_path, "tiny_thing"))),
            run=run,
        )
        assert ran == [(0,)]
        assert report.lines() == [
            "pip ran once: all nodes share one environment",
            "modules that are imported already stay as they are until %mesh restart",
        ]
        assert mesh.run(look).values == [True] * 8, "also ranks that had found nothing there look again"
        mesh.run(f"sys.path.remove({str(target)!r}); sys.modules.pop('tiny_thing', None)")

    def test_the_first_rank_that_lives_runs_it(self, mesh: Mesh) -> None:
        kill(pids_of(mesh)[0])
        ran: list[tuple[int, ...]] = []
        report = mesh.reservation.pip("--version", run=lambda chosen, code: ran.append(chosen.ranks))
        assert ran == [(1,)]
        assert str(report) == "pip ran once: all nodes share one environment"

    def test_it_fails_calmly_with_its_own_words_above(self, mesh: Mesh) -> None:
        recorder = Recorder()
        with pytest.raises(RunFailed, match="pip install --no-index no-such-thing failed with exit status 1") as failed:
            mesh.reservation.pip(
                *("install", "--no-index", "no-such-thing"),
                run=lambda chosen, code: chosen.run(code, listener=recorder),
            )
        assert "Traceback" not in "\n".join(failed.value._render_traceback_())
        assert "No matching distribution found for no-such-thing" in recorder.text(0, "stderr")
        assert mesh.run("'pip' in dir()").values == [False] * 8

    def test_an_interrupt_ends_it(self, mesh: Mesh, tmp_path: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            url = f"http://127.0.0.1:{silent.getsockname()[1]}/simple"
            arguments = ["download", "--index-url", url, "--dest", str(tmp_path), "no-such-thing"]
            run = mesh.select([0]).submit(pip_code(arguments))
            silent.settimeout(TIMEOUT_S)
            connection, _ = silent.accept()
            with connection:
                connection.settimeout(TIMEOUT_S)
                assert connection.recv(1 << 16).startswith(b"GET /simple/no-such-thing/")  # it waits for an answer now
                assert run.interrupt().stopped == (0,)
                assert connection.recv(1) == b"", "the process is gone"
        with pytest.raises(RunFailed, match="KeyboardInterrupt"):
            run.result(TIMEOUT_S)
