// The runbook, as docs/runbook.md has it: the entry for one problem, or all of it.

import { $, h, setText, withCode } from "./dom.js";

export async function show(entry) {
  setText($("runbook-heading"), entry || "Runbook");
  try {
    const response = await fetch("/ops/static/runbook.md");
    if (!response.ok) throw new Error(`Status ${response.status}`);
    const sections = (await response.text()).replace(/<!--.*?-->\n*/g, "").split(/^(?=#{2,3} )/m);
    const wanted = sections.filter((section) => !entry || section.startsWith(`### ${entry}\n`));
    const found = wanted.length ? wanted : sections;
    $("runbook-text").replaceChildren(...found.map((section) => h("p", {}, ...withCode(section.replace(entry ? /^.*\n+/ : /^$/, "").trim()))));
  } catch {
    setText($("runbook-text"), "The runbook cannot be read here: see docs/runbook.md.");
  }
}
