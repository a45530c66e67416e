// Logging in and out, which section is shown, and looking again every two seconds while the page is visible.

import { ask, get, keepToken, onLoggedOut, post } from "./api.js";
import * as dead from "./dead.js";
import * as dialog from "./dialog.js";
import * as doctor from "./doctor.js";
import { $, announce, h, setHidden, setItems, setText } from "./dom.js";
import { number, time, upTo } from "./format.js";
import * as orders from "./orders.js";
import * as overview from "./overview.js";
import * as refunds from "./refunds.js";

const EVERY_MS = 2000;
const TICK_MS = 250;
/** Between two looks while orders expire. The server reads no more often. */
const HURRY_MS = 1100;
const TITLE = document.title;

let isLoggedIn = false;
let looking = null;
let nextLook = 0;
let lookedAt = 0;
let lastStatus = "";

// -- logging in and out --------------------------------------------------------------------

function enter(session) {
  keepToken(session.token);
  setText($("client"), session.client);
  isLoggedIn = true;
  setHidden($("login"), true);
  setHidden($("app"), false);
  $("key").value = "";
  look();
  route(false);
}

function leave(message = "") {
  isLoggedIn = false;
  clearTimeout(nextLook);
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
    const said = { 401: "This key is not valid.", 403: "This key does not have the ops scope.", 429: "Too many invalid keys. Wait a moment and try again." };
    setText($("refused"), said[error.status] ?? error.message);
    $("key").select();
  }
});

$("logout").addEventListener("click", async () => {
  await ask("DELETE", "session").catch(() => {});
  leave();
});

onLoggedOut(() => isLoggedIn && leave("You were logged out: the session expired, or its key was revoked."));

// -- looking -------------------------------------------------------------------------------

/** Look now, and again later: one look at a time, and none while the page is hidden. */
function look() {
  looking ??= lookOnce().finally(() => {
    looking = null;
    clearTimeout(nextLook);
    if (isLoggedIn && !document.hidden) nextLook = setTimeout(look, EVERY_MS);
  });
  return looking;
}

/** After a change: a look that is already under way may show the state before it. */
async function refresh() {
  await looking;
  await look();
}

async function lookOnce() {
  lookedAt = performance.now();
  try {
    show(await get("state"));
  } catch (error) {
    if (isLoggedIn) showStatus([["bad", error.status ? error.message : "The service does not answer. This page shows old data."]]);
  }
}

function show(state) {
  if (!isLoggedIn) return;
  overview.show(state, refresh);
  showStatus(overview.problems(state));
  const letters = overview.deadLetters(state.redis);
  const due = overview.refundsDue(state.sql);
  setText($("dead-count"), letters ? number(letters) : "");
  setText($("refund-count"), due ? upTo(due, state.sql.refunds.most) : "");
  setText($("live"), `Updated ${time(new Date())}`);
  const [view, id] = place();
  if (view === "dead") dead.notice(state);
  if (view === "refunds") refunds.notice(due);
  if (view === "order") orders.show(id);
  doctor.examineNowAndThen();
}

function showStatus(problems) {
  const [[level, text] = ["good", "On time"]] = problems;
  const status = problems.length > 1 ? `${problems.length} problems` : level === "good" ? text : "1 problem";
  setText($("status"), status);
  $("status").className = `pill ${level}`;
  document.title = problems.length ? `(${problems.length}) ${TITLE}` : TITLE;
  // A screen reader announces new problems, but not every change of a number.
  const kinds = problems.map(([how, what]) => [how, what.replace(/[\d.,:+]+( (ms|s|min|h|d)\b)?/g, "")]);
  const items = () => problems.map(([how, what]) => h("li", { class: `notice ${how}` }, h("span", {}, what), " ", h("a", { href: "#doctor" }, "What to do")));
  setItems($("notices"), items, problems);
  const said = JSON.stringify(kinds);
  if (said !== lastStatus && lastStatus !== "") announce(problems.length ? problems.map(([, what]) => what).join(" ") : "Everything is on time again.");
  lastStatus = said;
}

document.addEventListener("visibilitychange", () => {
  clearTimeout(nextLook);
  if (isLoggedIn && !document.hidden) look();
});
setInterval(() => {
  if (!isLoggedIn || document.hidden || !overview.tick()) return;
  if (performance.now() - lookedAt > HURRY_MS) look(); // to show the outcome at once
}, TICK_MS);
new ResizeObserver(() => overview.drawCharts()).observe($("due-chart"));

// -- sections ------------------------------------------------------------------------------

const LOADERS = { dead: dead.enter, refunds: refunds.load, find: orders.find, order: orders.show };

/** The section that the address names, and which item in it. */
function place() {
  const [view, rest = ""] = location.hash.slice(1).split(/\/(.*)/s);
  const isKnown = document.querySelector(`[data-view="${CSS.escape(view)}"]`);
  return isKnown ? [view, decodeURIComponent(rest)] : ["overview", ""];
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
  if (text) location.hash = `find/${encodeURIComponent(text)}`;
});

// -- the beginning -------------------------------------------------------------------------

dialog.prepare();
doctor.prepare();
dead.prepare(refresh);
refunds.prepare(refresh);
get("session").then(enter, (error) => leave(error.status === 401 ? "" : error.message));
