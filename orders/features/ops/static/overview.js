// The overview: counters, the next and the latest orders, queues and workers.

import { post } from "./api.js";
import { confirm } from "./dialog.js";
import { $, h, setHidden, setItems, setRows, setText } from "./dom.js";
import { ago, countdown, dateTime, duration, money, number, orderCell, plural, upTo } from "./format.js";

const ORDERS = "order-timeout";
/** Tasks and orders that are overdue by more are a problem. */
const LATE_MS = 5000;
/** An order that is overdue by less has probably been cancelled since the last poll. */
const GRACE_MS = 1000;

/** By order id: when the order expires on this page's clock, and whether it was late or frozen when that was read. */
let deadlines = new Map();

export function show(state, refresh) {
  const { sql, redis } = state;
  showTiles(sql, redis);
  if (sql.answers) {
    const now = performance.now();
    deadlines = new Map(sql.next.map((order) => [order.id, { at: now + order.expires_in_ms, late: isLate(order), frozen: order.frozen }]));
    showLists(sql);
  }
  showQueues(redis, refresh);
}

// -- counters ------------------------------------------------------------------------------

function showTiles(sql, redis) {
  const [unpaid, overdue, refunds] = tilesOfSql(sql);
  const tiles = [unpaid, overdue, ...tilesOfRedis(redis), refunds].filter(Boolean);
  setItems($("tiles"), () => tiles.map(tile), tiles);
}

function tile({ name, value, note, state }) {
  return h("div", { class: state ?? null }, h("dt", {}, name), h("dd", {}, value), h("dd", { class: "note" }, note ?? ""));
}

function tilesOfSql(sql) {
  if (!sql.answers) return ["Unpaid", "Overdue", "Refunds due"].map((name) => ({ name, value: "–", note: "no database" }));
  const overdue = sql.overdue ?? {}; // null: counting takes too long
  const tiles = [
    { name: "Unpaid", value: sql.unpaid ? upTo(sql.unpaid.count, sql.unpaid.most) : "–", note: "orders" },
    {
      name: "Overdue",
      value: sql.overdue ? upTo(overdue.count, overdue.most) : "–",
      note: sql.overdue ? (overdue.count ? `oldest by ${duration(overdue.oldest_ms)}` : "none") : "not known",
      state: overdue.oldest_ms > LATE_MS ? levelOf(overdue) : null,
    },
  ];
  if (sql.refunds) {
    const count = refundsDue(sql);
    const sums = sql.refunds.sums.map((each) => money(each.amount_minor, each.currency));
    tiles.push({ name: "Refunds due", value: upTo(count, sql.refunds.most), note: sums.slice(0, 2).join(", ") || "none", state: count ? "warn" : null });
  }
  return tiles;
}

function tilesOfRedis(redis) {
  const names = ["Scheduled", "Due", "Leased", "Workers", "Dead letters"];
  if (!redis.answers) return names.map((name) => ({ name, value: "–", note: "no Redis" }));
  const checks = redis.queues.find((queue) => queue.name === ORDERS);
  const oldest = Math.max(...redis.queues.map((queue) => queue.oldest_dead_age_ms));
  const dead = deadLetters(redis);
  const live = checks.workers.filter((worker) => !worker.silent);
  return [
    { name: "Scheduled", value: number(checks.scheduled), note: checks.scheduled ? `next ${nextDue(checks)}` : "none" },
    {
      name: "Due",
      value: number(checks.due),
      note: checks.due ? `oldest for ${duration(checks.oldest_due_age_ms)}` : "none",
      state: checks.oldest_due_age_ms > LATE_MS ? "bad" : null,
    },
    { name: "Leased", value: number(checks.leased), note: "being handled" },
    {
      name: "Workers",
      value: number(live.length),
      note: live.length === checks.workers.length ? "live" : `${checks.workers.length - live.length} silent`,
      state: live.length ? null : "bad",
    },
    {
      name: "Dead letters",
      value: number(dead),
      note: dead ? `oldest ${ago(oldest)}` : "none",
      state: dead ? "warn" : null,
    },
  ];
}

export const deadLetters = (redis) => (redis.answers ? redis.queues.reduce((sum, queue) => sum + queue.dead, 0) : 0);

export const refundsDue = (sql) => (sql.refunds?.sums ?? []).reduce((sum, each) => sum + each.payments, 0);

// -- what is wrong -------------------------------------------------------------------------

/** What is wrong, one for each cause, the worst first: a level, a sentence, and an entry of the runbook. `more` is what panels found. */
export function problems({ sql, redis }, more) {
  const found = [...more];
  if (!sql.answers) found.push(["bad", "The database does not answer. Nothing is cancelled until it does; overdue orders then go first.", "DatabaseUnavailable"]);
  for (const each of sql.locked ?? []) found.push(["bad", `${each[0].toUpperCase()}${each.slice(1)}.`, "OrdersOverdue"]);
  if (!redis.answers) found.push(["bad", "Redis does not answer. Meanwhile workers cancel orders from the database. Queues, dead letters and workers cannot be shown.", "RedisUnavailable"]);
  const held = new Set(); // queues whose backlog is explained
  const note = (queues, ...problem) => {
    if (queues.length) found.push(problem);
    for (const queue of queues) held.add(queue.name);
  };
  const queues = redis.answers ? redis.queues : [];
  const live = (queue) => queue.workers.filter((worker) => !worker.silent);
  const without = queues.filter((queue) => !live(queue).length);
  note(without, "bad", `No worker for ${names(without)} is running, or none can reach Redis.`, "NoWorker");
  const down = queues.filter((queue) => live(queue).length && live(queue).every((worker) => !worker.up));
  if (sql.answers) note(down, "bad", `Every worker for ${names(down)} is down: a dependency of its handler does not answer.`, "WorkerFailing");
  else for (const queue of down) held.add(queue.name);
  for (const queue of queues.filter((each) => each.paused)) note([queue], pauseLevel(queue), `${queue.name} is ${queue.pause}. Its tasks are neither claimed nor swept.`, "QueuePaused");
  const late = queues.filter((queue) => queue.oldest_due_age_ms > LATE_MS && !held.has(queue.name) && sql.answers);
  for (const queue of late) {
    const are = queue.due === 1 ? "is" : "are";
    note([queue], "bad", `${plural(queue.due, "task")} in ${queue.name} ${are} due but not claimed, the oldest for ${duration(queue.oldest_due_age_ms)}.`, "QueueBacklog");
  }
  if (sql.overdue?.oldest_ms > LATE_MS && !held.has(ORDERS)) {
    const { count, most, oldest_ms, put_off } = sql.overdue;
    const later = put_off.count ? ` ${upTo(put_off.count, most)} put off: ${put_off.such}.` : "";
    found.push([levelOf(sql.overdue), `${upTo(count, most)} unpaid ${count === 1 ? "order is" : "orders are"} overdue, the oldest by ${duration(oldest_ms)}.${later}`, "OrdersOverdue"]);
  }
  if (sql.answers && !sql.overdue) found.push(notKnown("how many orders are overdue"));
  return found.sort(([a], [b]) => (a === b ? 0 : a === "bad" ? -1 : 1));
}

/** Nothing is amiss with workers if each overdue order is to be tried again. */
const levelOf = (overdue) => (overdue.put_off.count < overdue.count ? "bad" : "warn");

/** While the orders' checks are paused nothing is cancelled. */
const pauseLevel = (queue) => (queue.name === ORDERS ? "bad" : "warn");
export const notKnown = (what) => ["warn", `It is not known ${what}: the database takes too long to say it.`, "DatabaseUnavailable"];
const names = (queues) => queues.map((queue) => queue.name).join(", ");

// -- orders --------------------------------------------------------------------------------

function showLists(sql) {
  setRows($("next"), sql.next, (order) => order.id, (order) => [
    orderCell(order),
    { text: order.client, class: "wide" },
    { text: money(order.total_minor, order.currency), class: "number" },
    { text: left(order.expires_in_ms, isLate(order), order.frozen), class: `number countdown${isLate(order) ? " late" : ""}`, title: dateTime(order.expires_at) },
  ]);
  setHidden($("no-next"), sql.next.length > 0);
  setRows($("latest"), sql.latest, (order) => order.id, (order) => [
    orderCell(order),
    { text: order.client, class: "wide" },
    { text: ago(order.ago_ms), class: "number" },
    { text: duration(order.late_ms), class: `number ${level(order.late_ms)}` },
  ]);
  setHidden($("no-latest"), sql.latest.length > 0);
}

const isLate = (order) => order.expires_in_ms < -GRACE_MS && !order.frozen;

/** How bad a lateness is: good, warn or bad. */
const level = (ms) => (ms >= LATE_MS ? "bad" : ms >= 1000 ? "warn" : "good");

const left = (ms, late, frozen) => (late ? `${duration(-ms)} late` : ms < 0 && frozen ? "frozen" : countdown(ms));

/** Continue the countdowns between two polls. Returns whether one has ended since the last poll. */
export function tick() {
  const now = performance.now();
  let ended = false;
  for (const row of $("next").children) {
    const deadline = deadlines.get(row.dataset.key);
    const cell = row.querySelector(".countdown");
    if (!deadline || !cell) continue;
    setText(cell, left(deadline.at - now, deadline.late, deadline.frozen));
    ended ||= deadline.at < now && !deadline.late && !deadline.frozen;
  }
  return ended;
}

// -- queues and workers --------------------------------------------------------------------

const nextDue = (queue) => (queue.next_due_in_ms === null ? "never" : queue.due ? "now" : `in ${countdown(queue.next_due_in_ms)}`);

function showQueues(redis, refresh) {
  const queues = redis.answers ? redis.queues : [];
  setRows($("queues"), queues, (queue) => queue.name, (queue) => [
    { text: queue.name, class: "id" },
    queue.paused ? { text: "paused", class: pauseLevel(queue) } : { text: "running", class: "good" },
    ...["scheduled", "due", "leased", "dead"].map((name) => ({ text: number(queue[name]), class: name === "leased" ? "number extra" : "number" })),
    { text: nextDue(queue), class: "number extra" },
    { class: "end", key: String(queue.paused), node: () => pauseButton(queue, refresh) },
  ]);
  setHidden($("no-queues"), queues.length > 0);
  const workers = queues.flatMap((queue) => queue.workers.map((worker) => ({ ...worker, queue: queue.name })));
  setRows($("workers"), workers, (worker) => `${worker.id} ${worker.queue}`, (worker) => [
    { text: worker.id, class: "id" },
    { text: worker.queue, class: "id" },
    workerState(worker),
    { text: number(worker.holds), class: "number extra" },
    { text: ago(worker.heard_ms_ago), class: "number extra" },
    { text: worker.started_at ? dateTime(worker.started_at) : "–", class: "number extra" },
  ]);
  setHidden($("no-workers"), workers.length > 0 || !redis.answers);
  setHidden($("unknown-workers"), redis.answers);
}

function workerState(worker) {
  if (worker.silent) return { text: "silent", class: "bad" };
  if (!worker.up) return { text: "down", class: "bad" };
  return worker.holds ? { text: `busy for ${duration(1000 * worker.oldest_seconds)}`, class: "good" } : { text: "idle", class: "good" };
}

function pauseButton(queue, refresh) {
  const verb = queue.paused ? "Resume" : "Pause";
  return h("button", {
    "aria-label": `${verb} ${queue.name}`,
    click: () =>
      confirm({
        title: `${verb} ${queue.name}?`,
        text: queue.paused
          ? "Workers claim due tasks at once."
          : "No worker claims or sweeps this queue until somebody resumes it. Tasks that become due meanwhile will be late.",
        yes: verb,
        danger: !queue.paused,
        field: queue.paused ? undefined : "Why? Whoever looks at the queue sees it",
        act: async (reason) => {
          await post(verb.toLowerCase(), queue.paused ? { queue: queue.name } : { queue: queue.name, reason });
          await refresh();
          return `${queue.name} is ${queue.paused ? "running" : "paused"}.`;
        },
      }),
  }, verb);
}
