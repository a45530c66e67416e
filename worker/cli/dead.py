"""``dead list``, ``show``, ``requeue`` and ``purge``"""

import re
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import click

from ..console import AS_JSON, DURATION, duration, print_json, print_table, shown
from ..findings import quantity
from ..queue.delay_queue import DelayQueue
from ..queue.replies import Letter
from .options import Chosen, examples, of_flows, of_ids, options_of

#: How much of a payload is shown.
PAYLOAD_BYTES = 1000
#: How many payloads are read at a time; they may be large.
PAYLOADS = 10


@dataclass(frozen=True)
class Filter:
    """A dead letter must match all that are given."""

    matching: re.Pattern[str] | None = None
    older_than: int | None = None
    newer_than: int | None = None

    @property
    def given(self) -> bool:
        return self != Filter()

    def ids(self, queue: DelayQueue) -> Iterator[str]:
        """Those of a queue's dead letters that match, newest first. Ages are by the server's clock."""
        now_ms = queue.server_time_ms()
        for page in queue.newest_dead_ids():
            if self.given:
                letters = queue.letters(page, with_payloads=False)
                yield from (each.id for each in letters if self._matches(each.story, now_ms))
            else:
                yield from page

    def _matches(self, story: Mapping[str, Any], now_ms: int) -> bool:
        age_ms = now_ms - int(story.get("died_at_ms") or 0)
        texts = [str(story.get(name) or "") for name in ("reason", "error")]
        return (
            (self.matching is None or any(map(self.matching.search, texts)))
            and (self.older_than is None or age_ms > self.older_than)
            and (self.newer_than is None or age_ms < self.newer_than)
        )


def pattern(_context: object, _parameter: object, text: str | None) -> re.Pattern[str] | None:
    """A regular expression, which ignores case. Plain text mostly matches itself."""
    try:
        return None if text is None else re.compile(text, re.IGNORECASE)
    except re.error as error:
        raise click.BadParameter(
            f"{text!r} is not a regular expression ({error}): escape special characters with a backslash"
        ) from error


filtered = options_of(
    Filter,
    click.option(
        "--matching",
        callback=pattern,
        metavar="PATTERN",
        help="a regular expression that matches part of the reason or the error, ignoring case",
    ),
    click.option(
        "--older-than", type=DURATION, help="died more than this long ago: 90s, 30m, 2h, 1d"
    ),
    click.option(
        "--newer-than", type=DURATION, help="died less than this long ago: 90s, 30m, 2h, 1d"
    ),
)


@click.group()
def dead() -> None:
    """List, show, requeue or purge dead letters."""


# -- looking -------------------------------------------------------------------------------


@dead.command(
    "list",
    epilog=examples("""
        dead list
        dead list --matching 'timed? out' --newer-than 1h
        dead list --matching ValueError --limit 5 --json"""),
)
@of_flows
@AS_JSON
@click.option(
    "--limit", type=click.IntRange(1), default=100, help="how many to show (default: 100)"
)
@filtered
def list_letters(named: Chosen, wanted: Filter, *, as_json: bool, limit: int) -> None:
    """Show dead letters, newest first."""
    for queue in named.queues():
        rows = (row_of(queue.name, letter) for letter in _newest(queue, wanted, limit))
        if as_json:
            for row in rows:
                print_json(row)
        else:
            _print_table(queue, [*rows])


def _newest(queue: DelayQueue, wanted: Filter, limit: int) -> Iterator[Letter]:
    ids = islice(wanted.ids(queue), limit)
    while page := [*islice(ids, PAYLOADS)]:
        yield from queue.letters(page)


def row_of(queue: str, letter: Letter) -> dict[str, Any]:
    payload = letter.payload[:PAYLOAD_BYTES].decode(errors="backslashreplace")
    return {"queue": queue, "id": letter.id, **letter.story, "payload": payload}


def _print_table(queue: DelayQueue, rows: Sequence[dict[str, Any]]) -> None:
    now_ms = queue.server_time_ms()
    lines = [
        (
            row["id"],
            f"{duration(now_ms - int(row.get('died_at_ms', 0)))} ago",
            row.get("reason"),
            str(row.get("error") or "").partition("\n")[0],
            row.get("failures"),
        )
        for row in rows
    ]
    if lines:
        print_table(("id", "died", "reason", "error", "failures"), lines)
    click.echo(f"{len(rows):,} of {quantity(queue.stats().dead, 'dead letter')} in {queue.name}")


@dead.command(epilog=examples("dead show ID\ndead show ID --json"))
@of_ids()
@AS_JSON
def show(named: Chosen, *, ids: tuple[str, ...], as_json: bool) -> int:
    """Show dead letters in full, with their tracebacks."""
    found = set[str]()
    for queue in named.queues():  # each is searched for the ids
        for letter in queue.letters(ids):
            found.add(letter.id)
            row = row_of(queue.name, letter)
            if as_json:
                print_json(row)
                continue
            story = str(row.pop("traceback", None) or "")
            lines = [f"{what:>12}  {shown(value)}" for what, value in row.items()]
            lines += [f"{'':>14}{shown(line)}" for line in story.splitlines()]
            click.echo("\n".join([*lines, ""]))
    return _told_of_missing(ids, found)


def _told_of_missing(ids: Iterable[str], found: Container[str]) -> int:
    """Report the ids that are not dead letters; return the exit status, which is 1 if there are any."""
    if names := ", ".join(shown(each) for each in dict.fromkeys(ids) if each not in found):
        click.echo(f"worker: no dead letter {names}: dead list shows the ids", err=True)
    return int(bool(names))


# -- changing ------------------------------------------------------------------------------


def _changing(
    verb: str, done_is: str, change: Callable[[DelayQueue, Iterable[str]], list[str]], doc: str
) -> None:
    """Add a command that changes dead letters."""

    @dead.command(
        verb,
        help=doc,
        epilog=examples(f"""
            dead {verb} ID ID
            dead {verb} --all
            dead {verb} --matching OperationalError --older-than 2h --dry-run"""),
    )
    @of_ids(required=False)
    @AS_JSON
    @click.option("--all", "every", is_flag=True, help="all current dead letters")
    @filtered
    @click.option("--dry-run", is_flag=True, help="only count them")
    @click.option("-y", "--yes", is_flag=True, help="do not ask for confirmation")
    def command(
        named: Chosen,
        wanted: Filter,
        *,
        ids: tuple[str, ...],
        as_json: bool,
        every: bool,
        dry_run: bool,
        yes: bool,
    ) -> int:
        if bool(ids) == (every or wanted.given):
            raise ValueError("name the ids, or pass --all or a filter")
        # All of them, before any is removed. Each queue is searched for the ids.
        found = {
            queue: [letter.id for letter in queue.letters(ids, with_payloads=False)]
            if ids
            else [*wanted.ids(queue)]
            for queue in named.queues()
        }
        count = quantity(sum(map(len, found.values())), "dead letter")
        question = f"{verb.capitalize()} {count} of {' and '.join(queue.name for queue in found)}?"
        # Without a terminal nobody is asked, and the answer is yes.
        is_asked = sys.stdin.isatty() and sys.stderr.isatty() and not (ids or dry_run or yes)
        if is_asked and not click.confirm(question, err=True):
            return 1
        total = 0
        did = f"would be {done_is}" if dry_run else done_is
        for queue, selected in found.items():
            done = len(selected if dry_run else change(queue, selected))
            total += done
            if as_json:
                print_json({"queue": queue.name, did.replace(" ", "_"): done})
        if not as_json:
            click.echo(f"{did} {total}")
        return _told_of_missing(ids, {*chain(*found.values())})


_changing(
    "requeue",
    "requeued",
    DelayQueue.requeue,
    "Schedule dead letters again, due now, with their counts reset.",
)
_changing("purge", "purged", DelayQueue.purge, "Delete dead letters for good.")
