"""What people should hear of although they do not look: deaths, and reservations that end. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from monarch_nb.ground.rank_sets import name_ranks
from monarch_nb.panel.shown.view import Json
from monarch_nb.times import duration


def notices(before: Json | None, view: Json) -> Iterator[Json]:
    """Yield what is new since the view before; from the first view on only what still matters: time that is nearly up.

    Each has an id that stays the same, so that nobody is told twice.
    """
    for reservation in view["reservations"].values():
        if not reservation["mine"]:
            continue
        old = before["reservations"].get(reservation["id"]) if before else None
        if reservation["nearly_up"] and not (old and old["nearly_up"]):
            yield _nearly_up(reservation)
        if old:
            yield from _deaths(old, reservation)
    known = {one["id"] for one in before["ended"]} if before else {one["id"] for one in view["ended"]}
    for one in view["ended"]:
        if one["id"] not in known and not one["by"]:  # what a person did is no news
            yield _notice("warning", f"ended-{one['id']}", one["text"], one["id"])


def _nearly_up(reservation: Json) -> Json:
    left, limit = duration(reservation["time_left_s"]), duration(reservation["time_s"])
    text = f"{reservation['name']} will be released in {left}, when its time of {limit} is up: extend it to keep it"
    return _notice("warning", f"nearly-up-{reservation['id']}-{reservation['time_s']:g}", text, reservation["id"])


def _deaths(old: Json, new: Json) -> Iterator[Json]:
    meshes = {mesh["id"]: mesh for mesh in old["meshes"]}
    for mesh in new["meshes"]:
        lived = {rank["rank"] for rank in meshes.get(mesh["id"], {}).get("ranks", ()) if rank["state"] != "dead"}
        causes: dict[str, list[Json]] = {}
        for rank in mesh["ranks"]:
            if rank["state"] == "dead" and rank["rank"] in lived:
                causes.setdefault(rank["detail"], []).append(rank)
        for cause, ranks in causes.items():
            who = name_ranks(rank["rank"] for rank in ranks)
            pids = "-".join(str(rank["pid"]) for rank in ranks)
            yield _notice("error", f"dead-{mesh['id']}-{pids}", f"{who} of {new['name']}: {cause}", new["id"])


def _notice(level: str, notice_id: str, text: str, reservation: str) -> Json:
    return {"type": "notice", "level": level, "id": notice_id, "text": text, "reservation": reservation}
