"""What actors of a rank have around them."""

from collections.abc import Sequence

from monarch_nb.actor.engine.outside import Address
from monarch_nb.worker.mail.post import Post


class RankOutside:
    """The surroundings of a rank's actors.

    Args:
        post: of this rank.
    """

    def __init__(self, post: Post) -> None:
        self._post = post

    def home(self, node: str) -> Address:
        """Return where this rank takes messages: on all nodes the same."""
        return self._post.address

    def send(
        self,
        node: str,
        processes: Sequence[str],
        pieces: list[bytes | memoryview],
        *,
        call: int = 0,
        answers: int = 0,
    ) -> None:
        """Send a message; see `Post.send`."""
        self._post.send(node, processes, pieces, call=call, answers=answers)
