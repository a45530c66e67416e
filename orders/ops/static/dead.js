// Dead letters: listed, shown, requeued and purged.

import { get, post } from "./api.js";
import { confirm } from "./dialog.js";
import { $, h, setHidden, setText } from "./dom.js";
import { ago, number, plural, shortId } from "./format.js";

/** Ids in one request: its body is limited, and other queues' ids may be long. */
const MOST_IDS = 200;
const MOST_BYTES = 12_000;

let shown = [];
let passed = null;
let lastCount = "";
let loads = 0;
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
  $("dead-queue").addEventListener("change", load);
  $("more-letters").addEventListener("click", () => more().catch(say));
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

/** Whether the operator is not in the middle of something. */
const isIdle = () => !selected().length && !$("letters").querySelector("pre") && !$("dialog").open;

/** Show the newest ones again. */
export async function load() {
  await reload(() => true);
}

/** The section is opened: what it showed before may be outdated. */
export function enter() {
  shown = [];
  $("letters").replaceChildren();
  return load();
}

async function reload(isWelcome) {
  const mine = ++loads;
  try {
    const page = await get("letters", { queue: queueName(), text: filter() });
    if (mine !== loads || !isWelcome()) return; // a later load is under way
    shown = [];
    $("letters").replaceChildren();
    add(page);
  } catch (error) {
    say(error);
  }
}

/** Reload when their number has changed, unless the operator is in the middle of something. */
export function notice(state) {
  const counts = JSON.stringify(state.redis.answers ? state.redis.queues.map((queue) => queue.dead) : null);
  if (counts !== lastCount && isIdle()) {
    lastCount = counts;
    reload(isIdle);
  }
}

async function more() {
  add(await get("letters", { queue: queueName(), text: filter(), passed }));
}

function add(page) {
  const known = new Set(shown.map((letter) => letter.id));
  const added = page.letters.filter((letter) => !known.has(letter.id));
  shown.push(...added);
  passed = page.passed;
  $("letters").append(...added.map(row));
  setHidden($("more-letters"), passed === null);
  const none = passed !== null ? "No matches so far. Show more to keep searching." : filter() ? "No dead letters match." : "No dead letters.";
  setText($("no-letters"), none);
  setHidden($("no-letters"), shown.length > 0);
  showSelection();
}

function say(error) {
  setText($("no-letters"), error.message);
  setHidden($("no-letters"), false);
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
    h("td", { class: "id" }, task),
    h("td", { class: "reason" }, letter.reason),
    h("td", { class: "number extra" }, number(letter.failures ?? 0)),
    h("td", { class: "number extra" }, number(letter.deliveries ?? 0)),
    h("td", { class: "number extra" }, ago(letter.died_ms_ago)),
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
    const { letter: whole } = await get("letter", { queue: queueName(), id: letter.id });
    setText(text, whole ? [letter.id, whole.traceback ?? whole.error ?? whole.reason].join("\n\n") : "This is no longer a dead letter.");
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
    setHidden($(`${verb}-all`), !shown.length && passed === null);
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
      if (ids) setTimeout(() => (ids.length ? change(verb, ids) : load()));
      return ids && !ids.length ? "There are none." : "";
    },
  });
}

async function idsOf(queue, text, progress) {
  const ids = new Set();
  for (let at = 0; at !== null; ) {
    const page = await get("letters", { queue, text, passed: at, ids: "1" });
    page.letters.forEach((id) => ids.add(id));
    at = page.passed;
    if (!progress(0, 0)) return null;
  }
  return [...ids];
}

async function sendInParts(verb, queue, ids, progress) {
  let count = 0;
  let sent = 0;
  while (sent < ids.length && progress(sent, ids.length)) {
    const part = firstOf(ids.slice(sent, sent + MOST_IDS));
    count += (await post(`letters/${verb}`, { queue, ids: part })).done;
    sent += part.length;
  }
  return count;
}

function firstOf(ids) {
  let size = 0;
  const end = ids.findIndex((id, index) => (size += id.length * 2) > MOST_BYTES && index > 0);
  return end === -1 ? ids : ids.slice(0, end);
}

async function finished() {
  for (const box of boxes()) box.checked = false;
  await load();
  await refresh();
}
