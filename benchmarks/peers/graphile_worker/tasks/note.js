// Writes down by how many milliseconds this is late; below zero it is early.
import { appendFileSync } from "node:fs";

export default function (dueMs) {
  const now = performance.timeOrigin + performance.now();
  appendFileSync(process.env.NOTES, `${now - dueMs}\n`);
}
