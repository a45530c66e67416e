"""A scenario's moves, as one line of text: ``schedule a, w1 claim x2, w2 claim, lease ends, flush``."""

from typing import NamedTuple


class Move(NamedTuple):
    """What somebody does, such as ``w1 ack a``, or what happens, such as ``flush``."""

    actor: str
    verb: str
    task: str

    def __str__(self) -> str:
        return " ".join(filter(None, self))


WORKERS = ("w1", "w2")


def parsed(line: str) -> dict[Move, int]:
    """The moves of a scenario, and how often each may be made."""
    moves: dict[Move, int] = {}
    for part in line.split(", "):
        words = part.split()
        times = int(words.pop()[1:]) if words[-1].startswith("x") else 1
        actor = words.pop(0) if words[0] in WORKERS else ""
        task = words.pop() if len(words[-1]) == 1 else ""
        move = Move(actor, " ".join(words), task)
        moves[move] = moves.get(move, 0) + times
    return moves
