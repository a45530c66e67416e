// The doctor's findings. It runs when the page is opened, every five minutes while it is visible, and on request.

import { lines } from "./api.js";
import { $, announce, h, setText, withCode } from "./dom.js";
import { plural, time } from "./format.js";
import { hrefOf } from "./runbook.js";

const EVERY_MS = 300_000;

let running = false;
let ranAt = -Infinity;
let found = [];

export function prepare() {
  $("examine").addEventListener("click", () => examine(true));
}

export function examineIfDue() {
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
      if (!found.length) show(now); // otherwise the previous findings stay until these are complete
    });
    found = now;
    show(found);
    setText($("doctor-note"), `Examined at ${time(new Date())}, and every five minutes while this page is open.`);
    if (isAsked) announce(summary(found));
  } catch (error) {
    setText($("doctor-note"), error.message);
  } finally {
    running = false;
    $("examine").disabled = false;
  }
}

const isBad = (finding) => finding.level !== "ok";

function summary(findings) {
  const problems = findings.filter(isBad);
  return problems.length ? `${plural(problems.length, "problem")} found.` : "No problems found.";
}

function show(findings) {
  const problems = findings.filter(isBad).sort((a, b) => (a.level === b.level ? 0 : a.level === "failure" ? -1 : 1));
  const healthy = findings.filter((finding) => !isBad(finding));
  $("findings").replaceChildren(...(problems.length ? problems.map(item) : [h("li", { class: "empty" }, "No problems found.")]));
  $("healthy-findings").replaceChildren(...healthy.map(item));
  setText($("healthy-count"), `${plural(healthy.length, "check")} ok`);
  setText($("doctor-count"), problems.length ? String(problems.length) : "");
  $("doctor-count").className = problems.some((finding) => finding.level === "failure") ? "count bad" : "count warn";
}

function item(finding) {
  const { check, level, summary: text, advice } = finding;
  const state = { ok: "good", warning: "warn", failure: "bad" }[level];
  return h(
    "li",
    {},
    h("span", { class: `level ${state}` }, level),
    h("span", { class: "id" }, check),
    h("div", {}, h("p", {}, ...withCode(text)), advice ? h("p", { class: "note" }, ...withCode(advice), " ", h("a", { href: hrefOf(finding) }, "Runbook")) : null),
  );
}
