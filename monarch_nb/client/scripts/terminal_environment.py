"""What a script has of the environment of the terminal in which it is started, as under torchrun."""

import re
from collections.abc import Mapping

_OF_A_RANK = re.compile(
    r"(LOCAL_|GROUP_|NODE_)?RANK|(LOCAL_|GROUP_)?WORLD_SIZE|ROLE_\w+|MASTER_(ADDR|PORT)|TORCHELASTIC_\w+|PET_\w+"
    r"|CUDA_VISIBLE_DEVICES|(SLURM|PMI|PMIX|OMPI)_\w+|(MONARCH_NB|JPY|GRPC)_\w+|_"
)
"""The ranks have their own, and torchrun reads PET_ variables itself."""
_OF_A_MACHINE = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|PWD|OLDPWD|SHLVL|HOST|HOSTNAME|MAIL|TMPDIR|TEMP|TMP|DISPLAY|LANG|LANGUAGE|VIRTUAL_ENV"
    r"|PYTHONHOME|PYTHONEXECUTABLE|(TERM|COLORTERM|TMUX|SSH|XDG|DBUS|LC|LD|DYLD|CONDA|PYENV|KUBERNETES|VSCODE|__CF"
    r"|BASH_FUNC)(_.*)?"
)
"""What is so on one machine, or in one session: on other hosts it would be wrong."""


def passed_on(environment: Mapping[str, str], *, to_other_hosts: bool) -> dict[str, str]:
    """Return the variables of a terminal that a script has, too.

    Args:
        to_other_hosts: some of its ranks are not on this machine.

    Example:
        >>> passed_on({"LR": "1", "RANK": "0", "PATH": "/opt/homebrew/bin"}, to_other_hosts=True)
        {'LR': '1'}
    """
    left_out = [_OF_A_RANK, *([_OF_A_MACHINE] if to_other_hosts else [])]
    return {
        name: value
        for name, value in environment.items()
        if not any(pattern.fullmatch(name) for pattern in left_out) and _can_be_sent(name + value)
    }


def _can_be_sent(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # bytes that are no UTF-8
        return False
    return True
