"""What the notebook says about files: before cells, and in `%mesh sync`, `fetch`, `ls` and `reserve`."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monarch_nb.client.files.fetch import FetchReport, FileInfo
from monarch_nb.client.files.local_tree import Report
from monarch_nb.client.files.transfer import Differences, Given, Pending, SyncReport
from monarch_nb.errors import FilesError, MonarchNbError, NodeUnreachable, RunFailed
from monarch_nb.notebook.cells import progress as progress_module
from monarch_nb.notebook.cells.following import RunInterrupted
from monarch_nb.notebook.cells.progress import bar
from monarch_nb.notebook.cells.sent_files import left_out, sent_lines
from monarch_nb.notebook.commands.files import dry_run
from monarch_nb.proto import files_pb2 as pb
from unit.notebook.fakes import FakeClient, FakeFiles, Notebook, hello

NODES = ["node0", "node1"]


def local(
    *, large: dict[bytes, int] | None = None, refused: dict[bytes, str] | None = None, notice: str = ""
) -> Report:
    return Report(sorted((large or {}).items()), sorted((refused or {}).items()), notice, b"/project", {}, 10**8)


@pytest.fixture
def copied(held: Notebook, client: FakeClient) -> FakeFiles:
    """The files of "dev", copied to both nodes."""
    files = client.held["dev"].files
    files.copies = True
    return files


class TestLines:
    def test_what_was_sent(self) -> None:
        for report, lines in (
            (SyncReport(3, 12_000, 0, 9, 16, 0.04), ["sent 3 files, 12 kB, to 16 nodes in 0.04 s"]),
            (SyncReport(1, 26, 0, 9, 1, 1.26), ["sent 1 file, 26 B, to 1 node in 1.3 s"]),
            (SyncReport(2, 0, 0, 0, 4, 0.02), ["sent 2 files to 4 nodes in 0.02 s"]),
            (SyncReport(1, 26, 2, 9, 2, 0.02), ["sent 1 file, 26 B, to 2 nodes, removed 2 in 0.02 s"]),
            (SyncReport(removed=1, nodes=2, seconds=0.02), ["removed 1 file there in 0.02 s"]),
            (SyncReport(nodes=4), ["the files are on 4 nodes already"]),
            (SyncReport(nodes=4, kept={"a": ("node0",)}), []),
        ):
            assert sent_lines(report, NODES) == lines

    def test_what_went_where(self) -> None:
        for given, line in (
            ({"node0": Given(3), "node1": Given(3)}, "sent 3 files, 12 kB, to 2 nodes in 0.04 s"),
            (
                {"node0": Given(2), "node1": Given(1)},
                "sent 2 files to node0, 1 file to node1, 12 kB together in 0.04 s",
            ),
            (
                {"node0": Given(1, 2), "node1": Given(1)},
                "sent 1 file to every node, 12 kB together, removed 2 files on node0 in 0.04 s",
            ),
        ):
            most = max(one.files for one in given.values()), max(one.removed for one in given.values())
            report = SyncReport(most[0], 12_000, most[1], nodes=2, seconds=0.04, given=given)
            assert sent_lines(report, NODES) == [line]

    def test_what_is_left_out_is_named_up_to_five(self) -> None:
        large = {b"%d.bin" % number: 200_000_000 for number in range(7)}
        lines = left_out({"": local(large=large, refused={b"x": "it is a socket"}, notice="looking at all files")})
        assert lines[0].startswith("too large: 0.bin (200 MB), 1.bin (200 MB),")
        assert ", 4.bin (200 MB), and 2 more; over the limit of 100 MB; max-file-size in" in lines[0]
        assert lines[1:] == ["not synced: x (it is a socket)", "looking at all files"]

    def test_a_bar_says_how_fast_and_how_long_once_that_is_known(self) -> None:
        steady = bar("sending files", 25_000_000, 100_000_000, 0.5)
        assert steady == "sending files █████░░░░░░░░░░░░░░░ 25 MB of 100 MB, 50 MB/s, 1.5 s left"
        assert bar("reading files", 10**9, 50 * 10**9, 1.0).endswith("1.0 GB of 50 GB, 1.0 GB/s, 49 s left")
        assert bar("sending files", 10**6, 10**8, 0.01) == "sending files ░░░░░░░░░░░░░░░░░░░░ 1.0 MB of 100 MB"
        assert bar("fetching", 10, 10, 0.0) == "fetching ████████████████████ 10 B of 10 B"

    def test_a_dry_run_names_files_and_counts_them(self) -> None:
        pending = Pending([("a.py", 10), ("lib/b.py", 20)], ["old.py"], local={"": local(large={b"big": 10**9})})
        assert dry_run(pending, NODES, overwrite=False)[:4] == [
            "send    a.py  10 B",
            "send    lib/b.py  20 B",
            "remove  old.py",
            "2 files, 30 B",
        ]
        assert dry_run(pending, NODES, overwrite=False)[4].startswith("too large: big (1.0 GB)")
        nothing = ["nothing would be sent: the files are on the nodes already"]
        assert dry_run(Pending(), NODES, overwrite=False) == nothing
        many = Pending([(f"{number}.py", 1) for number in range(60)], [], unknown=True)
        assert dry_run(many, NODES, overwrite=False)[-2:] == [
            "… and 10 more",
            "60 files, 60 B; nodes take only what they lack",
        ]

    def test_a_dry_run_says_what_becomes_of_what_ranks_wrote_and_removed(self) -> None:
        there = Differences({"a.py": ("node1",), "log": ("node0", "node1")}, {"b.py": ("node0",)})
        pending = Pending([("a.py", 10)], ["log"], there=there)
        assert dry_run(pending, NODES, overwrite=False)[:2] == [
            "keep    a.py, which ranks wrote on node1",
            "keep    log, which ranks wrote on every node",
        ]
        assert dry_run(pending, NODES, overwrite=True)[:3] == [
            "replace a.py, which ranks wrote on node1",
            "remove  log, which ranks wrote on every node",
            "restore b.py, which ranks removed on node0",
        ]
        gone = "ranks removed pkg/a.py on node1: %mesh sync --overwrite sends yours again"
        there = Differences(missing={"pkg/a.py": ("node1",)})
        assert dry_run(Pending(there=there), NODES, overwrite=False) == [gone]
        edited = Pending([("pkg/a.py", 10)], there=there)
        assert dry_run(edited, NODES, overwrite=False) == ["send    pkg/a.py  10 B", "1 file, 10 B"]


class TestBeforeACell:
    def test_says_what_went_and_the_cell_runs(self, held: Notebook, copied: FakeFiles, client: FakeClient) -> None:
        client.on_submit = hello
        copied.reports = [SyncReport(3, 12_000, 0, 9, 2, 0.04)]
        shown = held.ok("%%mesh -t 2\ntrain()")
        assert "sent 3 files, 12 kB, to 2 nodes in 0.04 s" in shown
        assert "hello" in shown
        assert "files" not in held.ok("%%mesh\ntrain()"), "nothing went"
        assert copied.calls == [("sync", ["node1"], False), ("sync", ["node0", "node1"], False)]
        held.ok("%%mesh --no-sync\n1")
        copied.copies = False
        held.ok("%%mesh\n1")
        assert len(copied.calls) == 2

    def test_says_once_what_another_kernel_changed(self, held: Notebook, copied: FakeFiles) -> None:
        for copied.copies in (True, False):
            for line in ("%%mesh\n1", "%mesh sync"):
                copied.news = ["another kernel removed /library: ranks no longer have it"]
                assert "another kernel removed /library" in held.ok(line)
                assert "another kernel" not in held.ok(line)

    def test_says_notes_once(self, held: Notebook, copied: FakeFiles) -> None:
        large = {"": local(large={b"big.bin": 10**9})}
        copied.reports = [SyncReport(1, 1, nodes=2, local=large, modules=True) for _ in range(3)]
        shown = held.ok("%%mesh\n1")
        assert "too large: big.bin (1.0 GB)" in shown
        assert "reload is off" not in shown
        copied.record.reload = False
        shown = held.ok("%%mesh\n1")
        assert "too large" not in shown
        assert "reload is off: ranks keep the modules that they have; %mesh restart" in shown
        assert "reload is off" not in held.ok("%%mesh\n1")

    def test_says_what_ranks_keep_what_is_gone_and_who_was_not_reached(self, held: Notebook, copied: FakeFiles) -> None:
        kept, ranks = {"a": ("node1", "node0"), "b": ("node1",), "c": ("node1",)}, ("node1",)
        overwritten: dict[str, Any] = {"left": {"log": ("node0",)}, "overwritten": {"b": ranks}, "missed": ranks}
        copied.reports = [SyncReport(nodes=2, kept=kept), SyncReport(removed=1, nodes=1, **overwritten)]
        shown = held.ok("%%mesh\n1")
        assert "kept a, which ranks wrote on every node: %mesh sync --overwrite sends yours" in shown
        assert "kept b, c, which ranks wrote on node1:" in shown
        assert "sent" not in shown
        shown = held.ok("%%mesh\n1")
        assert "left log on node0, which ranks wrote there" in shown
        assert "overwrote b, which ranks wrote on node1" in shown
        assert "not reached: node1; the next sync sends the missing files" in shown

    def test_a_cell_whose_node_lacks_the_files_does_not_run(
        self, held: Notebook, copied: FakeFiles, client: FakeClient
    ) -> None:
        copied.reports = [FilesError("node1: no space left on device", "node1")]
        assert "node1: no space left" in str(held.error("%%mesh\n1"))
        assert not client.runs

    def test_another_computers_files_are_named(self, held: Notebook, copied: FakeFiles) -> None:
        copied.instead = "laptop:/home/me/project"
        assert "the ranks have the files of laptop:/home/me/project; not synced: " in held.ok("%%mesh\n1")


class TestProgress:
    @pytest.fixture
    def slow(self, copied: FakeFiles, monkeypatch: pytest.MonkeyPatch) -> FakeFiles:
        """A sync that takes long, says the test's clock."""
        monkeypatch.setattr(progress_module, "PATIENCE_S", 0.0)
        monkeypatch.setattr(progress_module, "DRAW_EVERY_S", 0.0)
        return copied

    def test_says_how_to_stop_it_up_to_its_end_and_becomes_what_came_of_it(
        self, held: Notebook, slow: FakeFiles, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now_s = [0.0]
        monkeypatch.setattr(progress_module, "time", SimpleNamespace(monotonic=lambda: now_s[0]))

        def sync(needed: object = None, *, overwrite: bool = False, progress: Any) -> SyncReport:
            progress("looking at the files of /project", 0, 0)
            for now_s[0], done in ((1.0, 1), (2.0, 10), (3.0, 60), (9.0, 100)):
                progress("sending files", done, 100)
            progress("nodes put the files in place", 0, 0)
            return SyncReport(1, 100, nodes=2, seconds=9.0)

        monkeypatch.setattr(slow, "sync", sync)
        held.run("%%mesh\n1")
        texts = [output["data"]["text/plain"] for output in held.shown.outputs]
        assert any(text.startswith("looking at the files of /project") for text in texts)
        bars = [text for text in texts if "of 100 B" in text]
        assert [text.endswith("; ■ (Ctrl-C) stops it") for text in bars] == [False, True, True, True]
        assert any(text.startswith("nodes put the files in place") for text in texts)
        assert "sent 1 file, 100 B, to 2 nodes in 9.0 s" in held.text()
        assert "sending" not in held.text()

    def test_an_interrupt_is_one_line_and_the_cell_does_not_run(
        self, held: Notebook, slow: FakeFiles, client: FakeClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def sync(needed: object = None, *, overwrite: bool = False, progress: Any) -> SyncReport:
            progress("sending files", 5, 10)
            raise KeyboardInterrupt

        monkeypatch.setattr(slow, "sync", sync)
        error = held.error("%%mesh\n1")
        assert isinstance(error, RunInterrupted)
        assert "interrupted before all files were sent" in str(error)
        assert held.text() == "stopped while sending files"
        assert not client.runs


class TestSync:
    def test_says_what_went_and_what_is_kept(self, held: Notebook, copied: FakeFiles) -> None:
        copied.there = Differences({"mine.txt": ("node0",)})
        shown = held.ok("%mesh sync")
        assert shown == "kept mine.txt, which ranks wrote on node0: %mesh sync --overwrite sends yours"
        copied.there = Differences(missing={"b.py": ("node0", "node1")})
        assert held.ok("%mesh sync") == "ranks removed b.py on every node: %mesh sync --overwrite sends yours again"
        copied.there = Differences()
        copied.reports = [SyncReport(1, 4, nodes=1, seconds=0.1, restored={"b.py": ("node1",)})]
        assert held.ok("%mesh sync --overwrite").splitlines() == [
            "sent 1 file, 4 B, to 1 node in 0.1 s",
            "restored b.py, which ranks had removed on node1",
        ]
        assert held.ok("%mesh sync --overwrite") == "the files are on 2 nodes already"
        assert [call[2] for call in copied.calls] == [False, False, True, True]

    def test_adds_a_directory_and_removes_it(self, held: Notebook, copied: FakeFiles, tmp_path: Path) -> None:
        gone = SyncReport(removed=2, nodes=2, seconds=0.5, left={"library/log": ("node0",)})
        copied.reports = [SyncReport(2, 9, nodes=2, seconds=0.5), gone]
        assert held.ok(f"%mesh sync --add {tmp_path} --as library") == (
            f"{tmp_path} is synced from now on, as library\nsent 2 files, 9 B, to 2 nodes in 0.5 s"
        )
        assert held.ok("%mesh sync --remove ../library").splitlines() == [
            "ranks no longer have ../library",
            "removed 2 files there in 0.5 s",
            "left library/log on node0, which ranks wrote there",
        ]
        assert (copied.calls[0], copied.calls[-1]) == (("add", str(tmp_path), "library"), ("remove", "../library"))

    def test_nodes_that_see_the_files_need_nothing(self, held: Notebook, client: FakeClient) -> None:
        for line in ("sync", "sync --status", "sync --dry-run", "sync --overwrite"):
            assert held.ok(f"%mesh {line}") == "files: every node sees /project itself, nothing is copied"
        assert not client.held["dev"].files.calls
        shown = held.ok("%mesh sync --add /added")
        assert shown == "/added is on the ranks' sys.path from now on; every node sees it itself"

    def test_flags_that_do_not_go_together(self, held: Notebook, copied: FakeFiles) -> None:
        assert "--as NAME goes with --add DIR" in str(held.error("%mesh sync --as x"))
        for flag in ("--overwrite", "--dry-run"):
            error = held.error(f"%mesh sync --status {flag}")
            assert str(error).startswith("--status only looks: it goes without --overwrite and --dry-run")

    def test_a_look_sends_nothing(self, held: Notebook, copied: FakeFiles) -> None:
        assert "nothing would be sent" in held.ok("%mesh sync --dry-run")
        copied.would = Pending(there=Differences({"mine.txt": ("node0",)}))
        assert "replace mine.txt, which ranks wrote on node0" in held.ok("%mesh sync --dry-run --overwrite")
        assert not copied.calls

    def test_status_names_nodes_that_do_not_answer(self, held: Notebook, copied: FakeFiles) -> None:
        mount = pb.MountStatus(
            source="vm:/project",
            files=3,
            size_bytes=12_000,
            changed=[b"mine.txt", b"model.py"],
            waiting=[b"model.py"],
            added=[b"out-%d.txt" % number for number in range(6)],
            added_files=2000,
            missing=[b"gone"],
        )
        copied.statuses = {
            "node0": pb.WorkspaceReply(mounts=[mount]),
            "node1": NodeUnreachable("node1 does not answer", "node1"),
            "node2": pb.WorkspaceReply(),
        }
        rows = held.ok("%mesh sync --status").splitlines()
        assert " ".join(rows[1].split()) == (
            "node0 . 3 12 kB vm:/project wrote model.py: yours waits for %mesh sync --overwrite; wrote mine.txt; "
            "added out-0.txt, out-1.txt, out-2.txt, out-3.txt, out-4.txt, and 1995 more; removed gone"
        )
        assert rows[2].split() == ["node1", "node1", "does", "not", "answer"]
        assert rows[3].split() == ["node2", "0", "nothing", "yet"]


class TestWhereFilesAre:
    def test_copied_to_all_some_or_none(self, held: Notebook, copied: FakeFiles) -> None:
        again = "%mesh reserve dev --nodes 2 --procs 2"
        assert held.ok(again).endswith("\nfiles: /project, copied to every node before each cell")
        del copied.connections[0]
        expected = "\nfiles: /project, copied to node1 before each cell; the other nodes see it itself"
        assert held.ok(again).endswith(expected)
        copied.root, copied.copies = "", False
        assert held.ok(f"{again} --files none").endswith("\nno files: the reservation was made without files")
        assert "your home directory is never copied whole; " in held.ok(again)

    def test_of_what_somebody_shares_they_are_the_owners(
        self, held: Notebook, copied: FakeFiles, client: FakeClient
    ) -> None:
        copied.root, copied.copies = "", False
        client.held["dev"].is_mine, client.held["dev"].owner = False, "alice"
        assert held.ok("%mesh sync") == "files: alice's, from where it was reserved; yours are not synced"
        assert held.ok("%mesh status").startswith("dev of alice · ")


class TestFetchAndList:
    @pytest.fixture
    def asked(self, held: Notebook, client: FakeClient, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
        calls: list[tuple[Any, ...]] = []
        reservation = client.held["dev"]

        def fetch(path: str, *, rank: int, to: str | None, overwrite: bool, progress: Any) -> FetchReport:
            calls.append((path, rank, to, overwrite))
            if path == "nowhere" or (path == "of some" and rank):
                raise FilesError(f"node{rank // 2}: there is no {path}", "node0")
            place = {"in": "/project/in", "beside": "/project/../beside"}.get(path, "/here/last.pt")
            return FetchReport(Path(place), 1, 2000, 2000, 0.2)

        def list_files(path: str, *, rank: int) -> list[FileInfo]:
            calls.append((path, rank))
            return [FileInfo("sub", "directory", 0, 0.0), FileInfo("a.pt", "file", 2000, 0.0)]

        monkeypatch.setattr(reservation, "fetch", fetch, raising=False)
        monkeypatch.setattr(reservation, "list_files", list_files, raising=False)
        return calls

    def test_from_a_rank_or_a_node(self, held: Notebook, asked: list[tuple[Any, ...]]) -> None:
        shown = held.ok("%mesh fetch checkpoints/last.pt --rank 3 --to mine/ --overwrite")
        assert shown == "brought 1 file, 2.0 kB, from node1 to /here/last.pt in 0.2 s"
        held.ok("%mesh fetch a --node 1")
        held.ok("%mesh fetch a")
        assert asked == [("checkpoints/last.pt", 3, "mine/", True), ("a", 2, None, False), ("a", 0, None, False)]

    def test_from_every_rank_or_node(self, held: Notebook, asked: list[tuple[Any, ...]]) -> None:
        shown = held.ok("%mesh fetch 'ckpt/*.pt' --rank all --to mine").splitlines()
        assert [(rank, to) for _, rank, to, _ in asked] == [(rank, f"mine/rank{rank}/") for rank in range(4)]
        assert [line.split(" from ")[1].split()[0] for line in shown] == ["node0", "node0", "node1", "node1"]
        asked.clear()
        held.ok("%mesh fetch a --node all")
        assert [(rank, to) for _, rank, to, _ in asked] == [(0, "node0/"), (2, "node1/")]
        shown = held.ok("%mesh fetch 'of some' --node all").splitlines()
        assert shown[0].startswith("brought 1 file")
        assert shown[1] == "node1: there is no of some"
        for line in ("nowhere --rank all", "nowhere"):
            assert str(held.error(f"%mesh fetch {line}")) == "node0: there is no nowhere"

    def test_what_lands_in_the_project_is_said_to_be_synced(
        self, held: Notebook, asked: list[tuple[Any, ...]], copied: FakeFiles
    ) -> None:
        said = "it lies in the project: each node gets it before the next cell, unless .meshignore names it"
        assert held.ok("%mesh fetch in").splitlines()[1:] == [said]
        assert said not in held.ok("%mesh fetch a")
        assert said not in held.ok("%mesh fetch beside")
        copied.copies = False
        assert said not in held.ok("%mesh fetch in")

    def test_a_listing(self, held: Notebook, asked: list[tuple[Any, ...]]) -> None:
        lines = held.ok("%mesh ls checkpoints --node 1").splitlines()
        assert lines[0] == "checkpoints on node1: 2 names"
        assert lines[2].split()[0] == "sub/"
        assert lines[3].split()[:3] == ["a.pt", "2.0", "kB"]
        assert held.ok("%mesh ls").splitlines()[0] == ". on node0: 2 names"
        assert asked == [("checkpoints", 2), (".", 0)]

    def test_targets_that_are_none(self, held: Notebook, asked: list[tuple[Any, ...]]) -> None:
        for line, message in (
            ("ls --node 2", "dev has no node 2: 2 nodes × 2 ranks"),
            ("fetch a --rank 4", "dev has no rank 4"),
            ("ls --rank 1 --node 1", "--rank R or --node N, not both"),
            ("fetch a --rank all --node 1", "--rank R or --node N, not both"),
            ("fetch a --rank x", "--rank is a whole number or all, not 'x'"),
        ):
            error = held.error(f"%mesh {line}")
            assert isinstance(error, MonarchNbError)
            assert not isinstance(error, RunFailed)
            assert message in str(error)
        assert not asked
