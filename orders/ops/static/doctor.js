// The doctor's findings: when the page is opened, every few minutes while it is visible, and on request.

import { lines } from "./api.js";
import { $, announce, h, setText } from "./dom.js";
import { plural, time } from "./format.js";

const EVERY_MS = 300_000;

let running = false;
let ranAt = -Infinity;
let found = [];

export function prepare() {
  $("examine").addEventListener("click", () => examine(true));
}

export function examineNowAndThen() {
  if (performance.now() - ranAt > EVERY_MS) examine(false);
}

async function examine(isAsked) {
  if (running) return;
  running = true;
  ranAt = performance.now();
  $("examine").disabled = true;
  setText($("doctor-note"), "Examining…");
  const now = [];
  try {
    await lines("doctor", (finding) => {
      now.push(finding);
      show(now, found.length === 0);
    });
    found = now;
    show(found, true);
    setText($("doctor-note"), `Examined at ${time(new Date())}, and every five minutes while this page is open.`);
    if (isAsked) announce(summary(found));
  } catch (error) {
    setText($("doctor-note"), error.message);
  } finally {
    running = false;
    $("examine").disabled = false;
  }
}

const bad = (finding) => finding.level !== "ok";

function summary(findings) {
  const worse = findings.filter(bad);
  return worse.length ? `${plural(worse.length, "problem")} found.` : "No problems found.";
}

/** The previous findings stay until the next examination is complete. */
function show(findings, isShown) {
  if (!isShown) return;
  const worse = findings.filter(bad).sort((a, b) => (a.level === b.level ? 0 : a.level === "failure" ? -1 : 1));
  const healthy = findings.filter((finding) => !bad(finding));
  $("findings").replaceChildren(...(worse.length ? worse.map(item) : [h("li", { class: "empty" }, "No problems found.")]));
  $("healthy-findings").replaceChildren(...healthy.map(item));
  setText($("healthy-count"), `${plural(healthy.length, "check")} ok`);
  setText($("doctor-count"), worse.length ? String(worse.length) : "");
  $("doctor-count").className = worse.some((finding) => finding.level === "failure") ? "count bad" : "count warn";
}

/** Commands stand between backticks. */
const withCode = (text) => text.split("`").map((part, index) => (index % 2 ? h("code", {}, part) : part));

function item({ check, level, summary: text, advice }) {
  const name = { ok: "ok", warning: "warning", failure: "failure" }[level];
  const state = { ok: "good", warning: "warn", failure: "bad" }[level];
  return h(
    "li",
    {},
    h("span", { class: `level ${state}` }, name),
    h("span", { class: "id" }, check),
    h("div", {}, h("p", {}, ...withCode(text)), advice ? h("p", { class: "note" }, ...withCode(advice)) : null),
  );
}
