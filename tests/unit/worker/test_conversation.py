"""What is said between a stopped thread's pdb and whoever answers it."""

from __future__ import annotations

import math
import threading

from monarch_nb.proto.run_pb2 import DebugAnswer, DebugCommand
from monarch_nb.worker.debug.rank_pdb import Conversation, State


def test_a_line_that_comes_before_the_first_prompt_is_executed() -> None:
    """A stop is known as soon as the thread has stopped: pdb may not have asked yet."""
    talk, answers, lines = Conversation(1, lambda: None), list[DebugAnswer](), list[str]()
    talk.stop()
    talk.write("> cell(2)<module>()\n-> breakpoint()\n(Pdb) ")
    talk.take(DebugCommand(action=DebugCommand.ACTION_LINE, line="p x", wait_s=60), answers.append)
    assert talk.readline() == "p x\n"
    talk.write("7\n(Pdb) ")
    pdb = threading.Thread(target=lambda: lines.append(talk.readline()))
    pdb.start()
    while not answers:
        pdb.join(0.01)
    assert [answer.text for answer in answers] == ["7\n"]
    talk.take(DebugCommand(action=DebugCommand.ACTION_LINE, line="p y", wait_s=60), answers.append)
    pdb.join()
    assert lines == ["p y\n"]


def test_a_line_that_came_too_late_is_not_executed_at_the_next_stop() -> None:
    """As when the rest of `c;; c` lets the code go on before pdb asks."""
    talk, answers = Conversation(1, lambda: None), list[DebugAnswer]()
    talk.stop()
    talk.take(DebugCommand(action=DebugCommand.ACTION_QUIT, wait_s=60), answers.append)
    talk.stop()
    talk.go_on(State.FREE)
    talk.expire(math.inf)
    assert [answer.state for answer in answers] == [DebugAnswer.STATE_GONE]
    talk.stop()
    talk.take(DebugCommand(action=DebugCommand.ACTION_LINE, line="p x", wait_s=60), answers.append)
    assert talk.readline() == "p x\n"
