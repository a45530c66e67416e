// Logging in and out, navigation, and polling every two seconds while the page is visible.

import { get, hasKey, keepKey, onRefused } from "./api.js";
import * as dead from "./dead.js";
import * as dialog from "./dialog.js";
import { $, announce, h, setHidden, setItems, setText } from "./dom.js";
import { number, plural, time, upTo } from "./format.js";
import * as orders from "./orders.js";
import * as overview from "./overview.js";
import * as refunds from "./refunds.js";
import * as runbook from "./runbook.js";

const EVERY_MS = 2000;
const TICK_MS = 250;
/** Between two polls while orders expire: the server reads only once a second. */
const HURRY_MS = 1100;
const TITLE = document.title;

/** The scripts of features, by name, each loaded once the state names it. */
const panels = new Map();
let isLoggedIn = false;
let polling = null;
let nextPoll = 0;
let polledAt = 0;
let lastKinds = "";

// -- logging in and out --------------------------------------------------------------------

/** Show the page once the server accepts the key, or why it does not. */
async function enter() {
  try {
    setText($("client"), (await get("state")).client);
  } catch (error) {
    const messages = { 401: "This key is not valid.", 403: "This key does not have the ops scope.", 429: "Too many invalid keys. Wait a moment and try again." };
    leave(messages[error.status] ?? error.message);
    return;
  }
  isLoggedIn = true;
  setHidden($("login"), true);
  setHidden($("app"), false);
  $("key").value = "";
  poll();
  route(false);
}

function leave(message = "") {
  isLoggedIn = false;
  clearTimeout(nextPoll);
  if ($("dialog").open) $("dialog").close();
  setHidden($("app"), true);
  setHidden($("login"), false);
  setText($("refused"), message);
  document.title = TITLE;
  $("key").focus();
  $("key").select();
}

$("login").querySelector("form").addEventListener("submit", (event) => {
  event.preventDefault();
  setText($("refused"), "");
  keepKey($("key").value.trim());
  enter();
});

$("logout").addEventListener("click", () => {
  keepKey(null);
  leave();
});

onRefused(() => {
  keepKey(null);
  if (isLoggedIn) leave("You were logged out: the key has expired, or was revoked.");
});

// -- polling -------------------------------------------------------------------------------

/** Poll now and again later: one request at a time, and none while the page is hidden. */
function poll() {
  polling ??= pollOnce().finally(() => {
    polling = null;
    clearTimeout(nextPoll);
    if (isLoggedIn && !document.hidden) nextPoll = setTimeout(poll, EVERY_MS);
  });
  return polling;
}

/** Show the state after a change: a poll that is already under way may return the state before it. */
async function refresh() {
  await polling;
  await poll();
}

async function pollOnce() {
  polledAt = performance.now();
  let state;
  try {
    state = await get("state");
    for (const name of Object.keys(state.panels)) {
      if (panels.has(name)) continue;
      const panel = await import(`./${name}.js`);
      panel.prepare(refresh);
      panels.set(name, panel);
    }
  } catch (error) {
    if (isLoggedIn) showStatus([["bad", error.status ? error.message : "The service does not answer. This page shows old data."]]);
    return;
  }
  show(state);
}

function show(state) {
  if (!isLoggedIn) return;
  overview.show(state, refresh);
  const features = [...panels.values()];
  for (const panel of features) panel.show(state);
  showStatus(overview.problems(state, features.flatMap((panel) => panel.problems(state))), features.map((panel) => panel.status(state)).find(Boolean));
  const letters = overview.deadLetters(state.redis);
  const due = overview.refundsDue(state.sql);
  setText($("dead-count"), letters ? number(letters) : "");
  setText($("refund-count"), due ? upTo(due, state.sql.refunds.most) : "");
  setText($("live"), `Updated ${time(new Date())}`);
  const [view, id] = place();
  dead.show(state, view === "dead");
  if (view === "refunds") refunds.notice(due);
  if (view === "order") orders.show(id);
}

function showStatus(problems, [level, text] = ["good", "On time"]) {
  const levels = [level, ...problems.map(([level]) => level)];
  setText($("status"), problems.length ? plural(problems.length, "problem") : text);
  $("status").className = `pill ${["bad", "warn"].find((level) => levels.includes(level)) ?? "good"}`;
  document.title = problems.length ? `(${problems.length}) ${TITLE}` : TITLE;
  // A screen reader announces new problems, but not every change of a number.
  const kinds = JSON.stringify(problems.map(([, sentence]) => sentence.replace(/[\d.,:+]+( (ms|s|min|h|d)\b)?/g, "")));
  const items = () => problems.map(([how, sentence, entry]) => h("li", { class: `notice ${how}` }, h("span", {}, sentence), " ", h("a", { href: entry ? `#runbook/${entry}` : "#runbook" }, "What to do")));
  setItems($("notices"), items, problems);
  if (kinds !== lastKinds && lastKinds !== "") announce(problems.length ? problems.map(([, sentence]) => sentence).join(" ") : "Everything is on time again.");
  lastKinds = kinds;
}

document.addEventListener("visibilitychange", () => {
  clearTimeout(nextPoll);
  if (isLoggedIn && !document.hidden) poll();
});
setInterval(() => {
  if (!isLoggedIn || document.hidden) return;
  for (const panel of panels.values()) panel.tick();
  if (overview.tick() && performance.now() - polledAt > HURRY_MS) poll(); // to show the outcome at once
}, TICK_MS);

// -- navigation ----------------------------------------------------------------------------

const LOADERS = { runbook: runbook.show, dead: dead.enter, refunds: refunds.load, find: orders.find, order: orders.show };

/** The section that the address names, and which item in it. */
function place() {
  const [view, rest = ""] = location.hash.slice(1).split(/\/(.*)/s);
  const isKnown = document.querySelector(`[data-view="${CSS.escape(view)}"]`);
  return isKnown ? [view, decoded(rest)] : ["overview", ""];
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // typed by hand
  }
}

function route(isAsked = true) {
  const [view, rest] = place();
  for (const section of document.querySelectorAll("[data-view]")) setHidden(section, section.dataset.view !== view);
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${view}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  LOADERS[view]?.(rest);
  if (isAsked) {
    window.scrollTo(0, 0);
    (document.querySelector(`[data-view="${view}"] h2[tabindex]`) ?? $("main")).focus({ preventScroll: true });
  }
}

window.addEventListener("hashchange", () => isLoggedIn && route());

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  $("main").focus();
});

$("search").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("text").value.trim();
  if (!text) return;
  const hash = `#find/${encodeURIComponent(text)}`;
  if (location.hash === hash) route(); // the same search again does not change the address
  else location.hash = hash;
});

// -- start ---------------------------------------------------------------------------------

dialog.prepare();
dead.prepare(refresh);
refunds.prepare(refresh);
if (hasKey()) enter();
else leave();
