// The page's requests to the server, each with the operator's API key, which only this tab keeps.

const TIMEOUT_MS = 10_000;

let whenRefused = () => {};

export const hasKey = () => sessionStorage.getItem("key") !== null;

/** Keep the key until the tab is closed; null: forget it. */
export function keepKey(key) {
  if (key === null) sessionStorage.removeItem("key");
  else sessionStorage.setItem("key", key);
}

/** What to do when the key is refused. */
export function onRefused(callback) {
  whenRefused = callback;
}

/** The server refused the request, or did not answer (status 0). */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Send a request and return the JSON of the response. Throws Refused. */
export async function ask(method, path, body) {
  const headers = { Accept: "application/json", Authorization: `Bearer ${encodeURIComponent(sessionStorage.getItem("key"))}` };
  const options = { method, headers, cache: "no-store", redirect: "error", signal: AbortSignal.timeout(TIMEOUT_MS) };
  if (body !== undefined) {
    headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  let response, found;
  try {
    response = await fetch(`/ops/${path}`, options);
    found = await response.json();
  } catch {
    if (!response || response.ok) throw new Refused(0, response ? "The response was cut off." : "The service does not answer.");
  }
  if (response.ok) return found;
  if (response.status === 401) whenRefused();
  const wrong = Object.entries(found?.errors ?? {}).map(([field, why]) => `${field}: ${why.join(", ")}`);
  throw new Refused(response.status, wrong.join("; ") || (found?.detail ?? found?.title ?? `Status ${response.status}`));
}

export const get = (path, query = {}) => {
  const text = new URLSearchParams(query).toString();
  return ask("GET", text ? `${path}?${text}` : path);
};

export const post = (path, body = {}) => ask("POST", path, body);
