"""What messages of the client advise, in the words of the panel: what to click instead of what to type. Pure."""

from __future__ import annotations

import re

_HINTS = [
    (r"\(%mesh release NAME\)", "(Release… on its card)"),
    (r"monarch-nb up --nodes (\d+) adds nodes to a local pool", r"Add nodes… (at Nodes) makes a local pool \1 nodes"),
    (r"--procs N asks for CPU ranks", "choose CPU ranks as Kind"),
    (r"--wait waits for it", "Wait in line waits for it"),
    (r"--force-busy also takes GPUs", "Use busy GPUs also takes those"),
    (r": monarch-nb up starts one, and so does %mesh reserve", ": Start a local pool… starts one"),
    (r"; monarch-nb up --pool \S+ makes a local pool of that name, monarch-nb pool join FILE joins one of hosts", ""),
    (r"; monarch-nb status (?:--pool \S+ )?says more", ""),
    (r", and %mesh release NAME releases (?:it|them) when they answer", ""),
    (r"; is its (?:host up, and its )?allocator running\?(?: \(monarch-nb status\))?", ""),
    (r"\(--pool NAME\)", "(JupyterLab's panel has it at its top)"),
    (r"\(--on ssh:HOST\)", "(Reserve…)"),
    (r": --pool \S+, or \S+=\S+", ": JupyterLab's panel shows it when it is chosen at its top"),
    (r": %mesh attach looks again", "; it is asked again as long as you look"),
    (r"[:;] %mesh reserve (?:\S+ )?makes a new one", ": Reserve… makes a new one"),
    (r"%mesh reserve \S+ --on \S+ asks", "Reserve… asks"),
    (r"%mesh reserve NAME (?:--\S+ \d+ ?)+", "Reserve… makes one"),
    (r"monarch-nb up starts (?:the node's|its) allocator again", "Start again… (at Nodes) starts its allocator again"),
    (r"%mesh replace (?:\S+ )?(puts|asks)", r"Replace nodes… (on the card) \1"),
    (r"%mesh shrink \S+ --node \S+ --into main goes", "Resize… to fewer nodes goes"),
    (r" \(%mesh status\)", ""),
    (r": %mesh stacks\)", ": Stacks… shows where)"),
    (r"interrupt\(kill_stuck=True\) within 10 s to kill and restart (it|them)", r"Restart… kills \1 and starts anew"),
    (r"%mesh restart(?: --mesh \S+)? -t (\S+) starts (it|them) again", r"choose \1 and Restart… to start \2 again"),
]


def clickable(text: str) -> str:
    """Return a message of the client's as the panel says it.

    Example:
        >>> clickable("no pool 'local' is up: monarch-nb up starts one, and so does %mesh reserve")
        "no pool 'local' is up: Start a local pool… starts one"
    """
    for pattern, words in _HINTS:
        text = re.sub(pattern, words, text)
    return text
