"""A search over all orders of a few moves, which finds the shortest that breaks something."""

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from typing import Any, NamedTuple, Protocol

import pytest

from tests.kit.moves import Move, parsed


class World(Protocol):
    """What moves change, and can be put back to where it was."""

    def key(self) -> Hashable:
        """All that is stored and remembered: two states with one key are the same state."""

    def save(self) -> Any: ...

    def load(self, saved: Any) -> None: ...

    def can(self, move: Move) -> bool: ...

    def do(self, move: Move) -> None:
        """Raises AssertionError if what comes of it is wrong."""

    def check(self) -> None:
        """Raises AssertionError if this state is wrong, or if what is due cannot be settled from here on."""


class Violation(AssertionError):
    """Some order of the moves breaks a promise."""


class Explored(NamedTuple):
    """How much was searched."""

    states: int
    steps: int
    #: Whether these are all; otherwise the budget was used up.
    complete: bool


class _State(NamedTuple):
    saved: Any
    #: Of each move, how many are left.
    left: tuple[int, ...]
    #: The moves on the way here, as a linked list: no shorter way exists.
    path: Any


def explore(world: World, line: str, most_steps: int = 1_000_000) -> Explored:
    """Make a scenario's moves in every order. Raises Violation with the shortest trace.

    States are found in the order of their distance from the beginning, and each is searched once.
    """
    begin, moves = parsed(line)
    names: list[Move] = [*moves]
    path: Any = None
    for move in begin:
        path = (move, path)
        _try(partial(world.do, move), path)
    start = _State(world.save(), (*moves.values(),), path)
    seen, checked = {(world.key(), start.left)}, set[Hashable]()
    waiting, steps = deque([start]), 0
    while waiting:
        state, is_loaded = waiting.popleft(), False
        for n, move in enumerate(names):
            if not state.left[n]:
                continue
            if not is_loaded:
                world.load(state.saved)
            is_loaded = not world.can(move)
            if is_loaded:
                continue
            if steps == most_steps:
                return Explored(len(seen), steps, complete=False)
            steps += 1
            left = (*state.left[:n], state.left[n] - 1, *state.left[n + 1 :])
            path = (move, state.path)
            _try(partial(world.do, move), path)
            key = world.key()
            if (key, left) in seen:
                continue
            seen.add((key, left))
            waiting.append(_State(world.save(), left, path))
            if key not in checked:
                checked.add(key)
                _try(world.check, path)
    return Explored(len(seen), steps, complete=True)


def _try(what: Callable[[], None], path: Any) -> None:
    try:
        what()
    # Whatever it is, and pytest's own is no Exception.
    except (Exception, pytest.fail.Exception) as error:
        trace = ", ".join(map(str, reversed([*_moves(path)])))
        raise Violation(f"{trace}\n\n{error!r}") from error


def _moves(path: Any) -> Iterator[Move]:
    while path:
        move, path = path
        yield move
