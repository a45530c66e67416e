"""What is searched: each line is all orders of its moves, after those before the semicolon."""

from itertools import combinations_with_replacement

#: Each is searched to its end.
SCENARIOS = [
    "schedule a, w1 claim, w2 claim, w1 ack a, w1 ack unheard a, w2 ack a, lease ends",
    "schedule a, w1 claim, w2 claim, w1 retry a, w1 fail a, w2 ack a, lease ends x2",
    "schedule a; w1 claim x2, schedule later a, cancel a, w1 ack a, w1 defer a, lease ends",
    "schedule a, w1 claim; w2 claim, w1 bury a, requeue a, purge a, w2 ack a, lease ends",
    "schedule a; w1 lose claim, w1 claim, w1 ack a, w2 claim, w2 ack a, lease ends",
    "schedule a; w1 claim, w1 release a, w2 claim, w2 die, cancel a, lease ends",
    "schedule a; w1 claim, w1 lose claim, w1 ack a, flush, w1 sweep, lease ends",
    "schedule later a, w1 sweep; w2 sweep, w2 claim, clock back, clock forward",
    "schedule a; w1 claim, w1 extend long a, w2 claim, clock back x2, lease ends",
    "schedule a, w1 claim; w1 retry a, clock back x2, w2 claim, lease ends",
    "schedule a, w1 claim, w1 bury a, w1 sweep, schedule later a, requeue a",
    "schedule a; w1 claim, w2 lose claim, w2 claim, cancel a, lease ends",
    "schedule a; pause, resume, w1 claim x2, w1 sweep, flush",
    "schedule a; w1 delay claim, w1 late claim, w1 claim, w1 ack a, w2 claim, lease ends x2",
    "schedule a; w1 claim, w1 ack a, save, restart, w1 sweep, lease ends",
    "schedule a, w1 claim; w1 extend a, w1 ack a, outage x2, w2 claim x2, clock back",
    "schedule a; w1 lose claim, w1 delay claim, w1 late claim, w2 claim, outage, lease ends",
    "w1 claim, schedule a; w1 delay claim, w1 late claim, w2 claim, outage, lease ends",
    "schedule a, w1 claim; w1 look again a, w1 reschedule a, w2 claim, w1 sweep, lease ends x2",
    "schedule a; w1 lose claim, pause, w1 claim, resume, w2 claim, lease ends",
    "schedule b, w1 claim, lease ends, w1 claim; w1 release b, w1 look again b, schedule a, w2 claim, lease ends",
    "schedule a, w1 claim; lease ends x2, w2 redeliver, w2 late redeliver, w1 ack a, w1 extend a, w2 claim",
    "w1 claim, w2 claim, schedule a; w1 claim, clock far back, w2 claim, w1 extend a, lease ends",
    "schedule a; flush, w1 look, w1 sweep, w2 look, w2 claim",
    "schedule a, w1 claim; w1 retry long a, record moves a, clock back, w1 sweep, w2 claim, lease ends",
    "w1 seed, lease ends; w1 claim, w1 ack a, w1 seed x2, clock back, flush",
    "w1 seed, lease ends, w1 claim; w1 release a, w1 seed, w2 seed anew, clock back x2",
    "w1 seed, lease ends; w1 claim, w1 seed, w2 claim, w2 seed, lease ends x2",
    "schedule a, schedule b, w1 claim, lease ends, w1 claim, lease ends, w2 claim; w2 look again a, w1 claim, w2 claim, w1 ack b, lease ends x2",
    "schedule a, schedule later b; w1 claim ahead x2, w1 release b, w1 ack b, cancel b, w2 claim, moment passes",
    "schedule a, w1 claim; w1 retry a, schedule b, w1 claim ahead, w1 ack b, w2 claim, lease ends",
    (
        "schedule a, schedule b, w1 claim, lease ends, w1 claim, lease ends;"
        " w1 claim x2, w2 claim, w2 ack a, w2 extend a, lease ends x2"
    ),
    (
        "schedule a, schedule b, schedule c, w1 claim, lease ends, w1 claim, lease ends, w1 claim, lease ends,"
        " w2 claim, w2 look again c, moment passes, w2 claim, w2 look again a, moment passes, w1 claim;"
        " w2 claim ahead x2, w1 ack b, moment passes x2"
    ),
]
#: Likewise, but these take longer.
LARGE = [
    "schedule a, w1 claim; w1 retry a, clock back x2, w1 sweep, w2 claim x2, lease ends x2",
    "schedule a, schedule b, w1 claim, w1 die, w2 claim x2, w2 ack a, lease ends",
    "schedule a; w1 lose claim, w1 delay claim, w1 die, w1 claim, w2 claim, lease ends",
    "schedule a, w1 claim, w1 extend a x2, w2 claim, w1 ack a, moment passes x2, lease ends",
    "schedule a, w1 claim, schedule later a, w2 claim x2, w1 ack a, lease ends x2",
    "schedule a, schedule b; w1 claim x2, w2 claim, moment passes x2, w1 late claim, w1 delay claim",
    (
        "schedule a, schedule b, w1 claim, lease ends, w1 claim, lease ends;"
        " w1 claim x2, w2 claim, cancel a, cancel b, w2 retry a, lease ends x2"
    ),
]
#: Of two consumers and of two workers of a recurring flow, each stopped before every call.
CONSUMERS = [
    "schedule a, w1 go on x2; w1 go on x2, w1 close, w1 fail, w2 go on",
    "schedule a, w1 go on x2; w1 go on x2, w1 die, minute passes, w2 go on x2",
    "schedule a, w1 go on x2; w1 go on x2, w1 miss, w1 renew, minute passes, w2 go on",
    "schedule a; w1 go on x3, w1 lose, w2 go on x2, flush",
    "schedule a; w1 go on x3, w1 lose, w1 close, w2 go on x2",
]
RECURRING = [
    "w1 go on x4, minute passes; w1 go on x3, w1 miss, w2 go on x2",
    "w1 go on x4, minute passes; w1 go on x3, extra run, clock back, pause, resume",
    "w1 go on x4, w2 go on x4, minute passes; w1 go on x4, flush, w2 go on x4",
    "w1 go on x2; minute passes, w1 go on x3, w1 lose, w1 die, w2 go on",
]
#: Of two workers with a backlog; after these begins each has a settle and a claim to send together.
BACKLOGS = [
    "schedule a, schedule b, w1 go on x3; w1 lose, flush, moment passes, w1 go on x3",
    "schedule a, schedule b, w1 go on x3; w1 go on x3, w1 lose, w1 cut, moment passes, w2 go on x2",
    "schedule a, schedule b, w1 go on x3; w1 go on x2, w1 die, minute passes, w2 go on x3",
    "schedule a, schedule b, w1 go on x3; w1 cut, pause, resume, moment passes, w1 go on x2, w2 go on",
    "schedule a, schedule b, w1 go on x3; w1 fail, w1 lose, w1 renew, moment passes x2, w1 go on x2",
]
#: What happens beside these is combined with each of `TRANSITIONS`, and with two or three of them.
FRAME = "schedule a, save; w1 claim, w2 claim, lease ends"
TRANSITIONS = [
    *("schedule b", "schedule later a", "cancel a", "requeue a", "purge a", "pause", "resume"),
    *("w1 ack a", "w1 ack unheard a", "w1 extend a", "w1 retry a", "w1 fail a", "w1 defer a"),
    *("w1 look again a", "w1 reschedule a", "w1 release a", "w1 bury a", "w1 lose claim"),
    *(
        "w1 claim ahead",
        "w1 delay claim",
        "w1 late claim",
        "w1 die",
        "w1 sweep",
        "w2 ack a",
        "clock back",
    ),
    *("clock forward", "outage", "flush", "restart"),
]
PAIRS, TRIPLES = (
    [", ".join((FRAME, *some)) for some in combinations_with_replacement(TRANSITIONS, count)]
    for count in (2, 3)
)
#: Likewise of recurring runs: `seed` is combined with each.
RUNS_FRAME = "w1 seed, lease ends, save; w1 claim, w2 claim, lease ends, w1 seed"
OF_RUNS = [*TRANSITIONS, "w1 seed", "w2 seed", "w2 seed anew"]
PAIRS += [f"{RUNS_FRAME}, {each}" for each in OF_RUNS]
#: Of these `make explore` draws some, and of `TRANSITIONS`.
OF_LANES = [
    *("w1 go on", "w2 go on", "w1 lose", "w1 miss", "w2 lose", "w1 fail", "w1 die", "w1 renew"),
    *("minute passes", "clock back", "pause", "resume", "flush"),
]
CONSUMER_FRAME = "schedule a; w1 go on x3, w2 go on x2"
OF_CONSUMERS = [*OF_LANES, "w1 close", "schedule a", "schedule b"]
BACKLOG_FRAME = "schedule a, schedule b, w1 go on x3; w1 go on x3, w2 go on x3"
RECURRING_FRAME = "w1 go on x4, minute passes; w1 go on x3, w2 go on x2"
OF_RECURRING = [*OF_LANES, "extra run"]
