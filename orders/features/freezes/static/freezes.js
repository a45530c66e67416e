// The first thing on the page: stop all cancellations by timeout, and what has stopped them.

import { ask, post } from "./api.js";
import { confirm } from "./dialog.js";
import { $, h, setHidden, setItems, setText } from "./dom.js";
import { countdown, dateTime, plural, upTo } from "./format.js";
import { notKnown } from "./overview.js";

const DURATIONS = [[900, "15 minutes"], [3600, "1 hour"], [14_400, "4 hours"], [86_400, "1 day"]];
const EVERYTHING = "everything";
const ORDERS = "order-timeout";
const RULES = { door: "by itself, because payers cannot reach the service", clock: "by itself, because the database's clock jumped" };

/** By freeze id: when it ends on this page's clock. */
let ends = new Map();
let refresh = async () => {};

export function prepare(refreshState) {
  refresh = refreshState;
  document.head.append(h("link", { rel: "stylesheet", href: "/ops/static/freezes.css" }));
  const freezes = h("ul", { id: "freezes", "aria-label": "What has stopped cancellations" });
  const button = h("button", { id: "stop-button", class: "danger", hidden: true, click: stop }, "Stop cancellations…");
  $("notices").before(h("section", { id: "stop", class: "stop", "aria-label": "Stop cancellations" }, freezes, h("p", { id: "stop-note" }), button));
}

const isOfAll = (freeze) => freeze.scope === EVERYTHING;

/** How bad it is that cancellations are stopped, and what to call it; undefined if they are not. */
export function status({ panels }) {
  if (!panels.freezes?.length) return undefined;
  return panels.freezes.some(isOfAll) ? ["bad", "Stopped"] : ["warn", "Partly stopped"];
}

export const problems = ({ sql, panels }) => (sql.answers && !panels.freezes ? [notKnown("whether cancellations are stopped")] : []);

export function show(state) {
  const { sql } = state;
  const freezes = state.panels.freezes ?? []; // null: not known
  ends = new Map(freezes.map((freeze) => [freeze.id, performance.now() + freeze.left_ms]));
  const isStopped = freezes.some((freeze) => isOfAll(freeze) && freeze.state === "open");
  setHidden($("stop-button"), isStopped || !sql.answers);
  setHidden($("stop-note"), freezes.length > 0);
  setText($("stop-note"), note(state));
  $("stop").className = `stop ${status(state)?.[0] ?? ""}`;
  setItems($("freezes"), () => freezes.map(item), freezes.map(({ left_ms: _, ...rest }) => rest));
  tick();
}

function note({ sql, redis, panels }) {
  if (!sql.answers) return "The database does not answer.";
  if (!panels.freezes) return "It is not known whether cancellations are stopped.";
  const orders = sql.unpaid && `${upTo(sql.unpaid.count, sql.unpaid.most)} ${sql.unpaid.count === 1 ? "order waits" : "orders wait"} to be paid.`;
  const isPaused = redis.answers && redis.queues.some((queue) => queue.name === ORDERS && queue.paused);
  const then = isPaused ? "None is cancelled during the pause; when it ends, all that are overdue are." : "Each is cancelled at its deadline.";
  return `${orders || ""} ${then}`.trim();
}

/** Continue the countdowns between two polls. */
export function tick() {
  for (const timer of $("freezes").querySelectorAll("[data-freeze]")) {
    const end = ends.get(timer.dataset.freeze);
    if (end !== undefined) setText(timer, countdown(end - performance.now()));
  }
}

function item(freeze) {
  const isOpen = freeze.state === "open";
  const many = freeze.orders === null ? "orders not counted" : `${upTo(freeze.orders, freeze.most)} ${freeze.orders === 1 ? "order" : "orders"}`;
  const what = isOfAll(freeze) ? "No order is cancelled by timeout" : `No order of ${freeze.scope} is cancelled by timeout`;
  const left = isOpen ? h("span", { class: "timer", "data-freeze": freeze.id, role: "timer", "aria-label": "Time left" }) : null;
  const facts = [
    h("p", {}, h("strong", {}, isOpen ? what : "Giving back time"), ` · ${many}`),
    h("p", {}, freeze.reason),
    h("p", { class: "note" }, `Stopped ${RULES[freeze.opened_by] ?? `by ${freeze.opened_by}`}, ${dateTime(freeze.opened_at)}. ${isOpen ? `Ends ${dateTime(freeze.ends_at)}` : `Ended ${dateTime(freeze.ends_at)}; ${plural(freeze.given_back, "order")} got time back so far`}.`),
  ];
  const buttons = isOpen
    ? h("div", { class: "tools" }, h("button", { click: () => prolong(freeze) }, "Prolong…"), h("button", { click: () => thaw(freeze) }, "Thaw…"))
    : null;
  return h("li", {}, left, h("div", { class: "why" }, ...facts), buttons);
}

function stop() {
  confirm({
    title: "Stop cancellations?",
    text: "No order is cancelled by timeout, by any worker, until the time is over or somebody thaws. Orders can still be paid, and cancelled by hand; afterwards each has at least five minutes left.",
    field: "Why? Whoever looks sees it",
    choice: { label: "For", options: DURATIONS, chosen: 3600 },
    yes: "Stop cancellations",
    danger: true,
    act: (reason, seconds) => changed(post("freezes", { reason, seconds: Number(seconds) }), "Cancellations are stopped."),
  });
}

function prolong(freeze) {
  confirm({
    title: "Prolong?",
    text: `Stopped: ${freeze.reason}`,
    choice: { label: "From now on, for", options: DURATIONS, chosen: 3600 },
    yes: "Prolong",
    act: (_, seconds) => changed(ask("PATCH", `freezes/${freeze.id}`, { seconds: Number(seconds) }), "Cancellations are stopped for longer."),
  });
}

function thaw(freeze) {
  confirm({
    title: "Thaw?",
    text: `Stopped: ${freeze.reason}. Orders whose deadline has passed, or is near, get time back first: nobody is cancelled at once.`,
    yes: "Thaw",
    danger: true,
    act: () => changed(ask("DELETE", `freezes/${freeze.id}`), "Orders get their time back."),
  });
}

async function changed(request, outcome) {
  await request;
  await refresh();
  return outcome;
}
