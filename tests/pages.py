"""README and the pages of docs/ as their readers take them: what to type, in order, and what then shows.

A block whose fence has a language alone is meant for the reader's own notebook: `python` is a cell (or a file, whose
first line is its name: `# train.py`), `diff` an edit of such a file, and `text` what the cell above it shows. A block
that needs more than this machine, or shows something else, says so behind the language: ```python needs Slurm
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]

_BLOCK = re.compile(r"^```(?P<language>\w*)(?: (?P<why_not>[^\n]+))?\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A block of code.

    Attributes:
        language: of its fence.
        why_not: why it is not for the reader's notebook; empty when it is.
        text: what is in it.
        above: what the page says between the block before and this one.
    """

    language: str
    why_not: str
    text: str
    above: str

    @property
    def begins(self) -> bool:
        """Whether it is the first cell of a notebook."""
        return self.language == "python" and not self.why_not and self.text.startswith("%load_ext monarch_nb\n")


def blocks(page: Path) -> list[Block]:
    """Return the blocks of a page, in order."""
    text, end, found = page.read_text(), 0, []
    for match in _BLOCK.finditer(text):
        found.append(Block(match["language"], match["why_not"] or "", match["text"], text[end : match.start()]))
        end = match.end()
    return found
