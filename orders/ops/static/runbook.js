// The runbook, as docs/runbook.md has it: the entry for one problem, or all of it.

import { $, h, setText, withCode } from "./dom.js";

/** What to read about each of the doctor's findings; by the beginning of its check and level. */
const ENTRIES = {
  "queue.pause": "QueuePaused",
  "queue.workers warning": "WorkerDown",
  "queue.workers": "NoWorker",
  "queue.stuck": "HandlerTooSlow",
  "queue.backlog": "QueueBacklog",
  "queue.dead": "DeadLetters",
  "flow.probe": "DatabaseUnavailable",
  "flow.overdue": "OrdersOverdue",
  "flow.tasks": "TasksRestored",
  "redis.": "RedisUnavailable",
  "sql.": "DatabaseUnavailable",
  "orders.locked": "OrdersOverdue",
  "orders.freezes": "OrdersFrozen",
  "orders.inbox": "InboxWaiting",
  "orders.refunds": "RefundsWaiting",
  "orders.webhooks": "WebhooksFailing",
};

/** The address of the entry for one of the doctor's findings. */
export function hrefOf({ check, level }) {
  const known = Object.keys(ENTRIES).find((name) => `${check} ${level}`.startsWith(name));
  return known ? `#runbook/${ENTRIES[known]}` : "#runbook";
}

export async function show(entry) {
  setText($("runbook-heading"), entry || "Runbook");
  try {
    const response = await fetch("/ops/static/runbook.md");
    if (!response.ok) throw new Error(`Status ${response.status}`);
    const sections = (await response.text()).split(/^(?=#{2,3} )/m);
    const wanted = sections.filter((section) => !entry || section.startsWith(`### ${entry}\n`));
    const found = wanted.length ? wanted : sections;
    $("runbook-text").replaceChildren(...found.map((section) => h("p", {}, ...withCode(section.replace(entry ? /^.*\n+/ : /^$/, "").trim()))));
  } catch {
    setText($("runbook-text"), "The runbook cannot be read here: see docs/runbook.md.");
  }
}
