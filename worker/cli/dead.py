"""``dead list``, ``show``, ``requeue`` and ``purge``"""

import argparse
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice

from ..findings import quantity
from ..queue.delay_queue import DelayQueue
from ..queue.replies import Letter
from . import arguments
from .commands import Commands
from .output import confirmed, print_json, print_table, progress, terminal
from .text import duration, shown

#: How much of a payload is shown.
PAYLOAD_BYTES = 1000
#: How many payloads are read at a time; they may be large.
PAYLOADS = 10

Matches = Callable[[Letter], bool]


def add_to(commands: Commands) -> None:
    group = commands.group("dead", "List, show, requeue or purge dead letters.")
    listing = group.add(
        "list",
        _list,
        examples="""
dead list
dead list --reason 'timed? out' --newer-than 1h
dead list --error ValueError --limit 5 --json""",
    )
    listing.add_argument(
        "--limit", type=arguments.positive, default=100, help="how many to show (default: 100)"
    )
    _add_filters(listing)
    show = group.add("show", _show, ids=True, examples="dead show ID\ndead show ID --json")
    show.add_argument("ids", nargs="+", metavar="ID")
    for name, function in (("requeue", _requeue), ("purge", _purge)):
        made = group.add(
            name,
            function,
            ids=True,
            examples=f"""
dead {name} ID ID
dead {name} --all
dead {name} --error OperationalError --older-than 2h --dry-run""",
        )
        made.add_argument("ids", nargs="*", metavar="ID")
        made.add_argument("--all", action="store_true", help="all current dead letters")
        _add_filters(made)
        made.add_argument("--dry-run", action="store_true", help="only count them")
        made.add_argument("-y", "--yes", action="store_true", help="do not ask for confirmation")


def _add_filters(to: argparse.ArgumentParser) -> None:
    filters = to.add_argument_group("filters", "A dead letter must match all that are given.")
    filters.add_argument(
        "--reason",
        type=arguments.pattern,
        metavar="PATTERN",
        help="a regular expression that matches part of the reason, ignoring case",
    )
    filters.add_argument("--error", metavar="CLASS", help="the error's class, such as ValueError")
    for name, meaning in (("older", "more"), ("newer", "less")):
        filters.add_argument(
            f"--{name}-than",
            type=arguments.duration_ms,
            metavar="DURATION",
            help=f"died {meaning} than this long ago: 90s, 30m, 2h, 1d",
        )


# -- looking -------------------------------------------------------------------------------


def _list(options: argparse.Namespace) -> None:
    """Show dead letters, newest first."""
    for queue in arguments.queues(options):
        rows = (_row(queue.name, letter) for letter in _newest(queue, options))
        if options.json:
            for row in rows:
                print_json(row)
        elif terminal():
            _print_table(queue, [*rows])
        else:
            for row in rows:
                row.pop("traceback", None)  # too long for a line; --json prints it
                row["error"] = _first_line(row)
                print("  ".join(f"{name}={shown(value)}" for name, value in row.items()))


def _newest(queue: DelayQueue, options: argparse.Namespace) -> Iterator[Letter]:
    matches = _filter(queue, options)
    ids = (
        letter.id
        for page in queue.newest_dead_ids()
        for letter in queue.letters(page, with_payloads=False)
        if matches(letter)
    )
    chosen = islice(ids, options.limit)
    while page := [*islice(chosen, PAYLOADS)]:
        yield from queue.letters(page)


def _row(queue: str, letter: Letter) -> dict[str, object]:
    payload = letter.payload[:PAYLOAD_BYTES].decode(errors="backslashreplace")
    return {"queue": queue, "id": letter.id, **letter.story, "payload": payload}


def _print_table(queue: DelayQueue, rows: Sequence[dict[str, object]]) -> None:
    now_ms = queue.server_time_ms()
    lines = [
        (
            row["id"],
            f"{duration(now_ms - int(str(row.get('died_at_ms', 0))))} ago",
            row.get("reason"),
            _first_line(row),
            row.get("failures"),
        )
        for row in rows
    ]
    if lines:
        print_table(("id", "died", "reason", "error", "failures"), lines)
    print(f"{len(rows):,} of {quantity(queue.stats().dead, 'dead letter')} in {queue.name}")


def _first_line(row: dict[str, object]) -> str:
    return str(row.get("error") or "").partition("\n")[0]


def _show(options: argparse.Namespace) -> int:
    """Show dead letters in full, with their tracebacks."""
    queues = arguments.queues(options)  # each is searched for the ids
    found = [(queue.name, letter) for queue in queues for letter in queue.letters(options.ids)]
    for name, letter in found:
        row = _row(name, letter)
        if options.json:
            print_json(row)
            continue
        story = str(row.pop("traceback", None) or "")
        for what, value in row.items():
            print(f"{what:>12}  {shown(value)}")
        print(*(f"{'':>14}{shown(line)}" for line in story.splitlines()), "", sep="\n")
    return _all_there(options.ids, {letter.id for _, letter in found})


def _all_there(ids: Sequence[str], there: Collection[str]) -> int:
    """Report the ids that are not dead letters; return the exit status, which is 1 if there are any."""
    missing = [each for each in dict.fromkeys(ids) if each not in there]
    if missing:
        print(
            f"worker: no dead letter {', '.join(map(shown, missing))}: dead list shows the ids",
            file=sys.stderr,
        )
    return int(bool(missing))


# -- changing ------------------------------------------------------------------------------


def _requeue(options: argparse.Namespace) -> int:
    """Schedule dead letters again, due now, with their counts reset."""
    return _change(options, "requeue", "requeued", DelayQueue.requeue)


def _purge(options: argparse.Namespace) -> int:
    """Delete dead letters for good."""
    return _change(options, "purge", "purged", DelayQueue.purge)


def _change(
    options: argparse.Namespace,
    verb: str,
    done_is: str,
    action: Callable[[DelayQueue, Iterable[str]], list[str]],
) -> int:
    if bool(options.ids) == (options.all or _has_filter(options)):
        raise ValueError("name the ids, or pass --all or a filter")
    queues = arguments.queues(options)  # each is searched for the ids
    if options.dry_run:
        counts = [_counted(queue, options) for queue in queues]
        _report(options, queues, f"would be {done_is}", counts)
        return int(bool(options.ids) and sum(counts) != len({*options.ids}))
    if not options.ids and not confirmed(_question(queues, options, verb), yes=options.yes):
        return 1
    counts, changed = [], set[str]()
    for queue in queues:
        done = 0
        total = len(options.ids) or queue.stats().dead
        with progress(f"{verb} dead letters of {queue.name}", total) as advance:
            for page in _chosen(queue, options):
                ids = action(queue, page)
                done += len(ids)
                changed.update(ids if options.ids else ())
                advance(len(page))
        counts.append(done)
    _report(options, queues, done_is, counts)
    return _all_there(options.ids, changed)


def _report(
    options: argparse.Namespace, queues: Sequence[DelayQueue], done_is: str, counts: Sequence[int]
) -> None:
    if options.json:
        for queue, count in zip(queues, counts, strict=True):
            print_json({"queue": queue.name, done_is.replace(" ", "_"): count})
    else:
        print(f"{done_is} {sum(counts)}")


def _question(queues: Sequence[DelayQueue], options: argparse.Namespace, verb: str) -> str:
    count = sum(queue.stats().dead for queue in queues)
    names = " and ".join(queue.name for queue in queues)
    if _has_filter(options):
        return f"{verb.capitalize()} the dead letters that match, out of {count:,} in {names}?"
    every = "" if count == 1 else "all "
    return f"{verb.capitalize()} {every}{quantity(count, 'dead letter')} of {names}?"


def _has_filter(options: argparse.Namespace) -> bool:
    filters = (options.reason, options.error, options.older_than, options.newer_than)
    return any(each is not None for each in filters)  # not any(filters): 0 s is a filter, too


def _chosen(queue: DelayQueue, options: argparse.Namespace) -> Iterator[list[str]]:
    """The ids that the options name, in pages."""
    if options.ids or not _has_filter(options):
        yield from [options.ids] if options.ids else queue.dead_ids()
        return
    matches = _filter(queue, options)
    for page in queue.dead_ids():
        letters = queue.letters(page, with_payloads=False)
        yield [letter.id for letter in letters if matches(letter)]


def _counted(queue: DelayQueue, options: argparse.Namespace) -> int:
    if options.ids:
        return len(queue.letters(options.ids, with_payloads=False))
    return sum(map(len, _chosen(queue, options)))


# -- filters -------------------------------------------------------------------------------


def _filter(queue: DelayQueue, options: argparse.Namespace) -> Matches:
    """A function that says whether a letter matches the filters. Ages are by the server's clock."""
    is_timed = options.older_than is not None or options.newer_than is not None
    now_ms = queue.server_time_ms() if is_timed else 0

    def matches(letter: Letter) -> bool:
        story = letter.story
        age_ms = now_ms - int(story.get("died_at_ms") or 0)
        return (
            (options.reason is None or options.reason.search(str(story.get("reason"))) is not None)
            and (
                options.error is None
                or str(story.get("error") or "").partition(":")[0] == options.error
            )
            and (options.older_than is None or age_ms > options.older_than)
            and (options.newer_than is None or age_ms < options.newer_than)
        )

    return matches
