"""A scenario as one line of text: ``schedule a, w1 claim; w1 ack a x2, w2 claim, lease ends, flush``.

What stands before the semicolon happens first, in this order.
"""

from typing import Any, NamedTuple


class Move(NamedTuple):
    """What somebody does, such as ``w1 ack a``, or what happens, such as ``flush``."""

    actor: str
    verb: str
    task: str

    def __str__(self) -> str:
        return " ".join(filter(None, self))

    def make(self, world: Any) -> None:
        """Call the world's method for it."""
        method = getattr(world, "do_" + self.verb.replace(" ", "_"))
        method(*filter(None, (self.actor, self.task)))


WORKERS = ("w1", "w2")


def parsed(line: str) -> tuple[list[Move], dict[Move, int]]:
    """What a scenario begins with, and its moves, with how often each may be made."""
    begin, _, rest = line.rpartition("; ")
    moves: dict[Move, int] = {}
    for move in _listed(rest):
        moves[move] = moves.get(move, 0) + 1
    return _listed(begin), moves


def _listed(text: str) -> list[Move]:
    moves: list[Move] = []
    for part in filter(None, text.split(", ")):
        words = part.split()
        times = int(words.pop()[1:]) if words[-1][0] == "x" else 1
        actor = words.pop(0) if words[0] in WORKERS else ""
        task = words.pop() if len(words[-1]) == 1 else ""
        moves += times * [Move(actor, " ".join(words), task)]
    return moves
