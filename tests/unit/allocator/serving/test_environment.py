"""What the python of a node's ranks says of itself, for doctor."""

from pathlib import Path

import pytest

from monarch_nb.allocator.serving.environment import describe_environment
from monarch_nb.errors import MonarchNbError
from monarch_nb.proto.files_pb2 import DescribeEnvironmentRequest


async def test_a_python_that_can_not_describe_itself_is_named(tmp_path: Path) -> None:
    (broken := tmp_path / "python").write_text("#!/bin/sh\ncat > /dev/null\necho 'no such interpreter' >&2\nexit 3\n")
    broken.chmod(0o700)
    with pytest.raises(MonarchNbError, match=f"^{broken} can not describe itself: no such interpreter$"):
        await describe_environment(str(tmp_path), "", DescribeEnvironmentRequest(python=str(broken)))
