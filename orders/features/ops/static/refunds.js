// Refunds that are due.

import { get, post } from "./api.js";
import { confirm } from "./dialog.js";
import { $, explain, h } from "./dom.js";
import { dateTime, duration, money, shortId } from "./format.js";

const WHY = { order_cancelled: "the order was cancelled", paid_in_time: "paid in time, but reported after the order was cancelled", already_paid: "the order was already paid", wrong_amount: "wrong amount" };

let lastCount = null;
/** The number of the last request: an answer to an earlier one is dropped. */
let lastRequest = 0;
let refresh = async () => {};

export function prepare(refreshState) {
  refresh = refreshState;
}

/** Reload if their number has changed. */
export function notice(count) {
  if (count !== lastCount && !$("dialog").open) {
    lastCount = count;
    load();
  }
}

/** Show the oldest ones. */
export async function load() {
  const current = ++lastRequest;
  try {
    const { refunds } = await get("refunds");
    if (current !== lastRequest) return;
    $("refund-rows").replaceChildren(...refunds.map(row));
    explain($("no-refunds"), refunds.length ? "" : "No refunds are due.");
  } catch (error) {
    if (current === lastRequest) explain($("no-refunds"), error.message);
  }
}

function row(refund) {
  const amount = money(refund.amount_minor, refund.currency);
  return h(
    "tr",
    {},
    h("td", { class: "number", "data-label": "Amount" }, amount),
    h("td", { "data-label": "Client" }, refund.client),
    h("td", { "data-label": "Paid with" }, h("span", {}, `${refund.provider} `, h("span", { class: "id" }, refund.reference))),
    h("td", { "data-label": "Why" }, WHY[refund.reason] ?? refund.reason ?? ""),
    h("td", { class: "id", "data-label": "Order" }, h("a", { href: `#order/${refund.order_id}`, title: refund.order_id }, shortId(refund.order_id))),
    h("td", { class: "number", "data-label": "Due for", title: dateTime(refund.created_at) }, duration(refund.due_for_ms)),
    h("td", { class: "end" }, h("button", { "aria-label": `Mark refunded: ${amount} of ${refund.client}`, click: () => mark(refund, amount) }, "Mark refunded")),
  );
}

function mark(refund, amount) {
  confirm({
    title: `Mark ${amount} as refunded?`,
    text: `Payment ${refund.reference} of ${refund.client}, to be refunded through ${refund.provider}. This only records the refund; it does not move any money.`,
    field: "The provider's reference for the refund",
    yes: "Mark refunded",
    act: async (reference) => {
      await post(`refunds/${refund.id}`, { reference });
      await load();
      await refresh();
      return `${amount} is marked as refunded.`;
    },
  });
}
