"""Numbers, money and times as people read them, and the templates that use them."""

from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, PrefixLoader, StrictUndefined
from markupsafe import Markup

from orders.db.ids import is_uuid
from orders.features.parts import time_of, up_to
from orders.http.schemas.types import rfc3339
from worker.console import duration
from worker.findings import quantity

FEATURES = Path(__file__).parents[1]
#: The currencies of ISO 4217 whose amounts have not two digits after the point, by how many they have.
DIGITS = {
    0: "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF",
    3: "BHD IQD JOD KWD LYD OMR TND",
    4: "CLF UYW",
}


def number(value: int) -> str:
    return f"{value:,}"


def money(minor: int, currency: str) -> str:
    digits = next((n for n, names in DIGITS.items() if currency in names), 2)
    return f"{minor / 10**digits:,.{digits}f} {currency}"


def countdown(ms: float) -> str:
    """The time left until a deadline, as on a clock: 0:07, 29:59, 1:00:00. The script continues it."""
    minutes, seconds = divmod(-(max(0, int(ms)) // -1000), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def ago(ms: float) -> str:
    """In whole seconds, because a finer unit would flicker."""
    seconds = int(ms) // 1000
    return f"{duration(1000 * seconds)} ago" if seconds > 0 else "just now"


def moment(at: datetime) -> Markup:
    """A time that the script shows in the browser's time zone."""
    return Markup('<time datetime="{}">{}</time>').format(rfc3339(at), time_of(at))


def short(id_: str) -> str:
    """Enough of an id to recognize it; the full id is in the title and the link."""
    return f"{id_[:8]}…{id_[-4:]}" if len(id_) > 20 else id_  # noqa: PLR2004


def key(id_: str) -> str:
    """What an element's id may contain of another one, whatever that is made of."""
    return quote(id_.encode(errors="surrogatepass"), safe="")


def templates(features: Iterable[str]) -> Environment:
    """The templates of this feature and of these, by name and file. Whatever is shown is escaped."""
    loaders = {name: FileSystemLoader(FEATURES / name / "templates") for name in ("ops", *features)}
    made = Environment(
        loader=PrefixLoader(loaders),
        autoescape=True,
        undefined=StrictUndefined,
        auto_reload=False,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    shown = (number, up_to, money, countdown, ago, moment, rfc3339, short, key, duration, quantity)
    made.filters |= {each.__name__: each for each in shown}
    made.tests["uuid"] = is_uuid
    return made
