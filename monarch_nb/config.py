"""Where things lie and what they are called: the one home of paths, environment variables and defaults.

Sockets and state lie in `$MONARCH_NB_HOME`, else in `/tmp/monarch-nb-UID/HOSTNAME`: not in $XDG_RUNTIME_DIR (removed at
logout), not in TMPDIR (differs between Slurm jobs), never on a home that hosts may share. Certificates and addresses of
pools of hosts lie in `$MONARCH_NB_CONFIG`, else in `~/.config/monarch-nb`, which hosts may well share.
Who has no home directory, or one where nothing can be made, as "/" in a container, has them in `/tmp/monarch-nb-UID`.
"""

import functools
import hashlib
import math
import os
import socket
import stat
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from monarch_nb.errors import PoolError


def patience(seconds: float) -> float:
    """Return how long to wait for who is connected, or a process that lives: longer with `$MONARCH_NB_PATIENCE`."""
    return seconds * _times(os.environ.get(PATIENCE_VARIABLE) or "1")


def gap(seconds: float) -> float:
    """Return how long somebody may be gone, or what nobody uses stays: the same however busy the machine is."""
    return seconds


def cadence(seconds: float) -> float:
    """Return how often to look, or how long to gather before going on: the same however busy the machine is."""
    return seconds


def python_identity(python: str) -> tuple[str, ...]:
    """Return what is equal for two paths of the same python.

    A kernel is often started as `python`, a command as `python3.11`: in one directory (an environment knows its
    packages by it) the links to one executable are the same python.
    """
    path = Path(python)
    return (str(path.parent.resolve()), str(path.resolve())) if path.exists() else (python,)


def python_environment() -> dict[str, str]:
    """Return the environment in which any python finds this monarch_nb."""
    source = str(Path(__file__).parent.parent)
    path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path}


def passed_on() -> dict[str, str]:
    """Return what of this process's environment is to be set for allocators that do not inherit it: those of other
    machines."""
    return {name: os.environ[name] for name in (PATIENCE_VARIABLE,) if os.environ.get(name)}


@functools.cache
def _times(given: str) -> float:
    """Return by how much patience is multiplied. No process ends because it was told nonsense; it says so once."""
    try:
        times = float(given)
    except ValueError:
        times = math.nan
    if 0 < times < math.inf:
        return times
    warnings.warn(f"${PATIENCE_VARIABLE} is {given!r}, which is no positive number: it is ignored", stacklevel=3)
    return 1.0


OnBreakpoint = Literal["stop", "go-on", "error"]
"""What `breakpoint()` does on ranks: waits until somebody answers, says so and goes on, or raises."""

STACKS_SIGNAL = 57
"""SIGRTMAX-7, at which a rank writes the stacks of its threads, also while C code holds the interpreter. Nobody else
uses it: SIGUSR1 and SIGUSR2 belong to people's programs, which save and requeue themselves at them."""
STACKS_THREAD = "monarch_nb"
"""What the kernel calls that thread of a rank which gets it: ours, because a signal ends what C code sleeps or waits
for."""

VERSION = "0.1.0"
PROTOCOL = 8
HOME_VARIABLE = "MONARCH_NB_HOME"
CONFIG_VARIABLE = "MONARCH_NB_CONFIG"
POOL_VARIABLE = "MONARCH_NB_POOL"
"""The pool that is meant when nobody names one."""
SSH_VARIABLE = "MONARCH_NB_SSH"
"""The command of ssh's client, as in `ssh -F ~/lab.config`."""
RANK_TOKEN_VARIABLE = "MONARCH_NB_RANK_TOKEN"
SHARED_VARIABLE = "MONARCH_NB_SHARED"
"""In the ranks' environment: the storage that all nodes of the reservation see, when there is one."""
LOG_LIMIT_VARIABLE = "MONARCH_NB_LOG_LIMIT"
"""How much each node keeps of what ranks print, as in 20GB; 0: everything."""
LOG_LIMIT_BYTES = 20 * 10**9
"""When nobody says: so much, or a quarter of the disk where that is less."""
GPU_LOCKS_VARIABLE = "MONARCH_NB_GPU_LOCKS"
"""The directory of `gpu_locks_directory`, the same for all users of the machine."""
NONINTERACTIVE_VARIABLE = "MONARCH_NB_NONINTERACTIVE"
PATIENCE_VARIABLE = "MONARCH_NB_PATIENCE"
"""How many times as long as usual to wait for who is connected and slow, as on a busy machine."""
ACTOR_OUTSIDE = "monarch_nb.client.actors.runtime:install"
"""What makes a process that is no rank a client of actors, when it first needs that: called without arguments."""
DEFAULT_PRELOAD = ("torch",)
POOL_READY = "local pool ready"
"""So begins the line that says that a reservation has started a local pool, which stays when the reservation ends."""
DEFAULT_POOL = "local"
LIMITS_FILE = "limits.toml"
"""Of fairness."""
DEFAULT_PORT = 7878
"""Of allocators that listen to a network."""
MAIN_MESH = "main"
"""The mesh that a reservation is made with and ends with."""
MONARCH_MESH = "monarch"
"""The mesh whose ranks, one on each node, run the worker loops of Monarch's own engine."""
MONARCH_LINGER_S = gap(600.0)
"""How long these go on when the last client that uses them is gone."""
GRPC_VARIABLES = {"GRPC_ENABLE_FORK_SUPPORT": "0", "GRPC_VERBOSITY": "NONE"}
"""gRPC's fork handlers print noise at every `!command` of a notebook; nothing here uses gRPC after a fork."""
HANDLES_S = patience(30.0)
"""How long a script's rank that handles SIGTERM, or the end of another, may take before it is killed: as under
torchrun."""
MONARCH_OUTPUT_VARIABLE = "MONARCH_NB_ENGINE_OUTPUT"
"""Tells a process of Monarch's whose output files it prints to: RANK:DIRECTORY."""
"""Names the node of such a process, for people."""
MONARCH_CLIENT_VARIABLE = "MONARCH_NB_ENGINE_CLIENT"
"""Tells it whose it is, to end with that: PID:NAMESPACE, the latter of pids."""
MONARCH_CALLER_VARIABLE = "MONARCH_NB_ENGINE_CALLER"
"""Tells it in whose runs it prints: `client` of run.proto's Calls."""
LOG_LINES = 50
"""How many of the last lines of each rank are shown when nobody says."""
MAX_SOCKET_PATH_BYTES = 103
"""On macOS; Linux takes 107."""
TUNNEL_SCHEME = "unix://"
"""How the address of a socket begins that leads to another machine, as gRPC writes absolute paths; a node of this
machine has `unix:` and its path."""
NUMBERS_TO_SPARE = 1000
"""Numbers of runs that are left out when nobody knows which was the newest."""
CHUNK_BYTES = 1 << 20
"""Largest piece of a blob in one message."""
INLINE_VALUE_BYTES = 128 << 10
"""Values pickled to more than this travel as blobs."""
UNFOLDED_RANKS = 8
"""What no more ranks than this return is shown as it is; of more, different numbers and tensors are one row."""
TORCH_PRESETS = ("torch", "dist", "device")
"""Names that the cells of a rank have besides its numbers, once torch is there or a cell mentions them."""
PRESETS = ("rank", "world_size", "local_rank", *TORCH_PRESETS)
"""All names that the cells of a rank have from the start."""
FACTS_MIME = "application/vnd.monarch-nb.facts+json"
"""In the MIME bundle of a value: its facts, for the row of many ranks (worker.shell.facts)."""
RESTARTED = "restarted while the run went on"
"""Cause of the end of a rank that its user had replaced, or how it begins."""
PROVISIONAL_LEASE_S = gap(20.0)
"""A lease that is not confirmed is given back when its client has had no session for so long. While it has one, the
ranks of other nodes may take as long as they like to start."""


def home_directory() -> Path:
    """Return the state directory of this user on this host, made and verified.

    Raises:
        PoolError: it exists but is a link, belongs to another user or is open to others.
    """
    if chosen := os.environ.get(HOME_VARIABLE):
        return private_directory(Path(chosen).expanduser().absolute())
    return private_directory(private_directory(_temporary_root()) / socket.gethostname())


def config_directory() -> Path:
    """Return where certificates and addresses of pools of hosts lie; it may not be there yet."""
    if chosen := os.environ.get(CONFIG_VARIABLE):
        return Path(chosen).expanduser().absolute()
    own = Path(os.path.expanduser(os.environ.get("XDG_CONFIG_HOME") or "~/.config"), "monarch-nb")
    nearest = next((path for path in (own, *own.parents) if os.path.exists(path)), own)
    if own.is_absolute() and (nearest == own or os.access(nearest, os.W_OK)):
        return own
    return private_directory(_temporary_root()) / "config"


def private_directory(path: Path, variable: str = HOME_VARIABLE) -> Path:
    """Make `path` (0700, and so every parent) if it is missing; verify that only this user can enter it. One that is
    empty and this user's is closed to others.

    Args:
        variable: of the environment, which chooses another; named in errors.

    Raises:
        PoolError: it can not be made, is a link or a file, belongs to another user or is open to others.
    """
    try:
        for missing in (*reversed(path.parents), path):
            if not missing.exists():
                missing.mkdir(mode=0o700, exist_ok=True)
        facts = path.lstat()
    except FileExistsError as error:
        raise PoolError(f"{error.filename} is a link or a file; remove it or set {variable}") from error
    except OSError as error:
        raise PoolError(f"can not make {path} ({error.strerror}); set {variable}") from error
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid():
        raise PoolError(f"{path} is a link, a file or another user's; remove it or set {variable}")
    if facts.st_mode & 0o077 and not any(path.iterdir()):
        path.chmod(0o700)
    elif facts.st_mode & 0o077:
        raise PoolError(f"{path} is open to other users: run chmod 700 {path}, or set {variable}")
    return path


def default_pool() -> str:
    """Return the pool that is meant when nobody names one."""
    return os.environ.get(POOL_VARIABLE) or DEFAULT_POOL


def local_limits() -> Path:
    """Return where the limits of the local pool are, if somebody has written any."""
    return config_directory() / LIMITS_FILE


def pool_directory(pool: str = DEFAULT_POOL) -> Path:
    """Return the directory of a pool on this host; its nodes are the folders in it."""
    return home_directory() / pool


def gpu_locks_directory() -> Path:
    """Return where all allocators of this machine, whosever they are, say which GPUs they lease."""
    return Path(os.environ.get(GPU_LOCKS_VARIABLE) or "/tmp/monarch-nb-gpus").expanduser().absolute()


def _temporary_root() -> Path:
    return Path(f"/tmp/monarch-nb-{os.getuid()}")


@dataclass(frozen=True)
class TrustPaths:
    """Every path of one pool of hosts, in the config directory of whoever made it or was invited."""

    directory: Path

    @property
    def authority(self) -> Path:
        """Certificates of the pool's authority, the newest first."""
        return self.directory / "authority.pem"

    @property
    def authority_key(self) -> Path:
        """Only with who made the pool."""
        return self.directory / "authority.key"

    @property
    def issued(self) -> Path:
        """Every certificate that was issued, without keys; only with who made the pool."""
        return self.directory / "issued.pem"

    @property
    def identity(self) -> Path:
        """This user's certificate, key and authority."""
        return self.directory / "identity.pem"

    @property
    def node(self) -> Path:
        """The same for every node of the pool."""
        return self.directory / "node.pem"

    @property
    def start(self) -> Path:
        """JSON: how the allocator was started, with its environment."""
        return self.directory / "start.json"

    @property
    def revoked(self) -> Path:
        """The list of revoked certificates, signed by the authority."""
        return self.directory / "revoked.pem"

    @property
    def hosts(self) -> Path:
        """JSON: where the pool's nodes are found."""
        return self.directory / "pool.json"

    @property
    def limits(self) -> Path:
        """TOML: how much people may hold, where somebody has written that."""
        return self.directory / LIMITS_FILE

    @property
    def last_heard(self) -> Path:
        """JSON: what nodes said last, for a time when they do not answer."""
        return self.directory / "last-heard.json"

    @property
    def jobs(self) -> Path:
        """Of a pool that was made for jobs of an engine: a directory for each, with these paths of its own."""
        return self.directory / "jobs"

    @property
    def job(self) -> Path:
        """JSON: what is remembered of a job, in its directory."""
        return self.directory / "job.json"

    @property
    def published(self) -> Path:
        """Where the nodes of a job say where they are."""
        return self.directory / "nodes"

    @property
    def log(self) -> Path:
        """What a job prints."""
        return self.directory / "job.log"


SOCKETS = "s"
"""The directory of a node's sockets, in its own: short, as their paths have to be."""


@dataclass(frozen=True)
class NodePaths:
    """Every path of one node. Sockets move to a short directory when the node's own is too long for them."""

    directory: Path

    @property
    def sockets(self) -> Path:
        own = self.directory / SOCKETS
        if len(os.fsencode(own)) + 24 <= MAX_SOCKET_PATH_BYTES:
            return own
        return _temporary_root() / hashlib.sha256(os.fsencode(self.directory)).hexdigest()[:12]

    @property
    def allocator_socket(self) -> Path:
        return self.sockets / "allocator"

    @property
    def mail_socket(self) -> Path:
        """Where clients of this machine connect for mail."""
        return self.sockets / "post"

    @property
    def address(self) -> str:
        """The allocator's, as gRPC writes it."""
        return f"unix:{self.allocator_socket}"

    def template_socket(self, key: str) -> Path:
        return self.sockets / f"t-{key}"

    def rank_socket(self, mesh_id: str, rank: int, incarnation: int) -> Path:
        return self.sockets / f"{mesh_id[:8]}-{rank}-{incarnation}"

    @property
    def lock(self) -> Path:
        return self.directory / "lock"

    @property
    def facts(self) -> Path:
        """JSON: written when the allocator serves; `node_id`, `pid`, `start_ticks`, `boot_id`, `address`."""
        return self.directory / "node.json"

    @property
    def start(self) -> Path:
        """JSON: how the allocator was started, with its environment."""
        return self.directory / "start.json"

    @property
    def revoked(self) -> Path:
        """The newest list of revoked certificates, of a node of a network."""
        return self.directory / "revoked.pem"

    @property
    def database(self) -> Path:
        return self.directory / "state.sqlite"

    @property
    def accepted_runs(self) -> Path:
        """What is not in the database yet."""
        return self.directory / "accepted-runs"

    @property
    def allocator_log(self) -> Path:
        return self.directory / "allocator.log"

    def template_log(self, key: str) -> Path:
        return self.directory / f"template-{key}.log"

    @property
    def workspaces(self) -> Path:
        """Holds one directory per reservation: its copies of the notebook's files."""
        return self.directory / "workspaces"

    @property
    def kept(self) -> Path:
        """What ranks wrote into workspaces that were released."""
        return self.directory / "kept"

    @property
    def logs(self) -> Path:
        """What the ranks of meshes printed that have ended: a directory for each."""
        return self.directory / "logs"

    @property
    def removed(self) -> Path:
        """Directories that are being removed."""
        return self.directory / "removed"

    @property
    def meshes(self) -> Path:
        """Holds one directory per mesh."""
        return self.directory / "meshes"

    def mesh(self, mesh_id: str) -> Path:
        return self.meshes / mesh_id

    def store_note(self, mesh_id: str) -> Path:
        """Where the mesh's store is, once it has moved."""
        return self.mesh(mesh_id) / "store"

    def runs(self, mesh_id: str) -> Path:
        """Holds one directory per run number, and in it RANK.out, RANK.err and RANK.marks."""
        return self.mesh(mesh_id) / "runs"

    def newest_run(self, mesh_id: str) -> Path:
        """The number of the mesh's newest run."""
        return self.mesh(mesh_id) / "newest-run"

    def blobs(self, mesh_id: str) -> Path:
        return self.mesh(mesh_id) / "blobs"

    @property
    def mail(self) -> Path:
        """Large content of messages, on its way to or from clients and other nodes."""
        return self.directory / "mail"

    def mail_of(self, mesh_id: str) -> Path:
        """The same, on its way to or from the ranks of a mesh."""
        return self.mesh(mesh_id) / "mail"

    def stacks(self, mesh_id: str, rank: int, script: str = "") -> Path:
        """What faulthandler writes of a live rank, or of the process that a script (a run's id) has beside it."""
        return self.mesh(mesh_id) / f"{rank}{script and f'-{script}'}.stacks"

    def error_file(self, mesh_id: str, rank: int, script: str) -> Path:
        """What torch's `@record` writes when the process that a script (a run's id) has beside a rank fails."""
        return self.mesh(mesh_id) / f"{rank}-{script}.error.json"


def run_file(runs: str | os.PathLike[str], number: int, rank: int, kind: str) -> Path:
    """Return the path of a rank's "out", "err", "marks", "run" or "dropped" file of output `number`."""
    return Path(runs) / str(number) / f"{rank}.{kind}"


CALLER_FILE_BYTES = 8


def caller_file(runs: str | os.PathLike[str], client: str) -> Path:
    """Return where the number of a client's newest run of calls is, of a mesh whose outputs lie in a directory. It is
    written in place, with its lowest byte first: whoever asks often maps the file."""
    return Path(runs).parent / "callers" / client


def found_blob(run_id: str, rank: int, instrument: str) -> str:
    """Return the name of the blob with what an instrument found in a script, on a rank of the mesh."""
    return f"{run_id}-{rank}.found-{instrument}"
