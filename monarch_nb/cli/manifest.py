"""`monarch-nb manifest`: what `--on k8s` asks Kubernetes for, for people who ask themselves."""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path

from monarch_nb.config import DEFAULT_PORT, TrustPaths
from monarch_nb.errors import UsageError
from monarch_nb.provision.kubernetes.manifests import (
    CERTIFICATE,
    Wanted,
    add_flags,
    allocator_words,
    check_flags,
    manifests,
    script_words,
)
from monarch_nb.trust.pools import checked_pool_name, pools_directory

SUMMARY = "print the YAML of pods that are nodes of a pool, or run a script, for kubectl apply"
EXAMPLES = (
    "manifest lab --nodes 2 --gpus 8 --image registry/monarch-nb:1 -o lab.yaml",
    "manifest train --nodes 2 --gpus 8 --image registry/train:1 --command 'cd /data && exec torchrun train.py'",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.add_argument("name", metavar="NAME", help="of the pool, and of all that is made in the cluster")
    parser.add_argument("--nodes", type=int, default=1, metavar="N", help="pods (default: 1)")
    ranks = parser.add_mutually_exclusive_group()
    ranks.add_argument("--procs", type=int, metavar="N", help="CPU ranks of each")
    ranks.add_argument("--gpus", type=int, metavar="N", help="GPUs of each")
    script = "run this in each pod, and no allocator; by bash, where it has && or $NAME, say"
    parser.add_argument("--command", metavar="WORDS", help=script)
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="where to write (default: stdout)")
    add_flags(parser)


def run(options: argparse.Namespace) -> int:
    """Print or write it; return the exit status."""
    text = manifest(options)
    if options.output is None:
        print(text, end="")
        return 0
    try:
        options.output.write_text(text)
    except OSError as error:
        raise UsageError(f"can not write {options.output}: {error.strerror}") from None
    print(f"wrote {options.output}: its first lines say what to do with it")
    return 0


def manifest(options: argparse.Namespace) -> str:
    """Return the YAML, below lines that say how to use it.

    Raises:
        UsageError: a value that can not be.
    """
    import yaml

    from monarch_nb.client.reservations.taking import checked_shape

    check_flags(options)
    name = checked_pool_name(options.name)
    shape = checked_shape(options.nodes, options.procs, options.gpus)
    is_pool = options.command is None
    kind_of_ranks = ["--gpus", "visible"] if shape.gpus else ["--gpus", "none", "--procs", str(shape.procs)]
    command = ["python3", "-m", "monarch_nb.allocator", "--pool", name, "--certificate", CERTIFICATE, *kind_of_ranks]
    wanted = Wanted(
        name=name,
        namespace=options.namespace,
        nodes=shape.nodes,
        procs=shape.procs,
        gpus=shape.gpus,
        command=allocator_words(command, CERTIFICATE) if is_pool else script_words(options.command),
        options=options,
        has_allocators=is_pool,
    )
    made = json.loads(json.dumps(manifests(wanted)[::-1]))  # no part twice, which YAML would only refer to
    what = " ".join(f"{each['kind'].lower()}/{name}" for each in made)
    file = shlex.quote(str(options.output)) if options.output else "FILE"
    lines = (_pool_lines if is_pool else _script_lines)(wanted, what, file)
    return "".join(f"# {line}\n" for line in lines) + yaml.safe_dump_all(made, sort_keys=False)


def _script_lines(wanted: Wanted, what: str, file: str) -> list[str]:
    return [f"kubectl apply -f {file} runs it, and this removes it:", f"  kubectl delete {what}{_in_namespace(wanted)}"]


def _pool_lines(wanted: Wanted, what: str, file: str) -> list[str]:
    name, where = wanted.name, _in_namespace(wanted)
    certificate = TrustPaths(pools_directory() / name).node
    ranks = f"--gpus {wanted.gpus}" if wanted.gpus else f"--procs {wanted.procs}"
    return [
        f"Nodes of the pool {name}. Once, where your notebooks run, which is in the same cluster:",
        f"  monarch-nb pool init {name}",
        f"  kubectl create secret generic {name}{where} --from-file=node.pem={certificate}",
        f"  kubectl apply -f {file}",
        f"  monarch-nb pool add {name} {_addresses(wanted)}",
        f"Then: monarch-nb reserve dev --nodes {wanted.nodes} {ranks} --pool {name}",
        f"In the end: kubectl delete {what} secret/{name}{where}",
    ]


def _in_namespace(wanted: Wanted) -> str:
    return f" --namespace {wanted.namespace}" if wanted.namespace else ""


def _addresses(wanted: Wanted) -> str:
    """Return by what names the pods are found."""
    domain = f".{wanted.namespace}.svc" if wanted.namespace else ""
    if wanted.kind.name != "PyTorchJob":
        return f"dns:{wanted.name}{domain}:{DEFAULT_PORT}"
    pods = ["master-0", *(f"worker-{number}" for number in range(wanted.nodes - 1))]
    return " ".join(f"{wanted.name}-{pod}{domain}:{DEFAULT_PORT}" for pod in pods)
