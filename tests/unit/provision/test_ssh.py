"""Hosts that ssh reaches, without any: which are meant, what ssh says, what is sent there."""

from __future__ import annotations

import fcntl
import os
import select
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from monarch_nb.client.pools.answering import why_silent
from monarch_nb.config import CONFIG_VARIABLE, PATIENCE_VARIABLE, SSH_VARIABLE, TUNNEL_SCHEME, TrustPaths
from monarch_nb.errors import CapacityError, NodeUnreachable, PoolError, UsageError
from monarch_nb.provision.launchers import Ask, Job
from monarch_nb.provision.remote import environment
from monarch_nb.provision.remote.command import configured_hosts, failure, hosts_of, known_targets
from monarch_nb.provision.remote.environment import Environment, _check_clock, requirements
from monarch_nb.provision.remote.preparing import Preparation, _script
from monarch_nb.provision.remote.tunnels import Tunnels
from monarch_nb.provision.ssh import SshLauncher
from monarch_nb.rpc.channel import is_deserted, is_local
from monarch_nb.trust.pools import Hosts, SshHost, change_hosts, for_others, format_hosts, make_paths, parse_hosts

CONFIG = """\
Include more/*.conf
Host lab-1 lab-2 !lab-9 # two of them
    HostName 10.0.0.1
host=gate
Host gpu-* *
    User me
"""


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "a.conf").write_text('Host gpu-1 "gpu-2"\nHost lab-1\n')
    (tmp_path / "ssh").write_text(CONFIG)
    monkeypatch.setenv(SSH_VARIABLE, f"ssh -F {tmp_path / 'ssh'}")
    monkeypatch.setenv(CONFIG_VARIABLE, str(tmp_path / "config"))
    return tmp_path


def asked(nodes: int = 1, target: str = "lab", arguments: tuple[str, ...] = ()) -> Ask:
    return Ask("dev", "ssh-lab-dev", nodes, 1, 0, 0.0, arguments, make_paths("ssh-lab-dev"), target)


class TestWhichHosts:
    def test_the_configuration_is_read_with_what_it_includes(self) -> None:
        assert configured_hosts() == ["gpu-1", "gpu-2", "lab-1", "lab-2", "gate"]

    @pytest.mark.parametrize(
        ("target", "hosts"),
        [
            ("lab", ["lab-1", "lab-2"]),
            ("gate", ["gate"]),
            ("gpu-*", ["gpu-1", "gpu-2"]),
            ("*-1", ["gpu-1", "lab-1"]),
            ("me@10.0.0.9,gate", ["me@10.0.0.9", "gate"]),
            ("elsewhere.example.org", ["elsewhere.example.org"]),
        ],
    )
    def test_of_a_target(self, target: str, hosts: list[str]) -> None:
        assert hosts_of(target) == (hosts, "")

    @pytest.mark.parametrize(
        ("target", "said"),
        [
            ("no-*", "matches no-*; there are gpu-1"),
            ("-oProxyCommand=reboot", "is no host for ssh"),
            ("a,me@a", "a is named twice"),
        ],
    )
    def test_that_make_no_sense(self, target: str, said: str) -> None:
        with pytest.raises(UsageError) as caught:
            hosts_of(target)
        assert said in str(caught.value)

    def test_a_pool_comes_first(self) -> None:
        started = (SshHost("gate", "10.0.0.1:7878", directory="/scratch/me"),)
        change_hosts(make_paths("lab"), lambda _: Hosts(ssh=started))
        assert hosts_of("lab") == (["gate"], "/scratch/me")
        assert known_targets()[0] == "lab"

    def test_hosts_that_another_job_has_are_not_taken(self) -> None:
        way = SshLauncher()
        of_job = make_paths("ssh-lab-other").jobs / "1"
        of_job.mkdir(parents=True)
        Preparation(("lab-1",), (), 0, "", None, "here").save(TrustPaths(of_job))
        assert way.offer(asked()).text == "would be lab-2"
        with pytest.raises(CapacityError, match="of 2 hosts of ssh:lab 1 are free: lab-1 has ssh-lab-other"):
            way.offer(asked(nodes=2))
        with pytest.raises(CapacityError, match=r"ssh:lab is 2 hosts \(lab-1, lab-2\), not 3"):
            way.offer(asked(nodes=3))

    def test_a_form_names_them_as_a_flag(self) -> None:
        way = SshLauncher()
        assert [option.flag for option in way.options()] == ["--hosts", "--interface", "--tunnel"]
        assert way.offer(asked(target="", arguments=("--hosts=gate", "--tunnel"))).text == "would be gate"
        for arguments, said in (
            ((), "say which hosts"),
            (("--partition=a100",), "after the -- for ssh: .*; there are --hosts, --interface, --directory"),
            (("--hosts=gate", "--directory=here"), "write the whole path"),
        ):
            with pytest.raises(UsageError, match=said):
                way.offer(asked(target="", arguments=arguments))


@pytest.mark.parametrize(
    ("said", "error", "advice"),
    [
        ("ssh: Could not resolve hostname lab: Name or service not known", PoolError, "ssh knows no host lab"),
        ("me@lab: Permission denied (publickey,password).", PoolError, "ssh-copy-id lab"),
        ("@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.", PoolError, "keygen -R"),
        ("Host key verification failed.", PoolError, "run ssh lab once by hand"),
        ("ssh: connect to host lab port 22: Connection timed out", NodeUnreachable, "Connection timed out"),
        ("/home/me/.ssh/config: terminating, 1 bad configuration options", PoolError, "can not read its configuration"),
        ("", NodeUnreachable, "says nothing"),
    ],
)
def test_what_ssh_says(said: str, error: type[PoolError], advice: str) -> None:
    found = failure("lab", said)
    assert type(found) is error
    assert advice in str(found)


class TestEnvironment:
    def test_versions_are_this_process_s(self) -> None:
        pinned = dict(line.split("==") for line in requirements())
        assert {"torch", "grpcio", "cloudpickle"} <= set(pinned)
        assert "matplotlib" not in pinned, "extras are left out"

    def test_a_build_of_torch_has_an_index(self, monkeypatch: pytest.MonkeyPatch) -> None:
        index = "--extra-index-url https://download.pytorch.org/whl/cpu"
        for version, flags in {"2.11.0": "", "2.11.0+cpu": index}.items():
            monkeypatch.setattr(environment.importlib.metadata, "version", lambda _: version)  # noqa: B023
            assert environment._index() == flags

    def test_clocks(self) -> None:
        _check_clock(1000.0, 1000.9, 1004.0)
        with pytest.raises(PoolError, match="its clock is 10 min behind this computer's"):
            _check_clock(1000.0, 1600.0, 1601.0)
        with pytest.raises(PoolError, match="its clock is 10 min ahead of this computer's"):
            _check_clock(1601.0, 1000.0, 1001.0)

    def test_a_job_s_allocator_leaves_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The script is run with a stand-in for the allocator."""
        directory = tmp_path / "it's a node"
        directory.mkdir()
        (directory / "node.pem").write_text("secret")
        found = Environment("python", "/code", "/root", "", False)
        seen = tmp_path / "seen"
        monkeypatch.setenv(PATIENCE_VARIABLE, "5")
        told = f"echo $PYTHONPATH ${PATIENCE_VARIABLE} >{seen}"
        script = _script(found, str(directory), ["sh", "-c", told], lasting=False)
        (directory / "run").write_text(script)
        subprocess.run(["sh", str(directory / "run")], check=True, env={"PATH": "/usr/bin:/bin", "PYTHONPATH": "/mine"})
        assert seen.read_text() == "/code:/mine 5\n"
        assert not directory.exists()


class TestPoolFile:
    def test_hosts_are_kept(self) -> None:
        hosts = Hosts(nodes=("a:7878",), ssh=(SshHost("me@lab", "10.0.0.1:7878", True, "/scratch"),))
        assert parse_hosts(format_hosts(hosts)) == hosts
        assert hosts.words == ["a:7878", "me@lab"]

    @pytest.mark.parametrize("ssh", ["5", '["lab"]', '[{"destination": 1}]', '[{"destination": "lab"}]'])
    def test_what_is_no_host_is_refused(self, ssh: str) -> None:
        with pytest.raises(ValueError, match="not what monarch-nb writes"):
            parse_hosts(f'{{"ssh": {ssh}}}'.encode())

    def test_an_invitation_names_what_others_can_reach(self) -> None:
        hosts = Hosts(ssh=(SshHost("lab-1", "10.0.0.1:7878"), SshHost("lab-2", "10.0.0.2:7878", tunnel=True)))
        assert for_others(hosts) == Hosts(nodes=("10.0.0.1:7878",))


class TestLooks:
    @pytest.fixture
    def job(self) -> Job:
        return Job("ssh:lab", "lab-1", "dev", "ssh-lab-dev", 1, 1, 0, make_paths("ssh-lab-dev"))

    def prepared(self, paths: TrustPaths, **facts: object) -> None:
        given: dict[str, object] = {"said": {"lab-1": "connects"}, **facts}
        Preparation(("lab-1",), (), 0, "", None, "here", **given).save(paths)  # type: ignore[arg-type]

    def test_being_prepared(self, job: Job) -> None:
        self.prepared(job.paths)
        with (job.paths.directory / "ssh.lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            look = SshLauncher().look(job)
        assert (look.state, look.text) == ("waiting", "lab-1 connects")

    def test_one_that_has_ended(self, job: Job) -> None:
        assert SshLauncher().look(job).state == "ended", "nothing is known"
        self.prepared(job.paths)
        assert SshLauncher().look(job).text == "what prepared lab-1 was killed"
        self.prepared(job.paths, state="failed", error="lab-1: no")
        look = SshLauncher().look(job)
        assert (look.state, look.text, look.logged) == ("ended", "lab-1: no", False)


@pytest.fixture
def tunnels() -> Iterator[Tunnels]:
    made = Tunnels()
    yield made
    made.close("lab-1", "10.0.0.1:7878")


class TestTunnels:
    def connect(self, address: str) -> socket.socket:
        made = socket.socket(socket.AF_UNIX)
        made.settimeout(60.0)
        made.connect(address.removeprefix(TUNNEL_SCHEME))
        return made

    def test_a_connection_is_an_ssh(self, tunnels: Tunnels, command: Callable[[str, str], None]) -> None:
        command("ssh", 'for word; do last="$before" before="$word"; done; echo "$last by $before"; cat')
        address = tunnels.address("lab-1", "10.0.0.1:7878")
        assert tunnels.address("lab-1", "10.0.0.1:7878") == address
        for _ in range(2):
            with self.connect(address) as connection:
                connection.sendall(b"hello")
                connection.shutdown(socket.SHUT_WR)
                with connection.makefile("rb") as file:
                    assert file.read() == b"10.0.0.1:7878 by lab-1\nhello"

    def test_a_tunnel_leads_to_no_node_of_ours(self, tunnels: Tunnels, command: Callable[[str, str], None]) -> None:
        command("ssh", "cat")
        address = tunnels.address("lab-1", "10.0.0.1:7878")
        assert not is_local(address), "TLS is spoken through it"
        assert why_silent(address) == "", "ssh knows, and is not asked here"
        assert not is_deserted(address)
        path = Path(address.removeprefix(TUNNEL_SCHEME))
        assert path.is_socket()
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700, "nobody else can connect"

    @pytest.mark.parametrize("end", ["pass", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"])
    def test_nothing_is_left_of_a_process_that_is_gone(self, end: str, tmp_path: Path) -> None:
        """What one that was killed has left, the next one removes, and it leaves alone what a living one has."""
        # A short directory: paths of sockets are.
        with tempfile.TemporaryDirectory(prefix="mnb-", dir="/tmp") as directory:
            environment = {**os.environ, "TMPDIR": directory, SSH_VARIABLE: "true"}
            made = "from monarch_nb.provision.remote.tunnels import Tunnels\nfirst = Tunnels()\n"
            made += "print(first.address('lab-1', '10.0.0.1:7878'), flush=True)\n"

            def run(code: str) -> Path:
                done = subprocess.run(
                    [sys.executable, "-c", made + code], env=environment, capture_output=True, text=True, check=False
                )
                return Path(done.stdout.strip().removeprefix(TUNNEL_SCHEME))

            assert run(end).is_relative_to(directory)
            others = "second = Tunnels()\nsecond.address('lab-2', '10.0.0.2:7878')\n"
            run(f"{others}import os\nassert len(os.listdir({directory!r})) == 2, os.listdir({directory!r})")
            assert os.listdir(directory) == []

    def test_a_directory_that_is_too_deep_for_sockets(
        self, tunnels: Tunnels, command: Callable[[str, str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        command("ssh", "cat")
        deep = tmp_path / ("d" * 100)
        deep.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(deep))
        with self.connect(tunnels.address("lab-1", "10.0.0.1:7878")) as connection:
            connection.sendall(b"hello")
            assert connection.recv(16) == b"hello"

    def test_one_that_is_closed_ends_what_its_ssh_has_started(
        self, tunnels: Tunnels, command: Callable[[str, str], None]
    ) -> None:
        """As the ssh of a ProxyJump, which hears of nothing while it connects."""
        command("ssh", "sleep 1000 > /dev/null & echo $!; exec cat")
        with self.connect(tunnels.address("lab-1", "10.0.0.1:7878")) as connection, connection.makefile() as file:
            started = os.pidfd_open(int(file.readline()))
            tunnels.close("lab-1", "10.0.0.1:7878")
            assert select.select([started], [], [], 60.0)[0], "it goes on"
            os.close(started)
            assert file.read() == "", "the connection ends"

    def test_ssh_that_fails_is_started_again(
        self, tunnels: Tunnels, command: Callable[[str, str], None], tmp_path: Path
    ) -> None:
        command("ssh", f"echo x >>{tmp_path}/tries; exit 255")
        address = tunnels.address("lab-1", "10.0.0.1:7878")
        for _ in range(3):
            with self.connect(address) as connection:
                assert connection.recv(16) == b""
        assert (tmp_path / "tries").read_text() == "x\n" * 3

    def test_no_ssh(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(SSH_VARIABLE, "no-such-ssh")
        with pytest.raises(PoolError, match="there is no no-such-ssh in the PATH"):
            Tunnels().address("lab-1", "10.0.0.1:7878")


def test_what_runs_on_hosts_is_plain_shell() -> None:
    script = Path(environment.__file__).with_name("host.sh")
    subprocess.run(["sh", "-n", str(script)], check=True)
