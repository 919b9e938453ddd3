"""What the python of a node's ranks finds installed there."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time

from monarch_nb import config
from monarch_nb.allocator.supervision.pythons import python_environment
from monarch_nb.config import patience
from monarch_nb.errors import MonarchNbError
from monarch_nb.proto import files_pb2

ENVIRONMENT_REPORT_S = patience(20.0)
"""How long a python may take to say what is installed; on a cold network file system it reads for seconds."""


async def describe_environment(
    directory: str, default_python: str, request: files_pb2.DescribeEnvironmentRequest
) -> files_pb2.DescribeEnvironmentReply:
    """Return what the ranks' python finds installed on the node.

    Args:
        directory: the node's.
        default_python: of ranks for which no other is asked for.

    Raises:
        MonarchNbError: that python does not start, or takes too long.
    """
    asked_s = time.time()
    question = {"packages": [*request.packages], "directories": [directory, *request.directories]}
    report = await _report(request.python or default_python, json.dumps(question).encode())
    return files_pb2.DescribeEnvironmentReply(
        json=report.decode(), asked_s=asked_s, now_s=time.time(), directory=directory, version=config.VERSION
    )


async def _report(python: str, question: bytes) -> bytes:
    process = await asyncio.create_subprocess_exec(
        python,
        *("-m", "monarch_nb.worker.environment_report"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=python_environment(),
    )
    try:
        async with asyncio.timeout(ENVIRONMENT_REPORT_S):
            answer, errors = await process.communicate(question)
    except TimeoutError as error:
        raise MonarchNbError(f"{python} did not describe itself within {ENVIRONMENT_REPORT_S:g} s") from error
    finally:
        if process.returncode is None:
            process.kill()
            await asyncio.shield(process.wait())
    if process.returncode:
        last = errors.decode(errors="replace").strip().splitlines()[-1:]
        raise MonarchNbError(
            f"{python} can not describe itself: {''.join(last) or f'exit status {process.returncode}'}"
        )
    return answer
