// Numbers, money and times as people read them.

const whole = new Intl.NumberFormat("en");

export const number = (value) => whole.format(value);

/** A count that stops at `most`. */
export const upTo = (count, most) => (count >= most ? `${number(most)}+` : number(count));

export const plural = (count, one, many = `${one}s`) => `${number(count)} ${count === 1 ? one : many}`;

export function money(minor, currency) {
  let digits = 2;
  try {
    digits = new Intl.NumberFormat("en", { style: "currency", currency }).resolvedOptions().maximumFractionDigits;
  } catch {
    // This browser does not know the currency.
  }
  const value = new Intl.NumberFormat("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  return `${value.format(minor / 10 ** digits)} ${currency}`;
}

/** A length of time: 7 ms, 1.2 s, 45 s, 12 min, 3 h 20 min, 5 d. */
export function duration(ms) {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 120) return `${minutes} min`;
  if (minutes < 48 * 60) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  return `${Math.floor(minutes / 1440)} d`;
}

/** The time left until a deadline, as on a clock: 0:07, 29:59, 1:00:00. */
export function countdown(ms) {
  const seconds = Math.ceil(Math.max(0, ms) / 1000);
  const parts = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60, seconds % 60];
  const shown = parts[0] ? parts : parts.slice(1);
  return shown.map((part, index) => (index ? String(part).padStart(2, "0") : part)).join(":");
}

/** In whole seconds, because a finer unit would flicker. */
export function ago(ms) {
  const seconds = Math.floor(ms / 1000);
  if (seconds < 1) return "just now";
  return `${seconds < 120 ? `${seconds} s` : duration(ms)} ago`;
}

const clock = new Intl.DateTimeFormat([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
const exact = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 3, timeZoneName: "short" });
const day = new Intl.DateTimeFormat([], { dateStyle: "medium" });

export const time = (moment) => clock.format(moment);

/** A moment in this browser's time zone, which it names, to the millisecond; without the date if it is today. */
export function dateTime(text) {
  const moment = new Date(text);
  const isToday = moment.toDateString() === new Date().toDateString();
  return isToday ? exact.format(moment) : `${day.format(moment)}, ${exact.format(moment)}`;
}

/** Enough of an id to recognize it; the full id is in the title and the link. */
export const shortId = (id) => (id.length > 20 ? `${id.slice(0, 8)}…${id.slice(-4)}` : id);

/** The cell that names an order in a list: its client reference, or its id. */
export function orderCell(order) {
  const href = `#order/${order.id}`;
  if (order.client_reference) return { text: order.client_reference, href, title: order.id, class: "order" };
  return { text: shortId(order.id), href, title: order.id, class: "order id" };
}
