// A plain SVG chart of how late cancellations were.

import { h, svg } from "./dom.js";
import { duration } from "./format.js";

const HEIGHT = 150;
const LEFT = 52;
const BOTTOM = 20;
const TOP = 8;
const INNER = HEIGHT - TOP - BOTTOM;

function text(x, y, anchor, content) {
  return svg("text", { x, y, "text-anchor": anchor }, content);
}

function gridLine(chart, width, y, label) {
  chart.append(svg("line", { class: "grid", x1: LEFT, x2: width, y1: y, y2: y }), text(LEFT - 6, y + 4, "end", label));
}

function axis(chart, width, labels) {
  labels.forEach((label, index) => {
    const x = LEFT + ((width - LEFT) * index) / (labels.length - 1);
    chart.append(text(x, HEIGHT - 4, index === 0 ? "start" : index === labels.length - 1 ? "end" : "middle", label));
  });
}

/** Grid lines of lateness, in ms. */
const LINES = new Map([[1, "1 ms"], [10, "10 ms"], [100, "100 ms"], [1000, "1 s"], [10_000, "10 s"], [60_000, "1 min"], [600_000, "10 min"], [3_600_000, "1 h"], [86_400_000, "1 d"]]);

/** As wide as its element: how late the last cancellations of each of the last minutes were, the current minute first. */
export function drawLateness(place, minutes) {
  const known = minutes.filter((minute) => minute.count);
  const worst = Math.max(1, ...known.map((minute) => minute.most_ms));
  const label = known.length
    ? `In the last ${minutes.length} minutes, cancellations were at most ${duration(worst)} late, counting up to 25 per minute.`
    : `No order has expired in the last ${minutes.length} minutes.`;
  if (!known.length) return place.replaceChildren(h("p", { class: "empty" }, label));
  const width = place.clientWidth;
  if (!width) return; // it is hidden
  const chart = svg("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, role: "img", "aria-label": label });
  const lines = [...LINES.keys()];
  const top = lines.find((line) => line >= Math.max(worst, 1000)) ?? lines.at(-1);
  const y = (ms) => TOP + INNER * (1 - Math.log10(Math.min(Math.max(ms, 1), top)) / Math.log10(top));
  for (const line of lines.filter((each) => each <= top)) gridLine(chart, width, y(line), LINES.get(line));
  const step = (width - LEFT) / minutes.length;
  minutes.forEach((minute, index) => {
    if (!minute.count) return;
    const x = width - (index + 0.5) * step;
    const tooltip = `${index} to ${index + 1} min ago: ${duration(minute.median_ms)} median, ${duration(minute.most_ms)} at most`;
    const mark = svg("g", { class: level(minute.most_ms) }, svg("title", {}, tooltip));
    mark.append(
      svg("rect", { class: "hit", x: x - step / 2, y: TOP, width: step, height: INNER }),
      svg("line", { class: "range", x1: x, x2: x, y1: y(minute.median_ms), y2: y(minute.most_ms) }),
      svg("line", { class: "range", x1: x - 3, x2: x + 3, y1: y(minute.most_ms), y2: y(minute.most_ms) }),
      svg("circle", { cx: x, cy: y(minute.median_ms), r: 3 }),
    );
    chart.append(mark);
  });
  axis(chart, width, ["30 min ago", "20", "10", "now"]);
  place.replaceChildren(chart);
}

/** How bad a lateness is: good, warn or bad. */
export function level(ms) {
  return ms >= 5000 ? "bad" : ms >= 1000 ? "warn" : "good";
}
