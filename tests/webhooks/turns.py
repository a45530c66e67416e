"""Whose turn it is to send, among three subscriptions of two clients that begin and cease to hang."""

import copy
from collections.abc import Hashable
from itertools import product
from typing import Any

from orders.features.webhooks.turns import SLOW_SECONDS, Turns
from tests.kit.moves import Move

OWN = ("_waiting", "_busy", "_seconds")
CLIENTS = {"a": "x", "b": "x", "c": "y"}
FAST, SLOW = 0.01, 5.0
#: After so many answers at most it is one's turn.
PATIENCE = 12


class TurnsWorld:
    """One process with so many threads."""

    def __init__(self, threads: int) -> None:
        self.now = 0.0
        self.turns = Turns(threads, lambda: self.now)

    def key(self) -> Hashable:
        turns = self.turns
        busy = [(turn[:2], self.now - turn.began) for turn in turns._busy]
        return repr((busy, [*turns._waiting], sorted(turns._seconds.items())))

    def save(self) -> Any:
        own = {name: copy.deepcopy(vars(self.turns)[name]) for name in OWN}
        return self.now, own

    def load(self, saved: Any) -> None:
        self.now, own = saved
        vars(self.turns).update(copy.deepcopy(own))

    def can(self, move: Move) -> bool:
        is_busy = any(turn.subscription_id == move.task for turn in self.turns._busy)
        return is_busy if move.verb in ("answer", "hang") else True

    def do(self, move: Move) -> None:
        if move.verb == "time passes":
            self.now += 2 * SLOW_SECONDS
        elif move.verb == "add":
            self.turns.add(CLIENTS[move.task], move.task)
            assert move.task in self._waiting(), "it is forgotten"
        elif move.verb == "take":
            self._take()
        else:
            turn = next(each for each in self.turns._busy if each.subscription_id == move.task)
            self.turns.end(turn, SLOW if move.verb == "hang" else FAST)

    def _waiting(self) -> set[str]:
        return {name for _, name in self.turns._waiting}

    def _take(self) -> str:
        waiting, busy, threads = self._waiting(), self.turns._busy, self.turns._threads
        turn = self.turns.take()
        taken = turn.subscription_id if turn else ""
        assert waiting - {taken} <= self._waiting(), "one that waits is forgotten"
        assert taken or busy or not waiting, "nobody sends, though somebody waits"
        assert len(busy) <= threads, "more send than there are threads"
        if taken and self.turns._is_slow(taken):
            slow = [turn for turn in busy if self.turns._is_slow(turn.subscription_id)]
            assert len(slow) <= threads // 2, "more than half of the threads are slow"
        return taken

    def check(self) -> None:
        """However fast each of them answers, and however much there is for the others, nobody waits for ever."""
        saved = self.save()
        for speeds in product((FAST, SLOW), repeat=len(CLIENTS)):
            self.load(saved)
            seconds = dict(zip(CLIENTS, speeds, strict=True))
            waiting = self._waiting()
            for _ in range(PATIENCE):
                while taken := self._take():
                    waiting.discard(taken)
                    self.turns.add(CLIENTS[taken], taken)
                for turn in self.turns._busy[:1]:
                    self.turns.end(turn, seconds[turn.subscription_id])
            assert not waiting, f"{waiting} wait for ever if {seconds}"
