// Dead letters: list, show, requeue and purge them.

import { get, post } from "./api.js";
import { confirm } from "./dialog.js";
import { $, explain, h, setHidden, setText } from "./dom.js";
import { ago, number, plural, shortId } from "./format.js";

/** Of one request: the server limits its body to 16 KiB, and ids that other programs wrote may be long. */
const MOST_IDS = 200;
const MOST_BYTES = 12_000;

let shown = [];
/** Where the list goes on; null at its end. */
let next = null;
let lastCounts = "";
/** The number of the last load: an answer to an earlier one is dropped. */
let lastLoad = 0;
let refresh = async () => {};

const queueName = () => $("dead-queue").value;
const filter = () => $("dead-text").value.trim();
const boxes = () => [...$("letters").querySelectorAll("input[type=checkbox]")];
const selected = () => boxes().filter((box) => box.checked).map((box) => box.value);

export function prepare(refreshState) {
  refresh = refreshState;
  $("dead-filter").addEventListener("submit", (event) => {
    event.preventDefault();
    load();
  });
  $("dead-queue").addEventListener("change", enter);
  $("more-letters").addEventListener("click", () => load({ isMore: true }));
  $("dead-all").addEventListener("change", (event) => {
    for (const box of boxes()) box.checked = event.target.checked;
    showSelection();
  });
  $("letters").addEventListener("change", showSelection);
  for (const verb of ["requeue", "purge"]) {
    $(verb).addEventListener("click", () => change(verb, selected()));
    $(`${verb}-all`).addEventListener("click", () => changeAll(verb));
  }
}

/** Whether a reload would not disturb the operator. */
const isIdle = () => !selected().length && !$("letters").querySelector("pre") && !$("dialog").open;

/** Start over: the section was opened, or another queue was chosen. */
export function enter() {
  clear();
  return load();
}

/** Show the newest ones, or more. */
async function load({ isMore = false, isWelcome = () => true } = {}) {
  const current = isMore ? lastLoad : ++lastLoad;
  try {
    const page = await get("letters", { queue: queueName(), text: filter(), ...(isMore && { cursor: next }) });
    if (current !== lastLoad || !isWelcome()) return;
    if (!isMore) clear();
    add(page);
  } catch (error) {
    if (current === lastLoad) explain($("no-letters"), error.message);
  }
}

/** Reload if their number has changed, unless that would disturb the operator. */
export function notice(state) {
  const counts = JSON.stringify(state.redis.answers ? state.redis.queues.map((queue) => queue.dead) : null);
  if (counts !== lastCounts && isIdle()) {
    lastCounts = counts;
    load({ isWelcome: isIdle });
  }
}

function clear() {
  shown = [];
  next = null;
  $("letters").replaceChildren();
  setHidden($("more-letters"), true);
  showSelection();
}

function add(page) {
  const known = new Set(shown.map((letter) => letter.id));
  const added = page.letters.filter((letter) => !known.has(letter.id));
  shown.push(...added);
  next = page.next_cursor;
  $("letters").append(...added.map(row));
  setHidden($("more-letters"), next === null);
  const none = next !== null ? "No matches so far. Show more to keep searching." : filter() ? "No dead letters match." : "No dead letters.";
  explain($("no-letters"), shown.length ? "" : none);
  showSelection();
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

async function toggle(letter, tr, button) {
  const isOpen = button.getAttribute("aria-expanded") === "true";
  button.setAttribute("aria-expanded", String(!isOpen));
  if (isOpen) {
    tr.nextElementSibling.remove();
    return;
  }
  const text = h("pre", { tabindex: "0", role: "region", "aria-label": `Why ${shortId(letter.id)} is dead` }, "…");
  tr.after(h("tr", { class: "details" }, h("td", { colspan: "7" }, text)));
  try {
    const { letter: story } = await get("letter", { queue: queueName(), id: letter.id });
    const none = () => (letter.id.isWellFormed() ? "This is no longer a dead letter." : "A browser cannot ask for an id that is not UTF-8.");
    setText(text, story ? [letter.id, story.traceback ?? story.error ?? story.reason].join("\n\n") : none());
  } catch (error) {
    setText(text, error.message);
  }
}

function showSelection() {
  const count = selected().length;
  for (const [verb, name] of [["requeue", "Requeue"], ["purge", "Purge"]]) {
    $(verb).disabled = !count;
    setText($(verb), count ? `${name} ${number(count)} selected` : `${name} selected`);
    setText($(`${verb}-all`), filter() ? `${name} all that match…` : `${name} all…`);
    setHidden($(`${verb}-all`), !shown.length && next === null);
  }
  $("dead-all").checked = count > 0 && count === shown.length;
  $("dead-all").indeterminate = count > 0 && count < shown.length;
}

// -- changing ------------------------------------------------------------------------------

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
    act: async (_, progress) => {
      const count = await sendInParts(verb, queue, ids, progress);
      await finished();
      return `${plural(count, "dead letter")} ${done}.`;
    },
  });
}

/** The ids are read first, so that the operator knows how many there are before anything changes. */
function changeAll(verb) {
  const { yes } = WHAT[verb];
  const [queue, text] = [queueName(), filter()];
  const which = text ? ` that contain “${text}”` : "";
  confirm({
    title: `${yes} all dead letters of ${queue}${which}?`,
    text: "They are counted first. You can then confirm or cancel.",
    yes: "Count them",
    act: async (_, progress) => {
      const ids = await idsOf(queue, text, progress);
      if (ids) setTimeout(() => (ids.length ? change(verb, ids) : load())); // once this dialog is closed
      return ids && !ids.length ? "There are none." : "";
    },
  });
}

/** The ids of all that match; null if the operator stopped. */
async function idsOf(queue, text, progress) {
  const ids = new Set();
  for (let at = {}; at; ) {
    const page = await get("letters", { queue, text, ...at, ids: "1" });
    page.letters.forEach((id) => ids.add(id));
    at = page.next_cursor && { cursor: page.next_cursor };
    if (!progress(0, 0)) return null;
  }
  return [...ids];
}

async function sendInParts(verb, queue, ids, progress) {
  let count = 0;
  let sent = 0;
  while (sent < ids.length && progress(sent, ids.length)) {
    const part = nextPart(ids, sent);
    count += (await post(`letters/${verb}`, { queue, ids: part })).done;
    sent += part.length;
  }
  return count;
}

const encoder = new TextEncoder();
const bytesOf = (id) => encoder.encode(JSON.stringify(id)).length + 1;

function nextPart(ids, start) {
  let end = start + 1;
  let bytes = bytesOf(ids[start]);
  while (end < ids.length && end - start < MOST_IDS && (bytes += bytesOf(ids[end])) <= MOST_BYTES) end += 1;
  return ids.slice(start, end);
}

async function finished() {
  for (const box of boxes()) box.checked = false;
  await load();
  await refresh();
}
