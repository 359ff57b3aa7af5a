"""Bodies that wait to be settled: at most one for each Learner and fragment, kept as the bytes that came.

Says whether a header is new, a resend, or a contradiction; it does not judge values (the guard) nor decide what becomes
of a body (`sync_round`). Memory is bounded by one encoded model for each admitted Learner.
"""

from collections.abc import Iterator

from diloco_trainer.algorithm.events import Key
from diloco_trainer.synchronizer.merge_exec import Body

Place = tuple[int, int, int]  # (index, incarnation, fragment)


class Contradiction(ValueError):
    """Another contribution of the same Learner and fragment is still open; the text says which."""


class Inbox:
    """Open bodies by Learner and fragment."""

    def __init__(self) -> None:
        self._bodies: dict[Place, Body] = {}
        self._held: set[Key] = set()

    def find(self, key: Key, checksum: bytes) -> Body | None:
        """The open body of exactly this contribution, None when there is none; raises Contradiction."""
        body = self._bodies.get(_place(key))
        if body is None:
            return None
        if body.key != key:
            raise Contradiction(f"contribution {body.key.sequence} is still open, {key.sequence} must wait for it")
        if body.checksum != checksum:
            raise Contradiction(f"contribution {key.sequence} came before with another body")
        return body

    def add(self, body: Body) -> None:
        assert _place(body.key) not in self._bodies, "one open body for each Learner and fragment"
        self._bodies[_place(body.key)] = body

    def hold(self, key: Key) -> None:
        """The body came late and answers the fragment's next round."""
        self._held.add(key)

    def is_held(self, key: Key) -> bool:
        return key in self._held

    def get(self, key: Key) -> Body:
        """The open body of a key that is known to be here."""
        body = self._bodies[_place(key)]
        assert body.key == key, "rounds name open bodies only"
        return body

    def drop(self, key: Key) -> Body | None:
        """The contribution is settled; returns its body if it was here."""
        self._held.discard(key)
        body = self._bodies.get(_place(key))
        if body is None or body.key != key:
            return None
        return self._bodies.pop(_place(key))

    def of(self, index: int, incarnation: int) -> Iterator[Body]:
        """All open bodies of one incarnation."""
        return (body for (i, n, _), body in list(self._bodies.items()) if (i, n) == (index, incarnation))

    @property
    def num_bytes(self) -> int:
        return sum(body.data.numel() for body in self._bodies.values())


def _place(key: Key) -> Place:
    return (key.index, key.incarnation, key.fragment)
