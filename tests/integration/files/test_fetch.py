"""Files that ranks wrote: kept by syncs and releases, listed, and brought to the notebook."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.files.copies import copies, module, names_in
from monarch_nb.client.files.fetch import FetchReport
from monarch_nb.client.reservations.reservation import Reservation
from monarch_nb.client.reservations.reserve import reserve
from monarch_nb.errors import FilesError
from monarch_nb.provision.local import LocalProvisioner

pytestmark = pytest.mark.usefixtures("without_torch")

WRITES = "open('notes.txt', 'w').write(f'of rank {rank}')"
ONE_PER_NODE = (0, 2, 4, 6)


class TestKept:
    def test_what_ranks_changed_is_kept(self, synced: Reservation) -> None:
        for name in ("edited.txt", "deleted.txt", "replaced.txt", "log.txt"):
            Path(name).write_text("first")
        synced.sync()
        synced.mesh.select([6]).run(
            "import os\nfor name in ('edited.txt', 'log.txt'): open(name, 'a').write(' and theirs')\n"
            "os.remove('replaced.txt'); os.mkdir('replaced.txt'); open('replaced.txt/x', 'w').write('x')"
        )
        for name in ("edited.txt", "replaced.txt"):
            Path(name).write_text("second")
        for name in ("deleted.txt", "log.txt"):
            Path(name).unlink()
        report = synced.sync()
        assert report.kept == {"edited.txt": ("node3",), "replaced.txt": ("node3",)}
        assert report.left == {"log.txt": ("node3",)}
        last = names_in(copies(synced)[3])
        assert last[b"edited.txt"][2] == b"first and theirs"
        assert last[b"replaced.txt/x"][2] == b"x"
        assert b"deleted.txt" not in last
        assert [(copy / "log.txt").exists() for copy in copies(synced)] == [False, False, False, True]

    def test_they_outlive_the_pool(self, pool_home: Path, project: Path) -> None:
        LocalProvisioner().up(nodes=1, procs=2, isolate=True)
        Path("model.py").write_text(module(1))
        released, held = (reserve(name, nodes=1, procs=1) for name in ("released", "held"))
        for dev in (released, held):
            dev.mesh.run(f"import model; open('result', 'w').write('of {dev.name}')")
        released.release()
        said: list[str] = []
        LocalProvisioner().down(force=True, progress=said.append)
        here = [path.name for path in pool_home.iterdir()]
        places = [
            Path(line.partition(": ")[2]) for line in said if line.startswith("kept the files that ranks wrote on node")
        ]
        ours = [place for place in places if place.name.startswith(("released", "held"))]
        assert [names_in(place).keys() for place in ours] == [{b"result"}] * 2
        assert {(place / "result").read_text() for place in ours} == {"of released", "of held"}
        assert here == ["kept"]


class TestFetch:
    def test_a_file_of_a_rank(self, synced: Reservation) -> None:
        synced.mesh.select(ONE_PER_NODE).run("import os; os.mkdir('out'); open('out/last.pt', 'w').write(f'of {rank}')")
        report = synced.fetch("out/last.pt", rank=4)
        assert (report.path, report.files, report.size_bytes) == (Path.cwd() / "out/last.pt", 1, 4)
        assert Path("out/last.pt").read_text() == "of 4"
        with pytest.raises(FilesError, match=r"^node2: there is no nothing$"):
            synced.fetch("nothing", rank=4)
        assert not Path("nothing").exists()
        assert synced.sync().kept == {"out/last.pt": ("node0", "node1", "node3")}, "it is not sent over theirs"

    def test_a_directory_from_each_node(self, synced: Reservation, tmp_path: Path) -> None:
        synced.mesh.select(ONE_PER_NODE).run(
            "import os\nos.makedirs('trace/empty')\nopen('trace/run.sh', 'w').write(f'{rank}')\n"
            "os.chmod('trace/run.sh', 0o750)\nos.symlink('run.sh', 'trace/link')\n"
            "open(b'trace/caf\\xe9\\n', 'w').write('x')"
        )
        for rank in ONE_PER_NODE:
            target = tmp_path / f"from{rank}"
            assert synced.fetch("trace", rank=rank, to=target).files == 2
            assert names_in(target) == names_in(copies(synced)[rank // 2] / "trace")
            assert (target / "run.sh").read_text() == str(rank)

    def test_a_big_file_and_its_progress(self, synced: Reservation) -> None:
        synced.mesh.select([0]).run("import os; open('big.bin', 'wb').write(os.urandom(8 << 20))")
        seen: list[int] = []

        def progress(report: FetchReport) -> None:
            seen.append(report.size_bytes)

        report = synced.fetch("big.bin", progress=progress)
        assert Path("big.bin").read_bytes() == (copies(synced)[0] / "big.bin").read_bytes()
        assert (seen[-1], report.total_bytes) == (8 << 20, 8 << 20)
        assert len(seen) >= 8
        assert seen == sorted(seen)


class TestList:
    def test_names(self, synced: Reservation) -> None:
        Path("model.py").write_text(module(1))
        synced.mesh.run("pass")
        synced.mesh.select([6]).run(
            "import os\nos.makedirs('out/deep')\nopen('out/a.txt', 'w').write('abc')\nos.symlink('a.txt', 'out/link')\n"
            "os.mkfifo('out/pipe')"
        )
        assert [info.path for info in synced.list_files()] == ["model.py"]
        assert [info.path for info in synced.list_files(rank=7)] == ["model.py", "out"]
        found = synced.list_files("out", rank=6)
        assert [(info.path, info.kind) for info in found] == [
            ("a.txt", "file"),
            ("deep", "directory"),
            ("link", "link"),
            ("pipe", "other"),
        ]
        assert found[0].size_bytes == 3
        assert [info.path for info in synced.list_files("out/a.txt", rank=6)] == ["a.txt"]
        with pytest.raises(FilesError, match=r"^node0: there is no out$"):
            synced.list_files("out")
