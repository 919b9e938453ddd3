"""Where things lie: private, short enough for sockets, one directory per user and host."""

import os
import socket
from pathlib import Path

import pytest

from monarch_nb import config
from monarch_nb.config import HOME_VARIABLE, NodePaths, home_directory, pool_directory, private_directory, run_file
from monarch_nb.errors import PoolError


class TestPrivateDirectory:
    def test_it_is_made_for_this_user_alone_with_all_its_parents(self, tmp_path: Path) -> None:
        old = os.umask(0)
        try:
            made = private_directory(tmp_path / "a" / "b")
        finally:
            os.umask(old)
        assert [path.stat().st_mode & 0o777 for path in (made.parent, made)] == [0o700, 0o700]
        assert private_directory(made) == made

    def test_a_link_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "real").mkdir(mode=0o700)
        (tmp_path / "link").symlink_to(tmp_path / "real")
        with pytest.raises(PoolError, match="link"):
            private_directory(tmp_path / "link")

    def test_one_behind_a_link_is_fine(self, tmp_path: Path) -> None:
        """As /tmp is one on a Mac, to /private/tmp."""
        (tmp_path / "private").mkdir()
        (tmp_path / "tmp").symlink_to(tmp_path / "private")
        made = private_directory(tmp_path / "tmp" / "monarch-nb-501" / "mac.local")
        assert made == tmp_path / "tmp" / "monarch-nb-501" / "mac.local"
        assert made.stat().st_mode & 0o777 == 0o700

    def test_a_dangling_link_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to(tmp_path / "nowhere")
        with pytest.raises(PoolError, match="link"):
            private_directory(tmp_path / "link")
        assert not (tmp_path / "nowhere").exists()

    @pytest.mark.parametrize("mode", [0o755, 0o710, 0o701, 0o770])
    def test_one_that_is_open_to_others_is_refused(self, tmp_path: Path, mode: int) -> None:
        (tmp_path / "open" / "something").mkdir(parents=True)
        (tmp_path / "open").chmod(mode)
        with pytest.raises(PoolError, match="chmod 700"):
            private_directory(tmp_path / "open")
        assert (tmp_path / "open").stat().st_mode & 0o777 == mode, "it is the user's to change"

    def test_an_empty_one_is_closed_to_others(self, tmp_path: Path) -> None:
        (tmp_path / "new").mkdir()
        (tmp_path / "new").chmod(0o755)
        assert private_directory(tmp_path / "new").stat().st_mode & 0o777 == 0o700

    def test_another_users_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "theirs").mkdir(mode=0o700)
        monkeypatch.setattr(os, "getuid", lambda: (tmp_path / "theirs").stat().st_uid + 1)
        with pytest.raises(PoolError, match="another user"):
            private_directory(tmp_path / "theirs")

    def test_a_file_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        for path in (tmp_path / "file", tmp_path / "file" / "below"):
            with pytest.raises(PoolError, match="file"):
                private_directory(path)


class TestHome:
    def test_as_chosen(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
        assert home_directory() == tmp_path / "home"
        assert pool_directory() == tmp_path / "home" / "local"

    def test_a_user_directory_is_expanded(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv(HOME_VARIABLE, "~/state")
        assert home_directory() == tmp_path / "state"

    def test_by_default_one_per_user_and_host(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv(HOME_VARIABLE, raising=False)
        monkeypatch.setattr(config, "_temporary_root", lambda: tmp_path / "monarch-nb-1000")
        assert home_directory() == tmp_path / "monarch-nb-1000" / socket.gethostname()
        monkeypatch.setattr(socket, "gethostname", lambda: "elsewhere")
        assert home_directory() == tmp_path / "monarch-nb-1000" / "elsewhere"

    def test_the_default_is_not_where_sessions_and_jobs_end(self) -> None:
        assert config._temporary_root() == Path(f"/tmp/monarch-nb-{os.getuid()}")


class TestNodePaths:
    def sockets_of(self, paths: NodePaths) -> list[Path]:
        longest = paths.rank_socket("f" * 32, 9999, 9999)
        return [paths.allocator_socket, paths.template_socket("12345678"), longest]

    @pytest.mark.parametrize("length", [20, 60, 78, 79, 80, 81, 82, 83, 84, 85, 90, 200])
    def test_sockets_fit_however_long_the_home(self, length: int) -> None:
        paths = NodePaths(Path("/" + "x" * length))
        for path in self.sockets_of(paths):
            assert len(os.fsencode(path)) < 104, path

    def test_the_bytes_count_not_the_characters(self) -> None:
        paths = NodePaths(Path("/tmp/" + "ü" * 50))
        assert all(len(os.fsencode(path)) < 104 for path in self.sockets_of(paths))

    def test_two_long_homes_do_not_meet(self) -> None:
        first, second = (NodePaths(Path("/" + "x" * 100 + end) / "local" / "node0") for end in "ab")
        assert first.sockets != second.sockets
        assert first.sockets.parent == second.sockets.parent

    def test_a_short_home_keeps_its_sockets(self) -> None:
        paths = NodePaths(Path("/tmp/h/local/node0"))
        assert all(path.is_relative_to(paths.directory) for path in self.sockets_of(paths))

    def test_a_run_has_a_directory(self) -> None:
        paths = NodePaths(Path("/n"))
        assert run_file(paths.runs("m"), 7, 3, "out") == Path("/n/meshes/m/runs/7/3.out")
