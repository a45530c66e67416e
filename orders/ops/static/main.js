// Logging in and out, navigation, and polling every two seconds while the page is visible.

import { ask, get, keepToken, onLoggedOut, post } from "./api.js";
import * as dead from "./dead.js";
import * as dialog from "./dialog.js";
import { $, announce, h, setHidden, setItems, setText } from "./dom.js";
import { number, plural, time, upTo } from "./format.js";
import * as orders from "./orders.js";
import * as overview from "./overview.js";
import * as refunds from "./refunds.js";
import * as runbook from "./runbook.js";
import * as stop from "./stop.js";

const EVERY_MS = 2000;
const TICK_MS = 250;
/** Between two polls while orders expire: the server reads only once a second. */
const HURRY_MS = 1100;
const TITLE = document.title;

let isLoggedIn = false;
let polling = null;
let nextPoll = 0;
let polledAt = 0;
let lastKinds = "";

// -- logging in and out --------------------------------------------------------------------

function enter(session) {
  keepToken(session.token);
  setText($("client"), session.client);
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
  keepToken("");
  if ($("dialog").open) $("dialog").close();
  setHidden($("app"), true);
  setHidden($("login"), false);
  setText($("refused"), message);
  document.title = TITLE;
  $("key").focus();
}

$("login").querySelector("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  setText($("refused"), "");
  try {
    enter(await post("session", { key: $("key").value }));
  } catch (error) {
    const messages = { 401: "This key is not valid.", 403: "This key does not have the ops scope.", 429: "Too many invalid keys. Wait a moment and try again." };
    setText($("refused"), messages[error.status] ?? error.message);
    $("key").select();
  }
});

$("logout").addEventListener("click", async () => {
  leave(await ask("DELETE", "session").then(() => "", ({ status, message }) => (status === 401 ? "" : `${message} You may still be logged in: reload the page to try again.`)));
});

onLoggedOut(() => isLoggedIn && leave("You were logged out: the session expired, or its key was revoked."));

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
  } catch (error) {
    if (isLoggedIn) showStatus([["bad", error.status ? error.message : "The service does not answer. This page shows old data."]]);
    return;
  }
  show(state);
}

function show(state) {
  if (!isLoggedIn) return;
  overview.show(state, refresh);
  stop.show(state);
  showStatus(overview.problems(state), stop.status(state));
  const letters = overview.deadLetters(state.redis);
  const due = overview.refundsDue(state.sql);
  setText($("dead-count"), letters ? number(letters) : "");
  setText($("refund-count"), due ? upTo(due, state.sql.refunds.most) : "");
  setText($("live"), `Updated ${time(new Date())}`);
  const [view, id] = place();
  if (view === "dead") dead.notice(state);
  if (view === "refunds") refunds.notice(due);
  if (view === "order") orders.show(id);
}

function showStatus(problems, [stopLevel, stopText] = ["good", "On time"]) {
  const levels = [stopLevel, ...problems.map(([level]) => level)];
  setText($("status"), problems.length ? plural(problems.length, "problem") : stopText);
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
  if (isLoggedIn && !document.hidden) stop.tick();
  if (!isLoggedIn || document.hidden || !overview.tick()) return;
  if (performance.now() - polledAt > HURRY_MS) poll(); // to show the outcome at once
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
stop.prepare(refresh);
get("session").then(enter, (error) => leave(error.status === 401 ? "" : error.message));
