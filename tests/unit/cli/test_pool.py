"""`monarch-nb pool` as somebody types it."""

import os
import re
import socket
from pathlib import Path

import pytest

from monarch_nb.cli.main import main
from monarch_nb.config import CONFIG_VARIABLE, HOME_VARIABLE
from monarch_nb.trust import authority
from monarch_nb.trust.identity import identity_of
from monarch_nb.trust.pools import paths_of


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CONFIG_VARIABLE, str(tmp_path / "config"))
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    monkeypatch.setenv("LOGNAME", "ada")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "config"


class Typed:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: str) -> str:
        """Return what a command prints that ends well."""
        assert main(["pool", *words]) == 0
        return self._capsys.readouterr().out

    def failing(self, *words: str, status: int = 1) -> str:
        """Return all that one prints which does not."""
        try:
            ended = main(["pool", *words])
        except SystemExit as left:
            ended = int(left.code or 0)
        assert ended == status
        told = self._capsys.readouterr()
        return told.out + told.err


@pytest.fixture
def pool(capsys: pytest.CaptureFixture[str]) -> Typed:
    return Typed(capsys)


def test_a_pool_is_made_and_says_what_to_run_where(config: Path, pool: Typed) -> None:
    told = pool("init", "lab")
    assert "made the pool lab, in which you are ada" in told
    assert "monarch-nb allocator --pool lab --listen HOST:7878\n" in told
    assert f"scp -p {config}/pools/lab/node.pem HOST:lab-node.pem" in told
    assert "--certificate ~/lab-node.pem --listen HOST:7878" in told
    assert "monarch-nb pool add lab HOST:7878" in told
    assert "there is the pool lab" in pool("init", "lab")


def test_nodes_are_added_listed_and_removed(pool: Typed) -> None:
    assert "monarch-nb pool init NAME makes one" in pool("list")
    pool("init", "lab", "--interface", "ib0")
    assert "--listen HOST:7878 --interface ib0" in pool("init", "lab"), "it is kept"
    assert "no nodes yet (monarch-nb pool add lab HOST)" in pool("list", "lab")
    assert pool("add", "lab", "host1", "host2:7900") == "the pool lab: host1:7878, host2:7900\n"
    assert re.search(r"lab +ada \(admin\) +host1:7878, host2:7900", pool("list"))
    assert pool("remove", "lab", "host1") == "the pool lab: host2:7900\n"
    assert "'c:x' is no address: write host:port" in pool.failing("add", "lab", "host3", "c:x", status=2)
    assert re.search(r"lab +ada \(admin\) +host2:7900 +\d", pool("list")), "none of them"


def test_where_no_node_can_be_is_doubted(
    pool: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_answer(host: str, *_: object) -> list[object]:
        if host == "hots1":
            raise socket.gaierror(-2, "Name or service not known")
        return []

    monkeypatch.setattr(socket, "getaddrinfo", no_answer)
    pool("init", "lab")
    for where, doubt in (
        ("hots1", "hots1 has no address here (Name or service not known): is the name right?\n"),
        (f"{tmp_path}/nodes", f"there is no directory {tmp_path}/nodes yet: monarch-nb allocator --publish makes it\n"),
        ("host1", ""),
    ):
        assert main(["pool", "add", "lab", where]) == 0
        assert capsys.readouterr().err == doubt


def test_a_file_that_is_no_invitation_is_not_to_be_closed_to_others(pool: Typed, tmp_path: Path) -> None:
    (tmp_path / "passwd").write_text("root:x:0:0\n")
    (tmp_path / "passwd").chmod(0o644)
    told = pool.failing("join", str(tmp_path / "passwd"))
    assert f"{tmp_path}/passwd is no file that monarch-nb pool makes" in told
    assert "chmod" not in told


def test_somebody_is_invited_joins_and_is_shut_out(
    tmp_path: Path, config: Path, pool: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool("init", "lab")
    pool("add", "lab", "host1")
    told = pool("invite", "lab", "--user", "bob", "--expires", "2d")
    assert "whoever has lab-bob.pem is bob in the pool lab until " in told
    assert "bob runs: monarch-nb pool join lab-bob.pem" in told
    pool("remove", "lab", "host1")  # there is no such host to be asked
    monkeypatch.setenv(CONFIG_VARIABLE, str(tmp_path / "bob"))
    told = pool("join", "lab-bob.pem")
    assert "you are bob in the pool lab until" in told
    assert "the pool lab: host1:7878" in told
    assert "no node of it could be asked whether the invitation is still valid (host1:7878: no answer (" in told
    pool("remove", "lab", "host1")
    assert not re.search(r"\bada\b", pool("list", "lab"))  # by the word: a fingerprint may have these letters
    monkeypatch.setenv(CONFIG_VARIABLE, str(config))
    assert re.search(r"bob +user +[0-9a-f]{16} +\S+ \S+ *\n", pool("list", "lab"))
    assert pool("revoke", "lab", "bob").startswith("revoked bob's certificate ")
    assert re.search(r"bob +user .* revoked", pool("list", "lab"))


def test_a_second_certificate_of_a_person_is_told(pool: Typed) -> None:
    pool("init", "lab")
    pool("invite", "lab", "--user", "bob")
    assert "bob has 1 certificate besides" in pool("invite", "lab", "--user", "bob", "-o", "other.pem")


def test_certificates_are_renewed(pool: Typed) -> None:
    pool("init", "lab")
    before = identity_of("lab").fingerprint
    assert "your certificate and the nodes' are valid until" in pool("renew", "lab")
    states = re.findall(r"(admin|node) +[0-9a-f]{16} +\S+ \S+ +(.+?) *\n", pool("list", "lab"))
    replaced = "replaced, counts until then"
    assert states == [
        ("admin", replaced),
        ("node", replaced),
        ("admin", "in use, yours"),
        ("node", "in use, the nodes'"),
    ]
    assert identity_of("lab").fingerprint != before


def test_an_authority_that_ends_before_its_certificates_is_told(pool: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authority, "AUTHORITY_LIFETIME_S", 100 * 86400.0)
    pool("init", "lab")
    assert "the authority itself ends then: make another pool" in pool("renew", "lab")


def test_what_expires_soon_is_said_and_is_no_success(pool: Typed) -> None:
    pool("init", "lab")
    paths = paths_of("lab")
    signer = authority.Authority.load("lab", paths)
    signer.issue("node", "node", 86400.0, paths.node.stat().st_mtime - 80000).save(paths.node)
    assert "the certificate of the nodes for the pool lab expires in" in pool.failing("list", "lab")
    signer.issue("ada", "admin", 60.0, paths.node.stat().st_mtime - 7200).save(paths.identity)
    assert "has expired 1 h 59 min ago: run monarch-nb pool renew lab" in pool.failing("list", "lab")
    assert "has expired" in pool("list")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["lsit"], "no command 'lsit': did you mean list?"),
        (["init", "local"], "'local' is the pool of this machine"),
        (["init", "lab", "--user", "a/b"], "'a/b' is no name for a person"),
        (["invite", "lab"], "the following arguments are required: --user"),
        (["invite", "lab", "--user", "bob", "--expires", "30"], "--expires is a time such as 30s, 90m"),
        (["list", "lab", "--pool", "x"], "unknown flag --pool"),
    ],
)
def test_wrong_usage_is_explained_and_changes_nothing(
    config: Path, pool: Typed, words: list[str], message: str
) -> None:
    assert message in pool.failing(*words, status=2)
    assert not config.exists()


def test_a_pool_that_is_not_there_is_named(config: Path, pool: Typed) -> None:
    for words in ("add lab host1", "list lab", "remove lab", "revoke lab bob", "renew lab", "invite lab --user bob"):
        assert "there is no pool 'lab' in" in pool.failing(*words.split())
    assert not config.exists()


def test_removing_ones_own_pool_must_be_meant(config: Path, pool: Typed) -> None:
    pool("init", "lab")
    assert "monarch-nb pool remove lab --force" in pool.failing("remove", "lab")
    assert "forgot the pool lab" in pool("remove", "lab", "--force")
    assert list((config / "pools").iterdir()) == []


def test_no_command_prints_a_key(config: Path, pool: Typed) -> None:
    told = pool("init", "lab") + pool("invite", "lab", "--user", "bob") + pool("list", "lab") + pool("list")
    told += pool("renew", "lab") + pool("revoke", "lab", "bob")
    os.chmod(paths_of("lab").identity, 0o644)
    told += pool.failing("list", "lab")
    assert "PRIVATE" not in told
    keys = [line for path in config.rglob("*") if path.is_file() for line in path.read_text().splitlines()]
    assert not [line for line in keys if len(line) == 64 and line in told]


def test_a_file_of_limits_is_checked_before_it_is_installed(pool: Typed, tmp_path: Path) -> None:
    pool("init", "lab")
    pool("invite", "lab", "--user", "alice")
    file = tmp_path / "limits.toml"
    file.write_text('[people.alice]\ngpus = 8\n\n[groups.vision]\nmembers = ["ada", "student-*"]\nnodes = 2\n')
    assert pool("limits", "lab", "--file", str(file)) == f"{file} is in order\n"
    file.write_text('[people.alcie]\ngpus = 8\n\n[groups.vision]\nmembers = ["bob"]\nnode = 2\n')
    told = pool.failing("limits", "lab", "--file", str(file)).splitlines()
    nobody = "in the pool lab: no certificate has the name"
    assert told == [
        f"{file}, line 6: there is no 'node': limits are nodes, gpus, members",
        f"{file}, line 1: nobody is called alcie {nobody}",
        f"{file}, line 4: nobody is called bob {nobody}",
    ]
    assert f"there is no file {tmp_path}/typo" in pool.failing("limits", "--file", f"{tmp_path}/typo", status=2)


def test_a_pool_without_nodes_can_not_be_asked(pool: Typed) -> None:
    pool("init", "lab")
    assert "the pool lab has no nodes that could be asked" in pool.failing("limits", "lab")
    assert "'nosuch'" in pool.failing("limits", "nosuch")
