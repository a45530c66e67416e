// The page: it requests the view that the address names, as HTML, every two seconds while it is visible, and sends what an
// operator confirmed. Each request has the operator's API key, which only this tab keeps.

const EVERY_MS = 2000;
const TICK_MS = 250;
/** Between two polls while orders expire: the server reads only once a second. */
const HURRY_MS = 1100;
const TIMEOUT_MS = 10_000;
const TITLE = document.title;
const REFUSED = { 401: "This key is not valid.", 403: "This key does not have the ops scope.", 429: "Too many invalid keys. Wait a moment and try again." };

const $ = (id) => document.getElementById(id);
const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const ticked = () => all("[name=ids]:checked");
const letters = (count) => `${count} dead letter${count === 1 ? "" : "s"}`;
/** What a request throws if the server refuses it, or does not answer (status 0). */
const refusal = (status, message) => Object.assign(new Error(message), { status });

let isLoggedIn = false;
let polling = null;
let nextPoll = 0;
let polledAt = 0;
/** When the view was shown, at which address, and what was wrong. */
let shownAt = 0;
let shownHash = null;
let lastKinds = null;

/** Send a request and return the text of the response: JSON, or a view, which itself says what it cannot show. Throws a refusal. */
async function ask(method, path, body) {
  const headers = { Authorization: `Bearer ${encodeURIComponent(sessionStorage.getItem("key"))}`, ...(body && { "Content-Type": "application/json" }) };
  const options = { method, headers, body: body && JSON.stringify(body), cache: "no-store", redirect: "error", signal: AbortSignal.timeout(TIMEOUT_MS) };
  let response, text;
  try {
    response = await fetch(`/ops/${path}`, options);
    text = await response.text();
  } catch {
    throw refusal(0, response ? "The response was cut off." : "The service does not answer.");
  }
  const isJson = /json/.test(response.headers.get("Content-Type"));
  if (method === "GET" ? !isJson && text.includes('<main id="main"') : response.ok) return text;
  if (response.status === 401) {
    sessionStorage.removeItem("key");
    if (isLoggedIn) leave("You were logged out: the key has expired, or was revoked.");
  }
  const found = isJson ? JSON.parse(text) : {};
  const wrong = Object.entries(found.errors ?? {}).map(([field, why]) => `${field}: ${why.join(", ")}`);
  throw refusal(response.status, wrong.join("; ") || (found.detail ?? found.title ?? `Status ${response.status}`));
}

/** Show the page once the server accepts the key, or why it does not. */
async function enter() {
  try {
    await ask("GET", "view/overview");
    isLoggedIn = true;
    await poll();
    [$("login").hidden, $("app").hidden, $("key").value] = [isLoggedIn, !isLoggedIn, ""];
  } catch (error) {
    leave(REFUSED[error.status] ?? error.message);
  }
}

function leave(message) {
  isLoggedIn = false;
  clearTimeout(nextPoll);
  $("dialog").close();
  [$("login").hidden, $("app").hidden, $("refused").textContent] = [false, true, message];
  document.title = TITLE;
  $("key").focus();
  $("key").select();
}

/** Poll now and again later: one request at a time, and none while the page is hidden. */
function poll() {
  polling ??= show().finally(() => {
    polling = null;
    clearTimeout(nextPoll);
    if (isLoggedIn && !document.hidden) nextPoll = setTimeout(poll, EVERY_MS);
  });
  return polling;
}

/** Show the view that the address names, or that the service does not answer. */
async function show() {
  const hash = location.hash;
  const isCurrent = () => isLoggedIn && location.hash === hash;
  polledAt = performance.now();
  try {
    const text = await ask("GET", `view/${hash.slice(1) || "overview"}`);
    if (isCurrent()) showView(new DOMParser().parseFromString(text, "text/html"), hash);
  } catch (error) {
    if (error.status === undefined) throw error;
    if (isCurrent()) showFailure(error.status ? error.message : `${error.message} This page shows old data.`, hash);
  }
}

function showView(fresh, hash) {
  const only = fresh.querySelector("[data-only]");
  if (only) return location.replace(only.hash);
  const isSame = hash === shownHash;
  const failed = fresh.getElementById("failed")?.textContent;
  // What was shown before a failure stays.
  const isOld = Boolean(failed && isSame && !$("failed"));
  // While something is ticked or unfolded, rows must not move under the mouse.
  const isHeld = isOld || (isSame && $("main").querySelector("input:checked, details[open]"));
  const afterNodeAdded = (node) => isSame && node.localName === "tr" && node.classList.add("new");
  [shownAt, shownHash] = [performance.now(), hash];
  complete(fresh);
  for (const part of [...fresh.body.children]) {
    if (part.id !== "main" || !isHeld) Idiomorph.morph($(part.id), part, { callbacks: { afterNodeAdded } });
  }
  [$("old").hidden, $("old").textContent] = [!isOld, `${failed} This page shows old data.`];
  document.title = fresh.title;
  announceProblems($("status").title);
}

function showFailure(message, hash) {
  [$("old").hidden, $("old").textContent] = [false, message];
  [$("status").className, $("status").textContent] = ["pill bad", "1 problem"];
  document.title = `(1) ${TITLE}`;
  if (hash !== shownHash) {
    $("main").replaceChildren(); // it shows another view
    shownHash = null;
  }
  announceProblems(message);
}

/** Have a screen reader announce new problems, but not every change of a number. */
function announceProblems(said) {
  const kinds = said.replace(/[\d.,:+]+( (ms|s|min|h|d)\b)?/g, "");
  if (lastKinds !== null && kinds !== lastKinds) $("announcer").textContent = said || "Everything is on time again.";
  lastKinds = kinds;
}

/** Add what the server does not know, times in this time zone; and to each cell of a card what it is. */
function complete(fresh) {
  count(fresh);
  for (const each of all("time", fresh)) each.textContent = dateTime(each.dateTime);
  for (const each of all("[data-at]", fresh)) each.title = dateTime(each.dataset.at);
  fresh.getElementById("live").textContent = `Updated ${new Date().toLocaleTimeString([], { hour12: false })}`;
  for (const cell of all(".cards td", fresh)) {
    const head = cell.closest("table").tHead.rows[0].cells[cell.cellIndex];
    if (!head.children.length) cell.dataset.label = head.textContent;
  }
}

/** A moment in this browser's time zone, which it names, to the millisecond; without the date if it is today. */
function dateTime(text) {
  const moment = new Date(text);
  const exact = { hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 3, timeZoneName: "short" };
  const time = moment.toLocaleTimeString("en-GB", exact);
  return moment.toDateString() === new Date().toDateString() ? time : `${moment.toLocaleDateString([], { dateStyle: "medium" })}, ${time}`;
}

/** Continue the countdowns: 0:07, 29:59, 1:00:00. Returns whether one has ended since the view was read. */
function count(root) {
  let hasEnded = false;
  for (const each of all("[data-ms]", root)) {
    const ms = each.dataset.ms - (performance.now() - shownAt);
    const seconds = Math.ceil(Math.max(0, ms) / 1000);
    const units = seconds < 3600 ? [60, 1] : [3600, 60, 1];
    const left = units.map((unit, index) => (index ? String(Math.floor(seconds / unit) % 60).padStart(2, "0") : Math.floor(seconds / unit))).join(":");
    const text = (ms < 0 && each.dataset.then) || left;
    if (each.textContent !== text) each.textContent = text;
    hasEnded ||= ms < 0 && !each.dataset.then;
  }
  return hasEnded;
}

async function navigate() {
  if (!isLoggedIn) return;
  await show();
  window.scrollTo(0, 0);
  (document.querySelector("#main h2[tabindex]") ?? $("main")).focus({ preventScroll: true });
}

function showSelection() {
  const [count, most] = [ticked().length, all("[name=ids]").length];
  for (const button of all("[data-many]")) {
    button.disabled = !count;
    button.textContent = `${button.dataset.many} ${count || ""} selected`;
  }
  [$("dead-all").checked, $("dead-all").indeterminate] = [count > 0 && count === most, count > 0 && count < most];
}

/** Ask what a button says: the form of `act` in parts.html. */
function confirm(button) {
  $("dialog").innerHTML = button.dataset.act;
  $("dialog-title").textContent = $("dialog-title").textContent.replace("{}", letters(ticked().length));
  $("dialog").showModal();
}

/** Send what was confirmed while the dialog stays open. If it is refused, the operator can try again. */
async function send(form) {
  const { method, path, done, many } = form.dataset;
  const [yes, problem] = [form.querySelector("#dialog-yes"), form.querySelector("#dialog-error")];
  const body = Object.fromEntries([...new FormData(form)].map(([name, value]) => [name, value.trim()]));
  for (const select of all("select", form)) body[select.name] = Number(select.value);
  if (many) body.ids = ticked().map((box) => JSON.parse(box.value));
  [yes.disabled, problem.textContent] = [true, ""];
  try {
    const text = await ask(method, path, method === "DELETE" ? undefined : body);
    for (const each of all("input:checked, details[open]", $("main"))) each.checked = each.open = false;
    if (many) showSelection();
    await polling; // it may return what was there before
    await poll();
    if (!form.isConnected) return; // another question has been asked meanwhile
    $("announcer").textContent = done.replace("{}", () => letters(JSON.parse(text).done));
    $("dialog").close();
  } catch (error) {
    problem.textContent = error.message;
  } finally {
    yes.disabled = false;
  }
}

/** What forms and buttons do, by their ids; a form stands in the element of its id. */
const DOES = {
  login() {
    $("refused").textContent = "";
    sessionStorage.setItem("key", $("key").value.trim());
    enter();
  },
  logout() {
    sessionStorage.removeItem("key");
    leave("");
  },
  search() {
    const hash = `#find?text=${encodeURIComponent($("text").value.trim())}`;
    if (location.hash === hash) navigate(); // the same search again does not change the address
    else location.hash = hash;
  },
  skip: () => $("main").focus(),
  dialog: send,
  "dialog-no": () => $("dialog").close(),
};
document.addEventListener("submit", (event) => {
  event.preventDefault();
  DOES[event.target.closest("[id]").id](event.target);
});
document.addEventListener("click", ({ target }) => {
  const button = target.closest("button");
  if (button?.dataset.act) confirm(button);
  else DOES[button?.id]?.();
});
document.addEventListener("change", ({ target }) => {
  if (target.id === "dead-all") for (const box of all("[name=ids]")) box.checked = target.checked;
  if (target.type === "checkbox") showSelection();
});
window.addEventListener("hashchange", navigate);
document.addEventListener("visibilitychange", () => {
  clearTimeout(nextPoll);
  if (isLoggedIn && !document.hidden) poll();
});
setInterval(() => {
  if (!isLoggedIn || document.hidden) return;
  if (count(document) && performance.now() - polledAt > HURRY_MS) poll(); // to show the outcome at once
}, TICK_MS);
if (sessionStorage.getItem("key")) enter();
else leave("");
