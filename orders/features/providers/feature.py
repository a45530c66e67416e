"""Payment providers: what they report, signed; and attempts to pay, which keep an order until they are closed."""

from collections.abc import Iterator

from orders.feature import Feature
from orders.features.parts import OrderData
from orders.features.providers import checks, tables
from orders.features.providers.attempts.domain import ATTEMPT_QUEUE
from orders.features.providers.attempts.flow import attempt_flow
from orders.features.providers.attempts.routes import attempts
from orders.features.providers.attempts.service import Attempts, causes
from orders.features.providers.commands import providers as commands
from orders.features.providers.entries import Entries
from orders.features.providers.errors import UnknownProvider
from orders.features.providers.routes import providers
from orders.features.providers.service import SQL, Providers
from orders.features.signing.settings import SendingSettings
from orders.wiring import Services


def wire(services: Services) -> Iterator[object]:
    at_most = services.settings.attempts_at_most_seconds
    closings = services.scheduler_of(ATTEMPT_QUEUE)
    reports = Providers(services.engine)
    services.hooks.before_payment.append(reports.refusal)
    made = Attempts(
        *(services.engine, services.scheduler, closings, at_most), before_payment=reports.refusal
    )
    services.hooks.after_change.append(made.end)
    yield from (made, reports, Entries(services.engine, services.hooks))


FEATURE = Feature(
    name="providers",
    tables=tables,
    settings=(SendingSettings,),
    queues=(ATTEMPT_QUEUE,),
    wire=wire,
    flows=lambda services: [attempt_flow(services)],
    routes=(attempts, providers),
    refusals={"create_payment": (UnknownProvider,)},
    commands=(commands,),
    order_data=lambda: OrderData(
        name="provider_messages",
        export=SQL.list_about,
        delete=SQL.delete_of_orders,
        needed=SQL.list_needed,
        erase=SQL.erase,
    ),
    checks=((checks.inbox, "orders.inbox"),),
    figures=(checks.figures,),
    causes=causes,
)
