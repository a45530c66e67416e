"""The operators' page in a real browser, on the real service: what an operator does, and what axe-core says."""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from devtools import processes
from devtools.chromium import Browser, Page, chromium
from devtools.processes import free_port
from devtools.service import Service
from orders.clients.domain import parted
from orders.config import Settings
from orders.db.tables import unpaid_orders
from orders.features.freezes.service import Freezes  # <freezes/>
from orders.order.domain import NewOrder
from orders.queues import QUEUE
from orders.wiring import Services, bootstrap
from tests.kit.moments import later, now
from tests.kit.pages import page, the_block
from tests.kit.workers import frozen
from worker import DelayQueue
from worker.queue.replies import Settlement, Verb

PAGE = page("orders/features/ops/README.md")

pytestmark = pytest.mark.slow

AXE = (Path(__file__).parent / "axe" / "axe.min.js").read_text()
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


class Site:
    """The service, a browser, and what the tests do to the service."""

    def __init__(self, service: Service, browser: Browser, services: Services, key: str) -> None:
        self.service = service
        self.browser = browser
        self.services = services
        self.key = key
        self.queue = DelayQueue(services.redis, QUEUE)

    def place(self, seconds: float, reference: str | None = None) -> str:
        new = NewOrder(
            client_id=self.services.clients.id_of("shop"),
            key=uuid4().hex,
            fingerprint=uuid4().hex,
            quantities={"tea": 1},
            timeout_seconds=seconds,
            client_reference=reference,
        )
        return self.services.orders.place(new).order.id

    def expire_soon(self, order_id: str) -> None:
        """Move its deadline to some seconds from now, however long the move takes."""
        shop, later_on = self.services.clients.id_of("shop"), datetime.now(UTC) + timedelta(hours=1)
        self.services.orders.extend(shop, order_id, expires_at=later_on, versions=None)
        soon = (
            unpaid_orders.update()
            .where(unpaid_orders.c.order_id == order_id)
            .values(expires_at=later(now(), "ms"))
        )
        with self.services.engine.begin() as connection:
            connection.execute(soon, {"ms": 4000})

    def pay_late(self, reference: str) -> str:
        """A payment that is due back."""
        order_id, shop = self.place(900), self.services.clients.id_of("shop")
        self.services.orders.cancel(shop, order_id)
        paid = self.services.orders.pay(
            shop, order_id, provider="bank", reference=reference, amount_minor=250, currency="EUR"
        )
        return paid.payment.id

    def bury(self, task_id: str) -> None:
        """A task that the worker refuses."""
        self.queue.schedule(task_id, delay_ms=0)
        processes.wait_until(lambda: self.queue.letters([task_id]), f"{task_id} to be dead")

    def opened(self, *, width: int = 1280, dark: bool = False) -> Page:
        page = self.browser.page(width=width, dark=dark)
        page.go(f"{self.service.base_url}/ops")
        page.until("document.querySelector('#key')?.checkVisibility()", "the login")
        return page

    def logged_in(self, *, width: int = 1280, dark: bool = False) -> Page:
        page = self.opened(width=width, dark=dark)
        page.type("#key", self.key)
        page.click("#login button")
        page.until("document.querySelector('#tiles')?.children.length > 7", "the counters")
        return page


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    program = chromium()
    if program is None:
        pytest.skip("there is no Chromium on PATH: the operators' page is not tested in a browser")
    with Service(tmp_path_factory.mktemp("ops"), free_port()) as service:
        services = bootstrap(Settings.from_env(service.env))
        services.stock.set("tea", on_hand=10_000, price_minor=250, currency="EUR")
        services.clients.create_key("shop", ["orders"])
        with Browser(program) as browser:
            _, _, *command = the_block("sh", "keys create anna", PAGE).split()
            key = processes.run(command, service.env).strip()
            yield Site(service, browser, services, key)
        services.close()


def violations(page: Page) -> list[str]:
    """What axe-core finds."""
    page.run(f"{AXE};0")
    options = json.dumps({"runOnly": RULES, "resultTypes": ["violations"]})
    found = page.run(
        f"axe.run(document, {options}).then((said) => JSON.stringify(said.violations))"
    )
    return [
        f"{each['id']}: {each['help']}: {[node['html'] for node in each['nodes']]}"
        for each in json.loads(found)
    ]


def status_of(page: Page) -> tuple[str, str]:
    """Its color, and what it says."""
    status = "document.querySelector('#status')"
    return page.run(f"{status}.className"), page.run(f"{status}.textContent")


def show(page: Page, view: str) -> None:
    page.run(f"location.hash = {json.dumps(view)}")
    name = re.split("[/?]", view)[0]
    page.until(f"document.querySelector('#main').dataset.view === '{name}'", view)


def test_an_operator_logs_in_and_out(site: Site) -> None:
    page = site.opened()
    page.type("#key", "wrong")
    page.press("Enter")
    page.until("document.querySelector('#refused').textContent", "the refusal")
    assert "not valid" in page.text("#refused")
    page.run("document.querySelector('#key').value = ''")
    page.type("#key", site.key)
    page.press("Enter")
    page.until("document.querySelector('#tiles')?.children.length > 7", "the counters")
    assert page.text("#client") == "anna"
    assert page.run("document.querySelector('#key').value") == ""
    page.go(f"{site.service.base_url}/ops")  # the tab keeps the key
    page.until("document.querySelector('#app').checkVisibility()", "the page")
    page.click("#logout")
    page.until("document.querySelector('#login').checkVisibility()", "the login")
    assert page.text("#refused") == ""
    page.go(f"{site.service.base_url}/ops")
    page.until("document.querySelector('#login').checkVisibility()", "the login")


def test_an_order_is_watched_as_it_expires(site: Site) -> None:
    page = site.logged_in()
    order_id = site.place(900, "A-watched")
    waits, ended = f"#next-{order_id}", f"#latest-{order_id}"
    page.until(f"document.querySelector('{waits} .countdown')", "the order to wait")
    assert page.text(f"{waits} a") == "A-watched"
    before = page.text(f"{waits} .countdown")
    page.until(f"document.querySelector('{waits} .countdown').innerText !== '{before}'", "time")
    site.expire_soon(order_id)
    page.until(f"document.querySelector('{ended}')", "it to be cancelled")
    page.until(f"!document.querySelector('{waits}')", "it to wait no more")
    assert page.text(f"{ended} td:last-child").endswith("s")
    page.click(f"{ended} a")
    page.until("document.querySelector('#timeline')?.children.length === 3", "its time line")
    assert "order.cancelled" in page.text("#timeline")
    assert page.text("#order-status") == "cancelled"
    assert page.complaints() == []


def test_a_dead_letter_is_read_requeued_and_purged(site: Site) -> None:
    site.bury("cart-1")
    site.bury("cart-2")
    page = site.logged_in()
    show(page, "dead")
    why = "[...document.querySelectorAll('#letters pre')].find((each) => each.checkVisibility())"
    assert page.run(f"{why}?.innerText") is None
    page.click("[aria-label^='Details of cart-1']")
    page.until(f"{why}?.innerText.includes('not a UUID')", "why")
    page.click("[aria-label='Select cart-1']")
    with frozen(site.service.worker):  # it would bury it again
        page.click("#requeue")
        assert "1 dead letter" in page.text("#dialog-title")
        page.press("Enter")  # the button that has the focus, which must not be the one that acts
        page.until("!document.querySelector('#dialog').open", "nothing to be done")
        assert site.queue.letters(["cart-1"])
        page.click("#requeue")
        page.click("#dialog-yes")
        page.until("!document.querySelector('#dialog').open", "the dialog to close")
        assert site.queue.letters(["cart-1"]) == []
        assert site.queue.look_up("cart-1") is not None
        page.until("!document.querySelector('[aria-label=\"Select cart-1\"]')", "it to be gone")
        assert "requeued" in page.text("#announcer")
        page.click("[aria-label='Select cart-2']")
        page.click("#purge")
        assert "1 dead letter" in page.text("#dialog-title")
        page.click("#dialog-yes")
        page.until("!document.querySelector('#dialog').open", "the dialog to close")
        assert site.queue.letters(["cart-2"]) == []
    assert page.complaints() == []


def next_poll(page: Page) -> None:
    before = page.text("#live")
    page.until(f"document.querySelector('#live').innerText !== '{before}'", "a poll")


def test_a_poll_disturbs_nobody(site: Site) -> None:
    site.bury("cart-5")
    page = site.logged_in()
    page.run(f"document.querySelector('#pause-{QUEUE}').focus()")
    next_poll(page)
    assert page.run("document.activeElement.id") == f"pause-{QUEUE}"
    show(page, "dead")
    page.click("[aria-label='Select cart-5']")
    page.click("[aria-label^='Details of cart-5']")
    next_poll(page)
    assert page.run("document.querySelectorAll('[name=ids]:checked, details[open]').length") == 2
    assert page.text("#purge") == "Purge 1 selected"


def test_a_refund_is_marked(site: Site) -> None:
    payment_id = site.pay_late("tx-77")
    page = site.logged_in()
    show(page, "refunds")
    page.until("document.querySelector('#refund-rows')?.innerText.includes('tx-77')", "the refund")
    page.click("#refund-rows button")
    page.type("#dialog-input", "re-77")
    page.click("#dialog-yes")
    page.until("document.querySelector('#no-refund-rows')", "none to be left")
    shop = site.services.clients.id_of("shop")
    done = site.services.orders.payments(shop, status="refunded", page_size=100)
    assert ("re-77", payment_id) in [(each.refund_reference, each.id) for each in done]


def test_a_queue_is_paused_and_resumed(site: Site) -> None:
    page = site.logged_in()
    page.click(f"[aria-label='Pause {QUEUE}']")
    page.type("#dialog-input", "a restore")
    page.click("#dialog-yes")
    page.until("document.querySelector('#notices')?.innerText.includes('a restore')", "the pause")
    assert site.services.pauses_of(QUEUE).find()
    assert status_of(page) == ("pill bad", "1 problem"), "nothing is cancelled"
    assert page.run("document.title").startswith("(")
    page.click(f"[aria-label='Resume {QUEUE}']")
    page.click("#dialog-yes")
    page.until("!document.querySelector('#notices')?.innerText.includes('paused')", "it to go on")
    assert not site.services.pauses_of(QUEUE).find()


# <freezes>
def test_cancellations_are_stopped_and_go_on(site: Site) -> None:
    page = site.logged_in(width=390)
    page.click("#stop-button")
    page.until("document.querySelector('#dialog').open", "the question")
    page.run(f"document.querySelector('#dialog-input').value = '{'x' * 201}'")
    page.click("#dialog-yes")
    page.until("document.querySelector('#dialog-error').textContent", "why it is refused")
    assert "reason: String should have at most 200" in page.text("#dialog-error")
    page.run("document.querySelector('#dialog-input').value = ''")
    page.type("#dialog-input", "the card terminal is down")
    page.click("#dialog-yes")
    page.until("document.querySelector('#freezes .timer')?.textContent", "the countdown")
    shown = page.run("document.querySelector('#freezes').innerText")
    assert "the card terminal is down" in shown
    assert "by anna, key " in shown
    assert status_of(page) == ("pill bad", "Stopped")
    assert [each.reason for each in site.services[Freezes].in_force()] == [
        "the card terminal is down"
    ]
    page.click("#freezes [id^=thaw]")
    page.click("#dialog-yes")
    page.until("document.querySelector('#stop-button').checkVisibility()", "it to go on")
    page.until("!document.querySelector('#freezes li')", "the time to be given back")
    assert site.services[Freezes].in_force() == []


def test_a_freeze_of_one_client_is_told_where_orders_are(site: Site) -> None:
    order_id = site.place(900, "A-frozen")
    freeze = (
        site.services[Freezes].open("shop", reason="no terminal", by="anna", seconds=600).freeze
    )
    site.expire_soon(order_id)
    page = site.logged_in()
    page.until("document.querySelector('#freezes .timer')", "the freeze")
    assert status_of(page) == ("pill warn", "Partly stopped")
    left = f"document.querySelector('#next-{order_id} .countdown')?.innerText"
    page.until(f"{left} === 'frozen'", "its deadline to pass")
    show(page, "dead")
    assert page.run("document.querySelector('#freezes')") is None
    show(page, "overview")
    site.services[Freezes].thaw(freeze.id, by="anna")
    page.until("!document.querySelector('#freezes li')", "the time to be given back")


# </freezes>


def test_the_overview_of_a_phone_is_short(site: Site) -> None:
    for _ in range(12):
        site.place(900)
    page = site.logged_in(width=390)
    page.until("document.querySelector('#workers').children.length > 4", "the workers")
    tops = "[...document.querySelectorAll('nav a')].map((each) => each.offsetTop)"
    assert len({*page.run(tops)}) == 1, "the tabs stand in one line"
    assert page.run("document.documentElement.scrollHeight") <= 2000


def test_nothing_is_off_screen_on_a_phone(site: Site) -> None:
    site.pay_late("tx-78")
    page = site.logged_in(width=390)
    for view in ("overview", "dead", "refunds", "runbook?entry=QueuePaused"):
        show(page, view)
        wide = "[...document.querySelectorAll('body *')].filter((each) => each.checkVisibility() && !each.closest('.unseen, thead, svg') && each.getBoundingClientRect().right > 391).map((each) => each.outerHTML.slice(0, 80))"
        assert page.run(wide) == [], view
    show(page, "refunds")
    page.until("document.querySelector('#refund-rows')?.innerText.includes('tx-78')", "the refund")
    row = page.run("document.querySelector('#refund-rows').innerText")
    assert "the order was cancelled" in row, "why"


def test_an_order_is_searched(site: Site) -> None:
    order_id = site.place(900, "A-searched")
    page = site.logged_in()
    page.type("#text", "A-searched")
    page.press("Enter")
    page.until(f"location.hash === '#order/{order_id}'", "the order")
    page.until("document.querySelector('#timeline')?.children.length === 1", "its time line")
    assert "not due yet: its deadline is" in page.text("#order-facts")
    page.run("document.querySelector('#text').value = ''")
    page.type("#text", "A-later")
    page.press("Enter")
    page.until("document.querySelector('#no-found')?.innerText.startsWith('No order')", "nothing")
    site.place(900, "A-later")
    page.click("#search button")
    page.until("document.querySelector('#order-heading')?.innerText === 'A-later'", "the order")


def test_an_order_that_does_not_exist_shows_nothing_of_another(site: Site) -> None:
    page = site.logged_in()
    show(page, f"order/{site.place(900)}")
    page.until("document.querySelector('#timeline')?.children.length === 1", "its time line")
    show(page, f"order/{uuid4()}")
    page.until("document.querySelector('#failed')", "nothing")
    assert page.text("#main") == "There is no such order."


def test_why_an_order_is_still_unpaid_is_shown(site: Site) -> None:
    with frozen(site.service.worker):  # before it is woken, or its claim may come first
        order_id = site.place(900)
        processes.wait_until(lambda: site.queue.look_up(order_id), "the check to be scheduled")
        site.queue.schedule(order_id, 1)
        [task] = site.queue.claim(1, 60_000).tasks
        error = OSError("connection refused")
        site.queue.settle([Settlement([task], Verb.FAILED, 600_000, error)])
    page = site.logged_in()
    show(page, f"order/{order_id}")
    page.until("document.querySelector('#timeline')?.children.length === 1", "its time line")
    assert "failed 1 time: OSError: connection refused; next" in page.text("#order-facts")
    late = unpaid_orders.update().where(unpaid_orders.c.order_id == order_id)
    with site.services.engine.begin() as connection:
        connection.execute(late.values(expires_at=later(now(), "ms")), {"ms": -60_000})
    show(page, "overview")
    page.until(
        "document.querySelector('#notices .warn')?.innerText.includes('refused; next try')",
        "the notice",
    )


def test_it_does_not_ask_while_nobody_sees_it(site: Site) -> None:
    page = site.logged_in()
    page.run("Object.defineProperty(document, 'hidden', {configurable: true, get: () => true})")
    page.run("document.dispatchEvent(new Event('visibilitychange'))")
    processes.wait_until(lambda: asked_and_answered(page), "the look under way to end")
    before = len(page.requests())
    page.run("new Promise((done) => setTimeout(done, 5000))")
    assert len(page.requests()) == before
    page.run("Object.defineProperty(document, 'hidden', {configurable: true, get: () => false})")
    page.run("document.dispatchEvent(new Event('visibilitychange'))")
    processes.wait_until(lambda: len(page.requests()) > before, "it to look again")


def asked_and_answered(page: Page) -> bool:
    """Whether every request has its answer, and none followed from the last one."""
    sent = len(page.requests())
    page.run("new Promise((done) => setTimeout(done, 300))")
    ids: dict[str, set[str]] = {"requestWillBeSent": set()}
    for method, facts in [*page.events]:
        if method.startswith("Network.") and "requestId" in facts:
            ids.setdefault(method.removeprefix("Network."), set()).add(facts["requestId"])
    ended = ids.get("loadingFinished", set()) | ids.get("loadingFailed", set())
    return len(page.requests()) == sent and ids["requestWillBeSent"] <= ended


def test_without_redis_it_says_so_and_goes_on(site: Site) -> None:
    page, other = site.logged_in(), site.logged_in()
    show(other, "dead")
    valkey = site.service.valkey.process
    assert valkey is not None
    with frozen(valkey):
        other.until("document.querySelector('#old').checkVisibility()", "a notice")
        assert other.text("#old") == "Redis does not answer. This page shows old data."
        assert other.text("#main h2") == "Dead letters"
        page.until("document.querySelector('#notices')?.innerText.includes('Redis')", "a notice")
        assert "Unpaid" in page.text("#tiles")
        assert page.text("#no-queues") == "Redis does not answer."
    page.until("!document.querySelector('#notices')?.innerText.includes('Redis')", "it to be back")


def test_a_revoked_key_ends_the_session_in_the_browser(site: Site) -> None:
    key = site.services.clients.create_key("berta", ["ops"])
    page = site.opened()
    page.type("#key", key)
    page.press("Enter")
    page.until("document.querySelector('#tiles')?.children.length > 7", "the counters")
    site.services.clients.revoke(parted(key)[0])
    page.until("document.querySelector('#login').checkVisibility()", "the login")
    assert "logged out" in page.text("#refused")


def test_everything_can_be_reached_with_the_keyboard(site: Site) -> None:
    site.bury("cart-3")
    page = site.logged_in()
    show(page, "dead")
    page.until("document.querySelector('[aria-label=\"Select cart-3\"]')", "the letter")
    page.run("document.querySelector('.skip').focus()")
    reached = []
    for _ in range(30):
        page.press("Tab")
        reached.append(
            page.run(
                "document.activeElement.id || document.activeElement.getAttribute('aria-label') || document.activeElement.textContent"
            )
        )
        assert page.run(
            "document.activeElement === document.body || getComputedStyle(document.activeElement).outlineStyle !== 'none'"
        ), reached
    why = next(each for each in reached if each.startswith("Details of cart-3: "))
    wanted = ["text", "logout", QUEUE, "dead-all", "Select cart-3", why]
    names = [re.sub(r" \d+$", "", each) for each in reached]  # without the number of letters
    assert [each for each in names if each in wanted][: len(wanted)] == wanted


@pytest.mark.parametrize(
    ("width", "dark"), [(1280, False), (1280, True), (360, False)], ids=["light", "dark", "phone"]
)
def test_axe_finds_no_violations(site: Site, width: int, dark: bool) -> None:  # noqa: FBT001
    site.bury("cart-4")
    site.pay_late(f"tx-{uuid4().hex}")
    order_id = site.place(900)
    gone = site.place(1.0)
    page = site.opened(width=width, dark=dark)
    found = {"login": violations(page)}
    page = site.logged_in(width=width, dark=dark)
    page.until(f"document.querySelector('#latest-{gone}')", "a cancellation")
    page.until("!document.getAnimations().length", "it to be calm")
    for view in ("overview", "dead", "refunds", f"order/{order_id}", "find?text=no", "runbook"):
        show(page, view)
        page.run("new Promise((done) => setTimeout(done, 500))")
        found[view] = violations(page)
        assert page.run(
            "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
        ), view
    show(page, "dead")
    page.click("[aria-label^='Details of cart-4']")
    page.click("[aria-label='Select cart-4']")
    found["letter"] = violations(page)
    page.click("#purge")
    page.until("!document.getAnimations().length", "the dialog to be there")
    found["dialog"] = violations(page)
    assert {view: each for view, each in found.items() if each} == {}
    assert page.complaints() == []
    assert {url.startswith(f"{site.service.base_url}/ops") for url in page.requests()} == {True}
