// The page's requests to the server.

const TIMEOUT_MS = 10_000;

let token = "";
let whenLoggedOut = () => {};

export function keepToken(text) {
  token = text;
}

export function onLoggedOut(callback) {
  whenLoggedOut = callback;
}

/** The server refused the request, or did not answer (status 0). */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function send(method, path, body, signal) {
  const headers = { Accept: "application/json" };
  if (method !== "GET") headers["X-CSRF-Token"] = token;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const options = { method, headers, cache: "no-store", redirect: "error", signal };
  if (body !== undefined) options.body = JSON.stringify(body);
  let response;
  try {
    response = await fetch(`/ops/${path}`, options);
  } catch {
    throw new Refused(0, "The service does not answer.");
  }
  if (response.ok) return response;
  const problem = await response.json().catch(() => ({}));
  if (response.status === 401 && path !== "session") whenLoggedOut();
  const wrong = Object.entries(problem.errors ?? {}).map(([field, why]) => `${field}: ${why.join(", ")}`);
  throw new Refused(response.status, wrong.join("; ") || (problem.detail ?? problem.title ?? `Status ${response.status}`));
}

/** Send a request and return the JSON of the response. Throws Refused. */
export async function ask(method, path, body) {
  const response = await send(method, path, body, AbortSignal.timeout(TIMEOUT_MS));
  try {
    return await response.json();
  } catch {
    throw new Refused(0, "The response was cut off.");
  }
}

export const get = (path, query = {}) => {
  const text = new URLSearchParams(query).toString();
  return ask("GET", text ? `${path}?${text}` : path);
};

export const post = (path, body = {}) => ask("POST", path, body);
