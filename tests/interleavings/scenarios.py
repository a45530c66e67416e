"""What is searched: each line is all orders of its moves."""

from itertools import combinations_with_replacement

#: Each is searched to its end.
SCENARIOS = [
    "schedule a, w1 claim, w2 claim, w1 ack a, w1 ack unheard a, w2 ack a, lease ends",
    "schedule a, w1 claim, w2 claim, w1 retry a, w1 fail a, w2 ack a, lease ends x2",
    "schedule a, w1 claim x2, schedule later a, cancel a, w1 ack a, w1 defer a, lease ends",
    "schedule a, w1 claim, w2 claim, w1 bury a, requeue a, purge a, w2 ack a, lease ends",
    "schedule a, w1 lose claim, w1 claim, w1 ack a, w2 claim, w2 ack a, lease ends",
    "schedule a, w1 claim, w1 release a, w2 claim, w2 die, cancel a, lease ends",
    "schedule a, w1 claim, w1 lose claim, w1 ack a, flush, w1 sweep, lease ends",
    "schedule later a, w1 sweep, w2 sweep, w1 resign, w2 claim, clock back, clock forward",
    "schedule a, w1 claim, w1 extend long a, w2 claim, clock back x2, lease ends",
    "schedule a, w1 claim, w1 bury a, w1 sweep, schedule later a, requeue a",
    "schedule a, w1 claim, w2 lose claim, w2 claim, cancel a, lease ends",
    "schedule a, pause, resume, w1 claim x2, w1 sweep, flush",
]
#: Likewise, but these take longer.
LARGE = [
    "schedule a, schedule b, w1 claim, w1 die, w2 claim x2, w2 ack a, lease ends",
    "schedule a, w1 lose claim, w1 miss claim, w1 die, w1 claim, w2 claim, lease ends",
    "schedule a, w1 claim, w1 extend a x2, w2 claim, w1 ack a, moment passes x2, lease ends",
    "schedule a, w1 claim, schedule later a, w2 claim x2, w1 ack a, lease ends x2",
    "schedule a, schedule b, w1 claim x2, w2 claim, moment passes x2",
]
#: What happens beside these is combined with each of `TRANSITIONS` and with each two of them.
FRAME = "schedule a, w1 claim, w2 claim, lease ends"
TRANSITIONS = [
    *("schedule b", "schedule later a", "cancel a", "requeue a", "purge a", "pause", "resume"),
    *("w1 ack a", "w1 ack unheard a", "w1 extend a", "w1 retry a", "w1 fail a", "w1 defer a"),
    *("w1 release a", "w1 bury a", "w1 lose claim", "w1 die", "w1 sweep", "w2 ack a"),
    *("clock back", "clock forward", "flush"),
]
PAIRS = [", ".join((FRAME, *pair)) for pair in combinations_with_replacement(TRANSITIONS, 2)]
