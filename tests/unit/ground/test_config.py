"""Where things lie: private, short enough for sockets, one directory per user and host."""

import os
import socket
from pathlib import Path

import pytest

from monarch_nb import config
from monarch_nb.config import HOME_VARIABLE, NodePaths, home_directory, pool_directory, private_directory
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

    @pytest.mark.parametrize("target", ["real", "nowhere"])
    def test_a_link_is_refused(self, tmp_path: Path, target: str) -> None:
        (tmp_path / "real").mkdir(mode=0o700)
        (tmp_path / "link").symlink_to(tmp_path / target)
        with pytest.raises(PoolError, match="link"):
            private_directory(tmp_path / "link")
        assert not (tmp_path / "nowhere").exists()

    def test_one_behind_a_link_is_fine(self, tmp_path: Path) -> None:
        """As /tmp is one on a Mac, to /private/tmp."""
        (tmp_path / "private").mkdir()
        (tmp_path / "tmp").symlink_to(tmp_path / "private")
        made = private_directory(tmp_path / "tmp" / "monarch-nb-501" / "mac.local")
        assert made == tmp_path / "tmp" / "monarch-nb-501" / "mac.local"
        assert made.stat().st_mode & 0o777 == 0o700

    @pytest.mark.parametrize("mode", [0o755, 0o710, 0o701, 0o770])
    def test_one_that_is_open_to_others_is_refused_unless_it_is_empty(self, tmp_path: Path, mode: int) -> None:
        for name in ("open/something", "empty"):
            (tmp_path / name).mkdir(parents=True)
        for name in ("open", "empty"):
            (tmp_path / name).chmod(mode)
        with pytest.raises(PoolError, match="chmod 700"):
            private_directory(tmp_path / "open")
        assert (tmp_path / "open").stat().st_mode & 0o777 == mode, "it is the user's to change"
        assert private_directory(tmp_path / "empty").stat().st_mode & 0o777 == 0o700

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
        monkeypatch.setenv("HOME", str(tmp_path))
        for chosen in (str(tmp_path / "home"), "~/home"):
            monkeypatch.setenv(HOME_VARIABLE, chosen)
            assert home_directory() == tmp_path / "home"
            assert pool_directory() == tmp_path / "home" / "local"

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

    def test_sockets_fit_however_long_the_home(self) -> None:
        homes = [Path("/" + "x" * length) for length in (20, 60, *range(78, 86), 90, 200)]
        for home in (*homes, Path("/tmp/" + "ü" * 50)):
            for path in self.sockets_of(NodePaths(home)):
                assert len(os.fsencode(path)) < 104, path

    def test_two_long_homes_do_not_meet_and_a_short_one_keeps_its_sockets(self) -> None:
        first, second = (NodePaths(Path("/" + "x" * 100 + end) / "local" / "node0") for end in "ab")
        assert first.sockets != second.sockets
        assert first.sockets.parent == second.sockets.parent
        paths = NodePaths(Path("/tmp/h/local/node0"))
        assert all(path.is_relative_to(paths.directory) for path in self.sockets_of(paths))
