// Dead letters: list, show, requeue and purge the newest ones of a queue.

import { get, post } from "./api.js";
import { confirm } from "./dialog.js";
import { $, explain, h, setItems, setText } from "./dom.js";
import { ago, number, plural, shortId } from "./format.js";

let lastCounts = "";
/** The number of the last load: an answer to an earlier one is dropped. */
let lastLoad = 0;
let refresh = async () => {};

const queueName = () => $("dead-queue").value;
const boxes = () => [...$("letters").querySelectorAll("input[type=checkbox]")];
const selected = () => boxes().filter((box) => box.checked).map((box) => box.value);

export function prepare(refreshState) {
  refresh = refreshState;
  $("dead-queue").addEventListener("change", enter);
  $("dead-all").addEventListener("change", (event) => {
    for (const box of boxes()) box.checked = event.target.checked;
    showSelection();
  });
  $("letters").addEventListener("change", showSelection);
  for (const verb of ["requeue", "purge"]) $(verb).addEventListener("click", () => change(verb, selected()));
}

/** Whether a reload would not disturb the operator. */
const isIdle = () => !selected().length && !$("letters").querySelector("pre") && !$("dialog").open;

/** Start over: the section was opened, or another queue was chosen. */
export function enter() {
  $("letters").replaceChildren();
  showSelection();
  return load(() => true);
}

async function load(isWelcome) {
  if (!queueName()) return; // before the first state
  const current = ++lastLoad;
  try {
    const { letters } = await get("letters", { queue: queueName() });
    if (current !== lastLoad || !isWelcome()) return;
    $("letters").replaceChildren(...letters.map(row));
    explain($("no-letters"), letters.length ? "" : "No dead letters.");
    showSelection();
  } catch (error) {
    if (current === lastLoad) explain($("no-letters"), error.message);
  }
}

/** List the queues. While letters are visible, reload if their number has changed, unless that would disturb the operator. */
export function show(state, isVisible) {
  setItems($("dead-queue"), () => state.queues.map((name) => h("option", {}, name)), state.queues);
  const counts = JSON.stringify(state.redis.answers ? state.redis.queues.map((queue) => queue.dead) : null);
  if (isVisible && counts !== lastCounts && isIdle()) {
    lastCounts = counts;
    load(isIdle);
  }
}

function row(letter) {
  const name = shortId(letter.id);
  const isOrder = queueName() === "order-timeout" && /^[0-9a-f-]{36}$/.test(letter.id);
  const task = isOrder ? h("a", { href: `#order/${letter.id}`, title: letter.id }, name) : h("span", { title: letter.id }, name);
  const details = h("button", { class: "plain", "aria-expanded": "false", "aria-label": `Details of ${name}`, click: () => toggle(letter, tr, details) }, "Details");
  const tr = h(
    "tr",
    {},
    h("td", { class: "tick" }, h("input", { type: "checkbox", value: letter.id, "aria-label": `Select ${name}` })),
    h("td", { class: "id", "data-label": "Task" }, task),
    h("td", { class: "reason", "data-label": "Reason" }, letter.reason),
    h("td", { class: "number extra", "data-label": "Failures" }, number(letter.failures)),
    h("td", { class: "number extra", "data-label": "Expired leases" }, number(letter.deliveries)),
    h("td", { class: "number extra", "data-label": "Died" }, ago(letter.died_ms_ago)),
    h("td", { class: "end" }, details),
  );
  return tr;
}

function toggle(letter, tr, button) {
  const isOpen = button.getAttribute("aria-expanded") === "true";
  button.setAttribute("aria-expanded", String(!isOpen));
  if (isOpen) {
    tr.nextElementSibling.remove();
    return;
  }
  const why = [letter.id, letter.traceback ?? letter.error ?? letter.reason].join("\n\n");
  const text = h("pre", { tabindex: "0", role: "region", "aria-label": `Why ${shortId(letter.id)} is dead` }, why);
  tr.after(h("tr", { class: "details" }, h("td", { colspan: "7" }, text)));
}

function showSelection() {
  const count = selected().length;
  for (const [verb, { yes }] of Object.entries(WHAT)) {
    $(verb).disabled = !count;
    setText($(verb), count ? `${yes} ${number(count)} selected` : `${yes} selected`);
  }
  $("dead-all").checked = count > 0 && count === boxes().length;
  $("dead-all").indeterminate = count > 0 && count < boxes().length;
}

const WHAT = {
  requeue: { yes: "Requeue", done: "requeued", means: "They become due at once, with their counters reset." },
  purge: { yes: "Purge", done: "purged", means: "They are deleted permanently." },
};

function change(verb, ids) {
  const { yes, done, means } = WHAT[verb];
  const queue = queueName();
  confirm({
    title: `${yes} ${plural(ids.length, "dead letter")} of ${queue}?`,
    text: means,
    yes,
    danger: verb === "purge",
    act: async () => {
      const { done: count } = await post(`letters/${verb}`, { queue, ids });
      await enter();
      await refresh();
      return `${plural(count, "dead letter")} ${done}.`;
    },
  });
}
