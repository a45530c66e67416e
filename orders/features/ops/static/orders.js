// Search for orders, and show everything about one.

import { get } from "./api.js";
import { $, explain, h, setItems, setRows, setText } from "./dom.js";
import { dateTime, duration, money, number, shortId } from "./format.js";

const STATE = { unpaid: "", paid: "good", cancelled: "warn" };

/** The order whose heading, facts and timeline are on the page. */
let shownId = null;

/** List the orders that match, or go to the only one. */
export async function find(text) {
  const here = location.hash;
  setText($("find-heading"), `Orders “${text}”`);
  $("found").replaceChildren();
  explain($("not-found"), "Searching…");
  try {
    const { orders } = await get("search", { text });
    if (location.hash !== here) return;
    if (orders.length === 1) {
      location.replace(`#order/${orders[0].id}`);
      return;
    }
    setRows($("found"), orders, (order) => order.id, (order) => [
      { text: shortId(order.id), href: `#order/${order.id}`, class: "id", title: order.id },
      order.client_reference ?? "",
      { text: order.client, class: "wide" },
      { text: order.status, class: STATE[order.status] },
      { text: money(order.total_minor, order.currency), class: "number" },
    ]);
    explain($("not-found"), orders.length ? "" : "No order has this id or reference. Enter it in full; references are case-sensitive.");
  } catch (error) {
    if (location.hash === here) explain($("not-found"), error.message);
  }
}

/** Show an order as it is now. If that cannot be read, what was read before stays. */
export async function show(id) {
  const here = location.hash;
  if (id !== shownId) clear(id);
  try {
    const story = await get(`orders/${encodeURIComponent(id)}`);
    if (location.hash !== here) return;
    setText($("order-heading"), story.order.client_reference ?? `Order ${shortId(id)}`);
    setText($("order-status"), story.order.status);
    $("order-status").className = `pill ${STATE[story.order.status]}`;
    const facts = factsOf(story);
    setItems($("order-facts"), () => facts.flatMap(([name, ...values]) => [h("dt", {}, name), ...values.map((value) => h("dd", {}, value))]), facts);
    const steps = stepsOf(story);
    setItems($("timeline"), () => steps.map(step), steps);
  } catch (error) {
    if (location.hash !== here) return;
    setText($("order-status"), error.status === 404 ? "no such order" : error.message);
    $("order-status").className = "pill bad";
  }
}

/** Remove what is shown of another order. */
function clear(id) {
  shownId = id;
  setText($("order-heading"), shortId(id));
  setText($("order-status"), "");
  setItems($("order-facts"), () => [], []);
  setItems($("timeline"), () => [], []);
}

function factsOf({ order, why }) {
  const items = order.items.map((item) => `${number(item.quantity)} × ${item.sku}`).join(", ");
  return [
    ["Id", order.id],
    ["Client", order.client],
    ["Total", money(order.total_minor, order.currency)],
    ["Items", items],
    ["Placed", dateTime(order.created_at)],
    ["Deadline", dateTime(order.expires_at)],
    ...(why.length ? [["Unpaid because", ...why]] : []),
  ];
}

/** Everything that happened, in the order of time. */
function stepsOf({ order, events, payments, steps: others }) {
  const steps = events.map((event) => ({ at: event.at, kind: "event", title: event.type, text: eventText(event, order) }));
  for (const payment of payments) {
    const amount = money(payment.amount_minor, payment.currency);
    steps.push({ at: payment.created_at, kind: "payment", title: `payment ${payment.status.replace("_", " ")}`, text: `${amount} by ${payment.provider}, ${payment.reference}` });
    if (payment.refunded_at) {
      steps.push({ at: payment.refunded_at, kind: "payment", title: "payment refunded", text: `${money(payment.refunded_minor, payment.currency)}, ${payment.refund_reference}` });
    }
  }
  for (const each of others) steps.push({ ...each, text: each.next ? `${each.text}, next attempt ${dateTime(each.next)}` : each.text });
  return steps.sort((a, b) => a.at.localeCompare(b.at));
}

function eventText(event, order) {
  if (event.type === "order.cancelled") {
    const late = Date.parse(event.at) - Date.parse(order.expires_at);
    return event.data.reason === "expired" ? `not paid in time; cancelled ${duration(late)} after the deadline` : "on request";
  }
  if (event.type === "order.extended" && event.data.expires_at) return `to ${dateTime(event.data.expires_at)}`;
  return "";
}

function step({ at, kind, title, text, state }) {
  return h(
    "li",
    { class: state ? `${kind} ${state}` : kind },
    h("time", { datetime: at }, dateTime(at)),
    h("div", {}, h("strong", {}, title), text ? h("p", { class: "note" }, text) : null),
  );
}
