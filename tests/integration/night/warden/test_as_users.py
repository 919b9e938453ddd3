"""`monarch-nb allocator --as-users` with three accounts: each person's cells run as themselves, and get nothing of the
others'."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import pwd
import signal
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpus import FAKE_NVML
from integration.hosts.people import Person
from integration.live import eventually
from integration.night.warden.as_users import CGROUP, Node, free_port, node_of_people, serves
from integration.night.warden.wardens import TIMEOUT_S, UNIFIED, gone
from monarch_nb.trust.pools import change_hosts, make_paths


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with node_of_people(python_path=[FAKE_NVML]) as made:
        yield made


def test_cells_run_as_the_person_who_reserved(node: Node) -> None:
    for who in ("bob", "mallory"):
        name = node.people[who].name
        facts = pwd.getpwnam(name)
        code = "import os, pwd; (pwd.getpwuid(os.getuid()).pw_name, os.environ['HOME'], os.getgroups(), os.umask(0o77))"
        assert node.cell(who, code) == str((name, facts.pw_dir, [facts.pw_gid], 0o77)), node.log.read_text()


HOLDS = """
import sys
r = nb.reserve("held", procs=1, preload=[])
r.mesh.run('''
import os, pathlib, sys
os.environ["SECRET"] = "environment"
kept = "memory"
secret = pathlib.Path.home() / "secret"
secret.write_text("home")
open("/tmp/mnb-secret-" + str(os.getpid()), "w").write("tmp")
''')
[pid] = r.mesh.run("os.getpid()").values
print(pid, flush=True)
sys.stdin.readline()
r.mesh.run("os.unlink('/tmp/mnb-secret-' + str(os.getpid()))")
r.release()
"""

TRIES = """
import os, pathlib, signal, socket, glob
pid, home, state, theirs = {pid}, {home!r}, {state!r}, {theirs!r}
got = []
def read(path):
    def attempt():
        got.append((path, open(path, "rb").read(10)))
    return attempt
def link(path):
    def attempt():
        name = f"link-{{os.urandom(4).hex()}}"
        os.symlink(path, name)
        got.append((path, open(name, "rb").read(10)))
    return attempt
def kill():
    os.kill(pid, 0)
    got.append("signal")
def look(path):
    def attempt():
        got.append((path, os.listdir(path)))
    return attempt
def connect(path):
    def attempt():
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(path)
        got.append(path)
    return attempt
room = f"{{state}}/rooms/{{theirs}}"
attempts = [kill, look(room), look(f"{{state}}/gateway"), look(f"{{room}}/s"), connect(f"{{room}}/s/allocator")]
attempts += [read(f"/proc/{{pid}}/{{name}}") for name in ("environ", "mem", "maps", "cwd/x", "root/etc/shadow")]
attempts += [look(f"/proc/{{pid}}/fd"), read(f"{{home}}/secret"), link(f"{{home}}/secret")]
attempts += [read(f"/tmp/mnb-secret-{{pid}}"), read(f"{{room}}/state.sqlite"), read({key!r}), link({key!r})]
attempts += [read(f"{{state}}/rooms.json"), read(f"{{state}}/rooms/../rooms/{{theirs}}/node.json")]
attempts += [look(f"{{state}}/rooms/"), lambda: got.append(os.listdir("/root"))]
for attempt in attempts:
    try:
        attempt()
    except (OSError, ValueError):
        pass
got
"""


def test_cells_get_nothing_of_another_person(node: Node) -> None:
    bob, mallory = node.people["bob"], node.people["mallory"]
    with bob.begin(f"import monarch_nb as nb\n{HOLDS}") as held:
        assert held.stdout is not None
        try:
            facts = {
                "pid": int(held.stdout.readline()),
                "home": pwd.getpwnam(bob.name).pw_dir,
                "state": str(node.directory),
            }
            code = TRIES.format(**facts, theirs=bob.name, key=str(node.directory.parent / "keys" / "node.pem"))
            assert node.cell("mallory", code) == "[]"
            own = TRIES.format(**facts, theirs=bob.name, key="/dev/null")
            [seen] = bob.run(f"import monarch_nb as nb\nprint(nb.attach('held').mesh.run({own!r}).values[0])")
            assert all(what in seen for what in ("signal", "b'home'", "state.sqlite"))  # the attempts are real ones
            refused = mallory.run(
                "import monarch_nb as nb\ntry: nb.attach('held').mesh.run('1')\n"
                "except nb.MonarchNbError as error: print(type(error).__name__)"
            )
            assert refused == ["AccessDenied"]
        finally:
            held.communicate("\n", timeout=TIMEOUT_S)


DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        os.dup2(0, 1)
        os.execve(sys.executable, [sys.executable, "-c", "import time; time.sleep(600)"], {})
    os._exit(0)
"""


def test_release_ends_what_has_forked_twice(node: Node) -> None:
    if "--cgroup" not in str(node.words):
        pytest.skip("without cgroups (v2) nothing finds what left its session")
    code = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {DAEMON!r}], stdout=-1).stdout.decode()"
    pid = int(node.cell("mallory", f"{code}.strip()").strip("'"))
    eventually(lambda: gone(pid))


KEEPS = """
import sys
r = nb.reserve("kept", procs=1, preload=[])
r.mesh.run("kept = 0")
print("held", flush=True)
for line in sys.stdin:
    print(r.mesh.run("kept += 1; (kept, __import__('getpass').getuser())").values, flush=True)
r.release()
"""


@pytest.mark.slow
def test_killed_gateway_warden_and_rooms_find_everybodys_ranks_again(node: Node) -> None:
    held = [node.people[who].begin(f"import monarch_nb as nb\n{KEEPS}") for who in ("bob", "mallory")]
    names, users = [node.people[who].name for who in ("bob", "mallory")], node.directory.parent / "users.toml"

    def all_say(count: int) -> None:
        for one, name in zip(held, names, strict=True):
            assert one.stdin is not None
            one.stdin.write("\n")
            one.stdin.flush()
            assert one.stdout is not None
            assert one.stdout.readline() == f"[({count}, '{name}')]\n", node.log.read_text()

    def then_anotherserves(end: Callable[[], object]) -> None:
        """A client waits for 2 s, and a busy machine may need more; and the gateway that is ending is not meant."""
        served = node.log.read_text().count("serves on")
        end()
        eventually(lambda: node.log.read_text().count("serves on") > served)

    def end_warden() -> None:
        node.warden.kill()
        node.warden.wait(TIMEOUT_S)
        node.start()

    try:
        assert [one.stdout.readline() for one in held if one.stdout] == ["held\n"] * 2
        all_say(1)
        for name in names:
            os.kill(_pid_in(node.directory / "rooms" / name), signal.SIGKILL)
        all_say(2)
        users.write_text(f'allow = ["{names[0]}"]\n')  # the other one keeps what they hold
        [gateway] = (node.directory / "gateway").glob("lab/host1")
        then_anotherserves(lambda: os.kill(_pid_in(gateway), signal.SIGKILL))
        all_say(3)
        then_anotherserves(end_warden)
        all_say(4)
    finally:
        said = [one.communicate(timeout=TIMEOUT_S) for one in held]
        users.write_text("")
        assert [one.returncode for one in held] == [0, 0], said


def _pid_in(directory: Path) -> int:
    return int(json.loads((directory / "node.json").read_text())["pid"])


AMOUNTS = """
import pathlib
def tried(**amounts):
    said = []
    try:
        nb.reserve("limited", procs=1, preload=[], progress=said.append, **amounts).release()
        print("reserved")
    except nb.MonarchNbError as error:
        print(type(error).__name__, error)
        assert said[-1] == "leasing 1 node × 1 proc", said  # before it, perhaps, that a node does not answer yet
        assert not any("starting" in line for line in said), said
    assert not [held for held in nb.list_reservations() if held.name == "limited"]
users = pathlib.Path({users!r})
r = nb.reserve("free", procs=1, preload=[])  # a room is there
try:
    users.write_text('[limits."*"]\\nmemory = "64G"\\ncpus = 8\\n')
    tried(memory="128G")
    tried(memory="8G", cpus=8.5)
    users.write_text("")
    tried(memory="8G")
    print(r.status().amounts == "" and r.mesh.run("1 + 1").values)
finally:
    users.write_text("")
    r.release()
"""


def test_amounts_that_root_does_not_allow_or_the_machine_can_not_keep_are_refused_before_a_rank_starts(
    node: Node,
) -> None:
    """Where a machine has the controllers, what is allowed is kept."""
    users, name = node.directory.parent / "users.toml", node.people["bob"].name
    more, cpus, cannot, free = node.run("bob", AMOUNTS.format(users=str(users)))
    assert (
        more == f"WardenRefused {name} may have at most 64G of memory on this machine, not 128G (limits in users.toml)"
    )
    assert cpus == f"WardenRefused {name} may have at most 8 CPUs on this machine, not 8.5 (limits in users.toml)"
    if cannot != "reserved":
        assert "WardenRefused" in cannot
        assert "this machine can not limit memory or CPUs: that takes cgroups (v2) with the controllers" in cannot
    assert free == "[2]"


GPUS = (
    """
import sys
code = """
    + repr("""
import errno, os
opened = []
for minor in range(8):
    try:
        os.open(f"{nodes}/{minor}", os.O_RDWR)
        opened.append(minor)
    except OSError as error:
        if error.errno != errno.EPERM:  # it may be opened, and has no driver or no GPU
            opened.append(minor)
os.environ["CUDA_VISIBLE_DEVICES"], opened
""")
    + """
r = nb.reserve("gpus", gpus=2, preload=[])
print([rank.gpu_indices for rank in r.mesh.status()], flush=True)
for value in r.mesh.run(code.replace("{nodes}", sys.stdin.readline().strip())).values:
    print(*value, flush=True)
sys.stdin.readline()
r.release()
"""
)


def test_a_rank_opens_its_reservations_gpus_and_no_others(node: Node) -> None:
    """Who can not open others counts their own from 0, as CUDA does there."""
    if "--warden=--without-cgroups" in node.words or "can not be fenced" in node.log.read_text():
        pytest.skip("nothing fences GPUs on this machine")
    nodes = node.directory.parent / "nodes"
    nodes.mkdir()
    nodes.chmod(0o755)
    for minor in range(8):
        os.mknod(nodes / str(minor), stat.S_IFCHR, os.makedev(195, minor))
        (nodes / str(minor)).chmod(0o666)
    held = [node.people[who].begin(f"import monarch_nb as nb\n{GPUS}") for who in ("bob", "mallory")]
    try:
        leased = [one.stdout.readline().strip() for one in held if one.stdout]
        assert sorted(leased) == ["[(0,), (1,)]", "[(2,), (3,)]"]
        for one, own in zip(held, leased, strict=True):
            assert one.stdin is not None
            one.stdin.write(f"{nodes}\n")
            one.stdin.flush()
            minors = [index for [index] in ast.literal_eval(own)]
            assert one.stdout is not None
            assert [one.stdout.readline() for _ in minors] == [f"0,1 {minors}\n"] * 2
    finally:
        said = [one.communicate("\n", timeout=TIMEOUT_S) for one in held]
        assert [one.returncode for one in held] == [0, 0], said


LIMITED = """
import time
r = nb.reserve("limited", procs=1, preload=[], {amount})
try:
    print(r.status().amounts, r.mesh.run({code!r}).values[0])
except nb.MonarchNbError as error:
    print(r.status().amounts, type(error).__name__, r.mesh.status()[0].death)
r.release()
"""


def limits(controller: str) -> bool:
    """Whether cgroups (v2) of this machine limit memory, or CPUs."""
    controllers = UNIFIED / "cgroup.controllers"
    return controllers.exists() and controller in controllers.read_text().split()


def test_more_memory_than_a_reservation_may_have_is_what_its_rank_died_of(node: Node) -> None:
    if not limits("memory"):
        pytest.skip("v2 has no memory controller on this machine: it is v1's, or another container's")
    [said] = node.run("bob", LIMITED.format(amount="memory='1G'", code="b = b'x' * (2 << 30)\nlen(b)"))
    assert "reached their limit of 1G together" in said


TURNS = """
import time
def turn(until):
    while time.perf_counter() < until:
        pass
began, before = time.perf_counter(), time.process_time()
turn(began + 2)
(time.process_time() - before) / (time.perf_counter() - began) < 0.35
"""


def test_a_reservation_gets_no_more_cpus_than_it_may(node: Node) -> None:
    if not limits("cpu"):
        pytest.skip("v2 has no cpu controller on this machine: it is v1's, or another container's")
    [said] = node.run("bob", LIMITED.format(amount="cpus=0.25", code=TURNS))
    assert said == "0.25 CPUs per node True"


FILES = """
import pathlib
pathlib.Path("model.py").write_text("width = 8\\n")
r = nb.reserve("files", procs=1, preload=[], files=".")
code = "import model, os; open('made', 'w').write('12'); (model.width, os.stat('model.py').st_uid, os.getcwd())"
width, uid, where = r.mesh.run(code).values[0]
r.fetch("made")
try:
    got = r.fetch({secret!r}, to="stolen").path.read_text()
except nb.MonarchNbError:
    got = "nothing"
print(width, uid, where.startswith({room!r}), pathlib.Path("made").read_text(), got)
r.release()
"""


def test_synced_files_are_the_persons_and_only_what_they_may_read_is_fetched(node: Node) -> None:
    bob = node.people["bob"].name
    secret = str(node.directory.parent / "keys" / "node.pem")
    code = FILES.format(secret=secret, room=str(node.directory / "rooms" / bob))
    assert node.run("bob", code) == [f"8 {pwd.getpwnam(bob).pw_uid} True 12 nothing"]


@pytest.fixture
def two_hosts(node: Node) -> Iterator[Node]:
    """The same node in a pool with a second one."""
    home = node.directory.parent
    listen = f"127.0.0.1:{free_port()}"
    said = {"--node-id": "host2", "--listen": listen}
    words = [said.get(before, word) for before, word in zip(["", *node.words], node.words, strict=False)]
    words = [word.replace(str(node.directory), str(home / "state2")) for word in words]
    words = [f"{word}-2" if word.startswith("--warden=--cgroup=") else word for word in words]
    change_hosts(make_paths("lab"), lambda hosts: hosts.added(listen))
    people = {}
    for who, one in node.people.items():
        (home / f"{who}2").mkdir(mode=0o700)
        people[who] = Person(node.lab, one.name, home / f"{who}2")
    second = Node(None, words, home / "state2", home / "log2", node.lab, people)  # type: ignore[arg-type]
    second.start()
    try:
        eventually(lambda: serves(second))
        yield Node(node.warden, node.words, node.directory, node.log, node.lab, people)
    finally:
        second.warden.send_signal(signal.SIGTERM)
        second.warden.wait(TIMEOUT_S)
        top = Path(f"{CGROUP}-2")
        for group in (top / "rooms", top / "gateway", top / "warden", top):
            with contextlib.suppress(FileNotFoundError):
                group.rmdir()


ACROSS = """
from monarch_nb.actor import Actor, endpoint
class Counter(Actor):
    @endpoint
    async def count(self, data):
        return len(data)
class Asker(Actor):
    @endpoint
    async def ask(self, others, size_bytes):
        import getpass
        return getpass.getuser(), list((await others.count.call(b"x" * size_bytes)).values())
r = nb.reserve("across", nodes=2, procs=1, preload=[])
print(r.mesh.run("import getpass; (rank, getpass.getuser())").values)
counters, askers = r.mesh.spawn("counters", Counter), r.mesh.spawn("askers", Asker)
for size_bytes in (10, 5_000_000):
    print(list(askers.ask.call(counters, size_bytes).get(timeout=60).values()))
r.release()
"""


@pytest.mark.slow
def test_a_reservation_on_two_hosts_runs_as_its_owner_on_both(two_hosts: Node) -> None:
    for who in ("bob", "mallory"):
        name = two_hosts.people[who].name
        sizes = [[size, size] for size in (10, 5_000_000)]
        said = [str([(rank, name) for rank in range(2)]), *(str([(name, size)] * 2) for size in sizes)]
        assert two_hosts.run(who, ACROSS) == said, two_hosts.log.read_text()
