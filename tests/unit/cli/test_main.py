"""The command line without a pool: what it reads, what it refuses, and how."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from monarch_nb import provision
from monarch_nb.cli.main import main, make_parser
from monarch_nb.cli.run import exit_status, take_name
from monarch_nb.client.advice import in_terminal
from monarch_nb.client.connections.events import Result
from monarch_nb.client.logs import records
from monarch_nb.client.logs.records import PastLog
from monarch_nb.client.pools.choosing import Shape
from monarch_nb.client.pools.held import not_found
from monarch_nb.client.reservations import lists
from monarch_nb.client.reservations.lists import Holdings
from monarch_nb.config import CONFIG_VARIABLE, HOME_VARIABLE, VERSION
from monarch_nb.errors import (
    CapacityError,
    MonarchNbError,
    NodeUnreachable,
    RankFailure,
    ReservationNotFound,
    ReservationReleased,
    RunFailed,
)
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.provision import Node, daemons, jobs, known
from monarch_nb.trust.membership import make_pool


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "home"
    directory.mkdir(mode=0o700)
    monkeypatch.setenv(HOME_VARIABLE, str(directory))
    monkeypatch.setenv(CONFIG_VARIABLE, str(tmp_path / "config"))
    return directory


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as exit_info:
        main(words)
    assert exit_info.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["staus"], "no command 'staus': did you mean status?"),
        (["frobnicate"], "no command 'frobnicate'; there are up, status"),
        (["get", "loss"], "no command 'get': in a notebook it is %mesh pull"),
        (["sbatch", "train.sh"], "no command 'sbatch': run --noblock starts a script"),
        (["logs", "--target", "0"], "unknown flag --target: did you mean --targets?"),
        (["logs", "--zzz"], "unknown flag --zzz; monarch-nb logs --help lists all"),
        (["logs", "-p"], "unknown flag -p; nearest: --pool; monarch-nb logs --help lists all"),
        (["release", "--zzz"], "unknown flag --zzz; it has --help (-h), --pool, --all, --save"),
        (["submit", "train.py"], "you hold no ranks: --nodes 2 --procs 4 reserves ranks"),
        (["run", "torchrun", "train.py"], "you hold no ranks: --nodes 2 --procs 4 reserves ranks"),
        (["logs", "dev", "--rank"], "argument -t/--targets: expected one argument"),
        (["up", "-N", "0"], "nodes must be at least 1, not 0"),
        (["up", "--nnodes=0", "--nproc_per_node", "2"], "nodes must be at least 1, not 0"),
        (["logs", "-n", "-1"], "--lines is at least 0, not -1"),
        (["up", "--nodes", "0"], "nodes must be at least 1, not 0"),
        (["up", "--gpus", "4"], "invalid choice: '4'"),
        (["up", "--pool", "../x"], "'../x' is no name for a pool"),
        (["release", "dev", "--all"], "not allowed with"),
        (["logs", "--fold", "number"], "--fold is numbers, times, equal or off, not 'number': did you mean numbers?"),
        (["grow", "dev", "--nodes", "4", "--wait", "soon"], "--wait"),
        (["run", "train.py"], "you hold no ranks: --nodes 2 --procs 4 reserves ranks"),
        (["run", "dev"], "there is no reservation dev; a script of that name is ./dev"),
        (["reserve", "dev", "--nodes", "2"], "say how many ranks per node: --gpus N, or --procs N for CPU ranks"),
        (["reserve", "dev", "--procs", "2", "--resume"], "unknown flag --resume"),
        (["run", "--nproc-per-node", "x", "train.py"], "--nproc-per-node x: give a whole number"),
        (["run", "dev", "--procs", "2", "train.py"], "dev is held already: leave out --nodes, --procs and --gpus"),
        (["run", "--nodes", "2", "train.py"], "say how many ranks per node: --procs N or --gpus N"),
        (["run", "dev", "--nproc", "2", "train.py"], "unknown flag --nproc"),
        (["run", "--use-env", "train.py"], "torchrun's flags are known up to torch 2"),
    ],
)
def test_wrong_usage_is_explained_and_changes_nothing(
    home: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert message in refusal(capsys, *words)
    assert list(home.iterdir()) == []


def test_alone_it_shows_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "start the local pool" in capsys.readouterr().err


def test_without_a_pool_there_is_nothing_to_do(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for said, lines in {
        "no pool 'local' is up": ("status", "down", "down --force"),
        "nobody holds anything": ("list",),
        "you hold nothing in the pool local": ("release", "release --all"),
        "[]\n": ("list --json",),
        f"monarch-nb {VERSION}": ("version",),
    }.items():
        for words in lines:
            assert main(words.split()) == 0
            assert said in capsys.readouterr().out
    assert list(home.iterdir()) == []


def test_a_directory_that_is_gone_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert main(["reserve", "dev", "--procs", "1"]) == 1
    assert "has been removed: cd to another one" in capsys.readouterr().err


def test_a_pool_that_is_named_must_be_there(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_pool("lab", "alice")
    for words in (
        *("status", "status --json", "list", "list --json", "logs dev", "debug dev", "doctor", "doctor dev"),
        *("run --procs 1 train.py", "run train.py", "run dev train.py", "replace dev", "grow dev --nodes 2"),
        *("shrink dev --nodes 1", "stop grown --of dev", "extend dev 2h", "share dev", "down", "down --force"),
        *("release", "release --all", "release dev", "release alice/dev"),
    ):
        command, *more = words.split()
        assert main([command, "--pool", "labb", *more]) == 1
        out, error = capsys.readouterr()
        assert (out, error.partition(";")[0]) == ("", "monarch-nb: there is no pool 'labb'"), words
    assert list(home.iterdir()) == []


def test_a_reservation_that_can_not_be_released_does_not_keep_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    held = [SimpleNamespace(name=name, held_by_me=True, shape="1 node × 1 proc") for name in ("a", "lost", "b")]

    def attach(name: str, pool: str | None) -> SimpleNamespace:
        if name == "lost":
            raise NodeUnreachable("'lost' is held, but 1 of its 2 nodes do not answer")
        return SimpleNamespace(release=list)

    monkeypatch.setattr("monarch_nb.list_reservations", lambda pool: held)
    monkeypatch.setattr("monarch_nb.attach", attach)
    assert main(["release", "--all"]) == 1
    captured = capsys.readouterr()
    assert captured.out == "released a (1 node × 1 proc)\nreleased b (1 node × 1 proc)\n"
    assert captured.err == "monarch-nb: 'lost' is held, but 1 of its 2 nodes do not answer\n"


@pytest.mark.parametrize(
    ("problem", "rc", "said"),
    [
        (None, 1, "not released: its ranks do not save by themselves"),
        ("", 0, "saved checkpoints/0002\nreleased dev (1 node × 1 proc)\n"),
        ("a rank hangs", 1, "not released, because nothing was saved: a rank hangs: monarch-nb release without --save"),
    ],
)
def test_ranks_save_before_they_are_released(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], problem: str | None, rc: int, said: str
) -> None:
    status = None if problem is None else SimpleNamespace(last="checkpoints/0002", problem=problem)
    mesh = SimpleNamespace(autosave_status=lambda: status, save_now=lambda why, within, *, is_last: status)
    released: list[bool] = []

    def release() -> list[str]:
        released.append(True)
        return []

    reservation = SimpleNamespace(name="dev", release=release, meshes=SimpleNamespace(now=lambda: [mesh]))
    held = [SimpleNamespace(name="dev", held_by_me=True, shape="1 node × 1 proc")]
    monkeypatch.setattr("monarch_nb.list_reservations", lambda pool: held)
    monkeypatch.setattr("monarch_nb.attach", lambda name, pool: reservation)
    try:
        assert main(["release", "dev", "--save"]) == rc
    except SystemExit:  # of argparse
        assert rc
    captured = capsys.readouterr()
    assert said in captured.out + captured.err
    assert bool(released) == (rc == 0)


def test_ctrl_c_says_what_became_of_a_job(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def attach(name: str, pool: str | None) -> None:
        raise KeyboardInterrupt("Slurm job 12 could not be ended (busy): %mesh list says what ends it")

    monkeypatch.setattr("monarch_nb.attach", attach)
    assert main(["grow", "dev", "--nodes", "2"]) == 130
    said = "monarch-nb: interrupted: Slurm job 12 could not be ended (busy): monarch-nb list says what ends it"
    assert capsys.readouterr().err.strip() == said


def test_a_job_whose_reservation_has_ended_is_ended(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Slurm did not answer when it was released."""

    def end(name: str, pool: str, _say: object) -> str:
        return "Slurm job 12" if (name, pool) == ("dev", "slurm-dev") else ""

    monkeypatch.setattr(jobs, "jobs_of", lambda name: [SimpleNamespace(pool="slurm-dev")] if name == "dev" else [])
    monkeypatch.setattr("monarch_nb.client.reservations.jobs.end_job_of", end)
    assert main(["release", "dev"]) == 0
    assert capsys.readouterr().out == "dev: no node of it is held; ended Slurm job 12\n"
    assert main(["release", "other"]) == 1


def test_a_reservation_is_found_in_its_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str | None] = []
    held = [SimpleNamespace(name="dev", held_by_me=True, shape="1 node × 1 proc")]
    monkeypatch.setattr(lists, "pool_of", lambda name, pool: "slurm-dev")
    monkeypatch.setattr("monarch_nb.list_reservations", lambda pool: held)
    monkeypatch.setattr("monarch_nb.attach", lambda _, pool: asked.append(pool) or SimpleNamespace(release=list))
    assert main(["release", "dev"]) == 0
    assert asked == ["slurm-dev"]


def test_who_shares_reads_what_others_type(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    held = SimpleNamespace(owner="alice", name="dev", pool="lab", share=lambda to, grant: "")
    monkeypatch.setattr("monarch_nb.attach", lambda name, pool: held)
    assert main(["share", "dev", "--to", "bob", "--pool", "lab"]) == 0
    assert main(["share", "dev", "--to", "bob", "--run", "--pool", "lab"]) == 0
    how = "monarch-nb logs alice/dev --pool lab"
    assert capsys.readouterr().out.splitlines() == [
        f"dev: bob may see what runs on it ({how})",
        f"dev: bob may run cells on it, with your rights on its nodes ({how})",
    ]


def test_list_says_the_pool_and_who_has_no_ranks_of_main(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = {"name": "dev", "pool": "slurm-dev", "mesh_names": "main, grown"}
    without_main = ("node3: held, no ranks",)
    rest = dict.fromkeys(("holder", "shape", "alive_of_all", "right", "left", "notebook"), "")
    info = SimpleNamespace(**told, **rest, nodes_without_main=without_main)
    monkeypatch.setattr("monarch_nb.list_everywhere", lambda memory: Holdings(("slurm-dev",), [info], {}))  # type: ignore[list-item]
    assert main(["list"]) == 0
    header, row, note = capsys.readouterr().out.splitlines()
    assert "meshes" in header
    assert "main, grown" in row
    assert note == "dev: node3: held, no ranks"
    assert (header.split()[:2], row.split()[:2]) == (["reservation", "pool"], ["dev", "slurm-dev"])


def test_status_shows_the_pools_that_there_are_when_there_is_no_default_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(known, "known_pools", lambda: ["far", "lab"])
    assert main(["status"]) == 1
    told = capsys.readouterr()
    assert told.out == "pool far\n\npool lab\n"
    assert [line.partition(" is up")[0] for line in told.err.splitlines()] == [
        "monarch-nb: no pool 'far'",
        "monarch-nb: no pool 'lab'",
    ]


def test_status_for_programs_tells_of_all_pools_also_beside_one_of_the_default_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def describe(address: str, **_: object) -> pb.DescribeReply:
        raise NodeUnreachable(f"{address} does not answer", address)

    def nodes(pool: str) -> list[Node]:
        return [] if pool == "far" else [Node("n1", Path("/nowhere"), "10.0.0.1:7000", 0)]

    monkeypatch.setattr(known, "known_pools", lambda: ["local", "far", "lab"])
    hosts = SimpleNamespace(nodes=nodes, heal=lambda **_: None)
    monkeypatch.setattr(provision, "provisioner_of", lambda _: hosts)
    monkeypatch.setattr(daemons, "describe", describe)
    assert main(["status", "--json"]) == 1
    told = capsys.readouterr()
    assert [each["pool"] for each in json.loads(told.out)] == ["local", "lab"]
    assert "monarch-nb: no pool 'far' is up" in told.err
    assert main(["status", "--json", "--pool", "lab"]) == 0
    assert [each["pool"] for each in json.loads(capsys.readouterr().out)] == ["lab"]


@pytest.mark.parametrize("answers", [True, False])
def test_status_says_what_became_of_the_job_of_a_node_that_does_not_answer(
    answers: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    node = Node("n1", Path("/nowhere"), "10.0.0.1:7000", 0)

    def describe(address: str, **_: object) -> pb.DescribeReply:
        if answers:
            return pb.DescribeReply(node_id="n1", hostname="host", template_ready=True)
        raise NodeUnreachable(f"{address} does not answer", address)

    hosts = SimpleNamespace(nodes=lambda pool: [node], heal=lambda **_: None)
    monkeypatch.setattr(provision, "provisioner_of", lambda _: hosts)
    monkeypatch.setattr(daemons, "describe", describe)
    monkeypatch.setattr(jobs, "trouble", lambda _: "Slurm job 12 was cancelled: %mesh replace dev asks for another")
    monkeypatch.setattr("monarch_nb.list_reservations", lambda *_, **__: [])
    assert main(["status", "--pool", "slurm-dev"]) == (0 if answers else 1)
    told = capsys.readouterr().out
    assert ("Slurm job 12 was cancelled: monarch-nb replace dev asks for another" in told) is not answers


def test_how_a_pool_is_named_is_a_command_that_works() -> None:
    said = "dev is held in the pool lab: --pool lab, or MONARCH_NB_POOL=lab"
    typed = ["run", "dev", "a.py", "--lr", "3e-4"]
    assert in_terminal(said, typed) == "dev is held in the pool lab: monarch-nb run --pool lab dev a.py --lr 3e-4"
    options = make_parser().parse_args(["run", "--pool", "lab", "dev", "a.py", "--lr", "3e-4"])
    assert (options.pool, options.script, options.arguments) == ("lab", "dev", ["a.py", "--lr", "3e-4"])
    assert in_terminal(said, ["release", "--pool", "local", "dev"]) == said, "who has named one knows where"


def test_what_is_typed_is_reserved(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[tuple[object, dict[str, object]]] = []
    status = SimpleNamespace(shape="2 nodes × 8 gpus", left="8 h")
    held = SimpleNamespace(
        name="dev", pool="slurm-dev", mesh=SimpleNamespace(ranks=range(16)), status=lambda **_: status
    )

    def reserve(name: str | None, **more: object) -> SimpleNamespace:
        asked.append((name, {key: value for key, value in more.items() if value}))
        return held

    monkeypatch.setattr("monarch_nb.reserve", reserve)
    line = "reserve dev --nodes 2 --gpus 8 --time 8h --env A=1 --env B=2 --wait --share bob:run --on slurm -- -p a100"
    assert main(line.split()) == 0
    [(name, more)] = asked
    assert (name, more.pop("directory"), more.pop("pool")) == ("dev", os.getcwd(), "local")
    assert callable(more.pop("progress"))
    assert more == {
        "nodes": 2,
        "gpus": 8,
        "time": 8 * 3600.0,
        "env": {"A": "1", "B": "2"},
        "wait": True,
        "files": True,
        "share": {"bob": "run"},
        "on": "slurm",
        "on_arguments": ("-p", "a100"),
    }
    assert capsys.readouterr().out.splitlines() == [
        "dev: 2 nodes × 8 gpus, 16 ranks held already, 8 h left",
        "monarch-nb run dev SCRIPT runs a script there, monarch-nb release dev ends it",
    ]
    info = SimpleNamespace(name="dev", pool="slurm-dev", held_by_me=True, nodes=2, gpus=8, procs=0)
    monkeypatch.setattr("monarch_nb.list_everywhere", lambda: SimpleNamespace(reservations=[info]))
    assert main(["reserve", "dev"]) == 0
    _, more = asked[-1]
    assert [more.get(key) for key in ("nodes", "gpus", "procs", "pool")] == [2, 8, None, "slurm-dev"]
    assert "held already" in capsys.readouterr().out
    assert main(["reserve", "dev", "--procs", "1", "--env", "NO_WHERE"]) == 0
    assert capsys.readouterr().err == "--env NO_WHERE changes nothing: it is not set here\n"


@pytest.mark.parametrize(
    ("words", "name", "script"),
    [
        (["train.py", "--lr", "1"], None, ["train.py", "--lr", "1"]),
        (["dev", "train.py", "-t", "0"], "dev", ["train.py", "-t", "0"]),
        (["./dev", "train.py"], None, ["./dev", "train.py"]),
        (["-m", "pkg", "--", "--depth=4"], None, ["pkg", "--depth=4"]),
        (["dev", "-m", "pkg", "--", "--depth=4"], "dev", ["pkg", "--depth=4"]),
        (["--no-python", "hostname", "-f"], None, ["hostname", "-f"]),
        (["-t", "0", "dev", "--nproc_per_node", "1", "a/b", "dev"], "dev", ["a/b", "dev"]),
    ],
)
def test_run_tells_a_name_from_a_script(words: list[str], name: str | None, script: list[str]) -> None:
    options = make_parser().parse_args(["run", *words])
    assert take_name(options) == name
    assert [options.script, *options.arguments] == script


def test_curves_of_what_has_ended(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def attach(name: str | None, *, pool: str) -> None:
        raise ReservationNotFound("nothing to attach to")

    monkeypatch.setattr("monarch_nb.list_reservations", lambda _: [])
    monkeypatch.setattr("monarch_nb.attach", attach)
    monkeypatch.setattr(records, "past_log", lambda name, *_: PastLog(name, 1e9, (0,), []) if name == "dev" else None)
    monkeypatch.setattr(PastLog, "past_runs", lambda _: [])
    assert main(["plot", "dev", "loss"]) == 1
    said, why = capsys.readouterr().err.splitlines()
    assert said.startswith("dev was released at 2001-09-09 ")
    assert why == "monarch-nb: nothing has run here yet: there are no numbers to draw"
    assert main(["plot", "loss"]) == 1
    assert capsys.readouterr().err == "monarch-nb: nothing to attach to\n"


def test_logs_of_what_was_released_and_printed_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def attach(name: str | None, *, pool: str) -> None:
        raise ReservationReleased("foo was released: %mesh reserve foo makes a new one", "foo", "in a terminal", 1e9)

    monkeypatch.setattr("monarch_nb.attach", attach)
    monkeypatch.setattr(records, "past_log", lambda *_: None)
    assert main(["logs", "foo"]) == 0
    said = "foo printed nothing that is kept; it was released at "
    told = capsys.readouterr().err
    assert told.startswith(said)
    assert told.endswith(" in a terminal\n")


def test_a_pool_that_was_started_for_a_script_stays(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def reserve(*_: object, progress: Callable[[str], None], **__: object) -> None:
        progress("local pool ready in 4.1 s")
        raise MonarchNbError("stop here")

    monkeypatch.setattr("monarch_nb.reserve", reserve)
    for words in ("run --procs 2 train.py", "reserve dev --procs 2"):
        assert main(words.split()) == 1
        said = capsys.readouterr().err.splitlines()
        assert said == ["local pool ready in 4.1 s; monarch-nb down ends it", "monarch-nb: stop here"]


def test_run_takes_the_only_reservation_that_fits(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shapes = {"dev": Shape(1, 4, 0), "main": Shape(1, 2, 0), "big": Shape(2, 2, 0)}
    held = [
        SimpleNamespace(name=name, shape=shape, procs=shape.procs, gpus=0, size=size, held_by_me=True)
        for (name, shape), size in zip(shapes.items(), (4, 2, 4), strict=True)
    ]
    taken: list[str] = []

    def attach(name: str, *, pool: str) -> None:
        taken.append(name)
        raise MonarchNbError("stop here")

    monkeypatch.setattr("monarch_nb.list_reservations", lambda _: held)
    monkeypatch.setattr("monarch_nb.attach", attach)
    for words, name in (
        ("--nproc-per-node 4 train.py", "dev"),
        ("--nnodes 2 train.py", "big"),
        ("--nnodes 1 --nproc-per-node 2 train.py", "main"),
    ):
        assert main(["run", *words.split()]) == 1
        assert capsys.readouterr().err == f"on {name}\nmonarch-nb: stop here\n"
    assert taken == ["dev", "big", "main"]
    said = refusal(capsys, "run", "--nproc-per-node", "2", "train.py", "--lr", "1 e-4")
    mine = "dev (1 node × 4 procs), main (1 node × 2 procs), big (2 nodes × 2 procs)"
    assert f"you hold {mine}: say which: monarch-nb run main --nproc-per-node 2 train.py --lr '1 e-4'" in said
    del held[1:]
    assert main(["run", "train.py"]) == 1
    assert capsys.readouterr().err == "monarch-nb: stop here\n", "nothing is said of the only one"


def test_an_unknown_flag_of_run_lists_ours(capsys: pytest.CaptureFixture[str]) -> None:
    assert refusal(capsys, "run", "--noblock", "a.py").count("--") < 17, "ours, not torchrun's"


def test_advice_is_what_one_types_in_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "dev", "a.py"]) == 1
    assert "%mesh" not in capsys.readouterr().err
    for error in (not_found(None, []), CapacityError("release all reservations (%mesh release NAME): …")):
        assert "%mesh" not in in_terminal(str(error))


def failure(rank: int, kind: str = "error", **facts: int) -> RankFailure:
    return RankFailure(rank, "node0", kind, "", "", **facts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("failures", "status", "after_ctrl_c"),
    [
        ([failure(0, "died", exit_code=7), failure(1)], 7, 7),
        ([failure(2), failure(0, "died", exit_code=7)], 1, 7),  # what it did to its peers is no answer
        ([failure(1)], 3, 3),
        ([failure(0), failure(2)], 1, 130),
        ([failure(0, "interrupted"), failure(2, "died", signal=9)], 137, 130),  # killed by the next Ctrl-C
        ([failure(0, "interrupted"), failure(2, "cancelled")], 130, 130),
    ],
)
def test_the_status_of_run_is_that_of_the_rank_that_failed_first(
    failures: list[RankFailure], status: int, after_ctrl_c: int
) -> None:
    def raise_failures() -> None:
        raise RunFailed(failures=failures)

    results = {each.rank: Result(each.rank, "error", 0.1, failure=each) for each in failures}
    run = SimpleNamespace(raise_failures=raise_failures, results=results, ranks=(0, 1, 2), kept_values=[0, 3, None])
    assert exit_status(run) == status  # type: ignore[arg-type]
    assert exit_status(run, is_interrupted=True) == after_ctrl_c  # type: ignore[arg-type]
