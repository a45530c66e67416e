"""What two senders of webhooks do, and turns: see tests/kit/moves.py."""

from itertools import combinations_with_replacement

#: Of two senders of one subscription, each stopped before every statement.
SENDINGS = [
    "event, w1 step x4; delete, w1 gone, time passes",
    "event; event, w1 step x4, w1 fail, w2 step x4",
    "event, event; w1 step x4, w1 die, w2 step x4, w2 sent, time passes",
    "event, w1 step x4; pause, resume, w1 gone, change url, w2 step x4, w2 sent",
    "event, w1 step x4; redeliver x2, w1 sent, w2 step x4, w2 fail, time passes",
    "event, event; delete, prune, w1 step x5, w2 step x4, w1 gone, w2 sent",
    "event; narrow, widen, event x2, w1 step x4, w1 sent",
    "event, event; w1 step x8, w1 fail, w1 sent, redeliver, w2 step x4, w2 sent",
    "event, ping; w1 step x4, w2 step x4, w1 gone, change url, resume",
    "event; pause, delete, ping, w1 step x5, w1 gone, event",
    "event; w1 step x4, w1 die, w2 step x4, delete, time passes",
    "event, w1 step x4, w1 fail, time passes; event, redeliver, w1 step x4, w2 step x4, w2 sent",
    "extend; w1 step x5, w1 sent, time passes x2, extend",
    "extend, time passes; w1 step x4, w1 sent, pay, w2 step x4, w2 sent",
    "event, rotate, time passes; rotate, w1 step x4, w1 sent, time passes",
    "event; clock back, event, w1 step x4, w1 sent, w2 step x4",
]


#: Of three subscriptions, two of them one client's, that take turns.
TURNS = [
    "add a x3, take x3, answer a, time passes",
    "add a x2, add b, add c, take x3, answer a, hang a, time passes",
]


SENDING_FRAME = "extend, w1 step x4, w1 sent, event, time passes, w1 step; w1 step x3, w1 sent"


OF_SENDINGS = [
    *("event", "extend", "pay", "w1 fail", "w1 gone", "w1 die", "w2 step x4", "pause", "resume"),
    *("delete", "change url", "narrow", "widen", "ping", "redeliver", "rotate"),
    *("time passes", "clock back"),
]


SENDING_PAIRS = [
    ", ".join((SENDING_FRAME, *some)) for some in combinations_with_replacement(OF_SENDINGS, 2)
]
