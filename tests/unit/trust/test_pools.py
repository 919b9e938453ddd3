"""The pools of a config: their names, where they lie, where their nodes are found."""

import json
import threading
from pathlib import Path

import pytest

from monarch_nb.config import CONFIG_VARIABLE, TrustPaths, config_directory
from monarch_nb.errors import PoolError, TrustError, UsageError
from monarch_nb.trust.pools import (
    Hosts,
    change_hosts,
    checked_address,
    is_pool,
    make_paths,
    paths_of,
    pool_names,
    read_hosts,
)


def test_what_is_no_name_is_never_a_path(config: Path) -> None:
    for name in ("", ".", "..", "../x", "a/b", "/etc", "Lab", "a.b", "-a", "a-", "a" * 33, "a\n", "é"):
        for use in (paths_of, make_paths):
            with pytest.raises(UsageError, match="no name for a pool of hosts"):
                use(name)
        assert not is_pool(name)
    with pytest.raises(UsageError, match="the pool of this machine"):
        make_paths("local")
    assert not config.exists()


def test_asking_makes_no_pool_and_hosts_make_one(config: Path) -> None:
    assert pool_names() == []
    assert not is_pool("lab")
    with pytest.raises(PoolError, match=r"there is no pool 'lab' in .*: monarch-nb pool init lab makes one"):
        paths_of("lab")
    assert not config.exists()
    paths = make_paths("lab")
    assert pool_names() == [], "a pool has hosts"
    change_hosts(paths, lambda hosts: hosts)
    assert pool_names() == ["lab"]
    assert paths_of("lab") == paths
    with pytest.raises(PoolError, match="only lab"):
        paths_of("lub")


def test_a_directory_that_others_can_enter_is_refused(paths: TrustPaths) -> None:
    change_hosts(paths, lambda hosts: hosts)
    paths.directory.chmod(0o755)
    with pytest.raises(PoolError, match=f"chmod 700 .*lab, or set {CONFIG_VARIABLE}"):
        paths_of("lab")


def test_the_config_is_where_people_look_for_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(CONFIG_VARIABLE)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    assert config_directory() == tmp_path / ".config" / "monarch-nb"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    assert config_directory() == tmp_path / "xdg" / "monarch-nb"
    monkeypatch.setenv(CONFIG_VARIABLE, "~/chosen")
    assert config_directory() == tmp_path / "chosen"


class TestHosts:
    def test_hosts_are_added_once_and_removed(self) -> None:
        hosts = Hosts().added("host1").added("host2:7000").added("host1:7878")
        assert hosts.nodes == ("host1:7878", "host2:7000")
        assert hosts.removed("host1").nodes == ("host2:7000",)

    def test_a_directory_and_a_name_are_known_by_how_they_look(self, tmp_path: Path) -> None:
        hosts = Hosts().added("dns:ranks.default.svc").added(f"{tmp_path}/x/../pool").added("[::1]:7000")
        assert hosts == Hosts(("[::1]:7000",), str(tmp_path / "pool"), "ranks.default.svc:7878")
        assert hosts.words == ["[::1]:7000", "dns:ranks.default.svc:7878", str(tmp_path / "pool")]
        for word in hosts.words:
            hosts = hosts.removed(word)
        assert hosts == Hosts()

    def test_there_is_one_name_and_one_directory(self) -> None:
        hosts = Hosts(dns="a:7878", directory="/shared")
        assert hosts.added("dns:a").added("/shared") == hosts
        for word in ("dns:b", "/other"):
            with pytest.raises(UsageError, match=r"a pool has one .*, not .* and .*: "):
                hosts.added(word)

    def test_what_is_not_there_can_not_be_removed(self) -> None:
        for word in ("host9", "dns:b", "/other"):
            with pytest.raises(UsageError, match=r"is not in the pool; there are host1:7878"):
                Hosts(("host1:7878",)).removed(word)

    def test_what_is_no_address_is_refused(self) -> None:
        for address in ("", ":7878", "host:", "host:0", "host:65536", "host:x", "a b", "unix:x", "::1", "h;id"):
            with pytest.raises(UsageError, match="no address: write host:port"):
                checked_address(address)


class TestFile:
    def test_it_keeps_what_was_changed_and_nothing_that_is_refused(self, paths: TrustPaths) -> None:
        hosts = change_hosts(paths, lambda hosts: hosts.added("host1").added("/shared"))
        assert json.loads(paths.hosts.read_text())["nodes"] == ["host1:7878"]
        with pytest.raises(UsageError):
            change_hosts(paths, lambda hosts: hosts.added("host2").added("no address"))
        assert read_hosts(paths) == hosts

    def test_changes_at_once_are_all_kept(self, paths: TrustPaths) -> None:
        def add(name: str) -> None:
            change_hosts(paths, lambda hosts: hosts.added(name))

        threads = [threading.Thread(target=add, args=(f"host{number}",)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(read_hosts(paths).nodes) == 16

    def test_a_garbled_one_is_named(self, paths: TrustPaths) -> None:
        paths.hosts.touch(mode=0o600)
        for text in ("", "[]", '{"nodes": 3}', '{"nodes": [3]}', '{"nodes": ["../x y"]}', '{"dns": 1}'):
            paths.hosts.write_text(text)
            with pytest.raises(TrustError, match=r"pool\.json can not be read"):
                read_hosts(paths)
