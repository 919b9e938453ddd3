"""With PAM's service `monarch-nb`: PAM says who may, and gives limits and environment."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from integration.night.warden.wardens import RealWarden, finished, gone
from monarch_nb.errors import WardenRefused

SERVICE, LIMITS = Path("/etc/pam.d/monarch-nb"), Path("/etc/security/limits.d")
SHIPPED = Path(__file__).resolve().parents[4] / "deploy" / "monarch-nb.pam"


@pytest.fixture
def service(people: list[str]) -> Iterator[None]:
    """The service as we ship it, with limits for the first account."""
    if not Path("/etc/pam.d/common-account").exists() or not LIMITS.exists():
        pytest.skip("this machine has no PAM as Debian has it")
    if SERVICE.exists():
        pytest.skip(f"{SERVICE} is the machine's own")
    limits = LIMITS / f"{people[0]}.conf"
    try:
        limits.write_text(f"{people[0]} hard nofile 321\n{people[0]} soft nproc 4321\n")
        shutil.copy(SHIPPED, SERVICE)
        yield
    finally:
        SERVICE.unlink(missing_ok=True)
        limits.unlink(missing_ok=True)


def test_pam_gives_limits_and_refuses(
    start: Callable[..., RealWarden], people: list[str], service: None, cgroup: Path
) -> None:
    alice, bob, *_ = people
    warden = start(cgroup)
    opened = warden.open(alice)
    told = warden.run(
        alice,
        "import resource; answer = [resource.getrlimit(resource.RLIMIT_NOFILE)[1], "
        "resource.getrlimit(resource.RLIMIT_NPROC)[0]]",
    )
    assert told == [321, 4321]
    mapped = Path(f"/proc/{warden.process.pid}/maps").read_text()
    assert "libpam" not in mapped
    assert "/security/" not in mapped
    finished(warden.client.close_room, alice)
    assert gone(opened.pid)
    subprocess.run(["chage", "--lastday", "0", bob], check=True)
    try:
        with pytest.raises(WardenRefused, match=r"PAM refuses the account: .*\(pam_acct_mgmt, monarch-nb\)"):
            warden.client.open_room(bob)
        assert "PAM refuses the account" in warden.client.accounts([bob])[bob].refused
    finally:
        subprocess.run(["chage", "--lastday", "20000", bob], check=True)
    warden.open(bob)
    assert warden.stop() == 0
