"""Where letters go, and who is told when one does not arrive."""

from __future__ import annotations

from monarch_nb.allocator.mail.letters import Letter
from monarch_nb.allocator.mail.post_office import PostOffice
from monarch_nb.proto.mail_pb2 import Address, Envelope, NodeLost, Undelivered
from monarch_nb.proto.run_pb2 import Death

HERE, THERE = "unix:/here", "unix:/there"


class Shelf:
    """A box that keeps what is put into it."""

    def __init__(self) -> None:
        self.letters: list[Letter] = []

    def put(self, letter: Letter) -> None:
        self.letters.append(letter)

    @property
    def bodies(self) -> list[bytes]:
        return [letter.envelope.body for letter in self.letters]

    @property
    def undelivered(self) -> list[Undelivered]:
        return [letter.envelope.notice.undelivered for letter in self.letters]

    @property
    def lost(self) -> list[NodeLost]:
        return [letter.envelope.notice.node_lost for letter in self.letters]


class Office(PostOffice):
    """One with ranks "m/0" and "m/1"; "m/2" is being started, others are not known."""

    def __init__(self) -> None:
        self.forwarded: list[tuple[str, Letter]] = []
        super().__init__(HERE, lambda node, letter: self.forwarded.append((node, letter)), self.missing)
        self.ranks = [Shelf(), Shelf()]
        for rank, shelf in enumerate(self.ranks):
            self.opened(f"m/{rank}", shelf.put)

    def missing(self, process: str) -> Undelivered | None:
        return None if process == "m/2" else Undelivered(reason=f"no {process}")


def letter(to: str, *, sender: str = "m/0", node: str = HERE, sender_node: str = HERE, **fields: object) -> Letter:
    address = Address(node=sender_node, process=sender)
    return Letter(Envelope(node=node, processes=to.split(), sender=address, **fields))  # type: ignore[arg-type]


def test_a_letter_to_several_is_passed_on_as_the_bytes_that_came() -> None:
    office = Office()
    encoded = letter("m/0 m/1", body=b"x").encoded
    office.post(Letter(Envelope.FromString(encoded), encoded))
    assert [[one.encoded for one in shelf.letters] for shelf in office.ranks] == [[encoded], [encoded]]


def test_letters_for_a_process_that_is_being_started_wait_in_order() -> None:
    office, shelf = Office(), Shelf()
    for body in (b"1", b"2"):
        office.post(letter("m/2", body=body))
    office.opened("m/2", shelf.put)
    office.post(letter("m/2", body=b"3"))
    assert shelf.bodies == [b"1", b"2", b"3"]


def test_who_sends_to_a_process_that_never_was_is_told_why() -> None:
    office = Office()
    office.post(letter("m/1 x/5", body=b"x", call=4))
    office.post(letter("m/0", node="unix:/alias", call=1), from_node=True)
    assert office.ranks[1].bodies == [b"x"]
    told, alias = (letter.envelope.notice.undelivered for letter in office.ranks[0].letters)
    assert (told.call, list(told.processes), told.reason) == (4, ["x/5"], "no x/5")
    assert (alias.reason, office.forwarded) == ("unix:/alias is another node", []), "what a node sent is not sent on"


def test_nobody_is_told_that_an_answer_or_a_notice_did_not_arrive() -> None:
    office = Office()
    office.post(letter("x/5", body=b"x", answers=4))
    office.post(letter("m/1", sender="x/5", call=7))
    office.ended("m/1", "gone")
    assert office.ranks[0].letters == []


def test_when_a_process_ends_only_those_are_told_whom_it_has_not_answered() -> None:
    office = Office()
    for call in (1, 2):
        office.post(letter("m/1", call=call))
    office.post(letter("m/1", sender="k", sender_node=THERE, call=1))
    office.post(letter("m/0", sender="m/1", answers=1))
    office.ended("m/1", "it died", Death(signal=9))
    (_, told) = office.ranks[0].letters
    assert told.envelope.notice.undelivered.call == 2
    assert told.envelope.notice.undelivered.death.signal == 9
    ((node, forwarded),) = office.forwarded
    assert (node, list(forwarded.envelope.processes)) == (THERE, ["k"])
    assert office.open_calls == 0


def test_what_waited_for_a_process_that_never_came_is_returned() -> None:
    office = Office()
    office.post(letter("m/2", body=b"cast"))
    office.post(letter("m/2", body=b"call", call=3))
    office.ended("m/2", "could not be started")
    assert sorted(told.call for told in office.ranks[0].undelivered) == [0, 3]
    assert {told.reason for told in office.ranks[0].undelivered} == {"could not be started"}


def test_who_waits_for_a_node_that_is_lost_is_told_once() -> None:
    office = Office()
    for call in (1, 2):
        office.post(letter("n/0 n/1", node=THERE, call=call))
    office.post(letter("n/0", node=THERE, body=b"cast", sender="m/1"))
    office.node_lost(THERE, "away")
    (lost,) = office.ranks[0].lost
    assert (lost.node, lost.reason) == (THERE, "away")
    assert office.ranks[1].letters == []
    office.node_lost(THERE, "away")
    assert len(office.ranks[0].letters) == 1


def test_nothing_is_awaited_from_a_node_after_all_its_answers() -> None:
    office = Office()
    office.post(letter("n/0 n/1 n/2", node=THERE, call=1))
    for rank in (0, 1):
        office.post(letter("m/0", sender=f"n/{rank}", sender_node=THERE, answers=1))
    told = Undelivered(call=1, processes=["n/2"])
    refusal = letter("m/0", sender="", sender_node=THERE)
    refusal.envelope.notice.undelivered.CopyFrom(told)
    office.post(refusal)
    assert office.open_calls == 0
    office.node_lost(THERE, "away")
    assert office.ranks[0].lost[-1] == NodeLost()  # the last letter is the refusal


def test_the_end_of_a_mesh_is_that_of_all_its_processes() -> None:
    office, other = Office(), Shelf()
    office.opened("m2/0", other.put)
    office.post(letter("m/0 m/1", sender="m2/0", call=5))
    office.ended_all("m/", "released")
    assert [(told.call, told.reason) for told in other.undelivered] == [(5, "released"), (5, "released")]
    office.post(letter("m/0", sender="m2/0", call=6))
    assert other.undelivered[-1].reason == "no m/0"
