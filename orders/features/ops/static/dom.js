// Making and changing elements. Everything shown is set as text, never as HTML.

export const $ = (id) => document.getElementById(id);

/** An element: h("a", {href: "#x", class: "y"}, "text", another). */
export function h(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child != null));
  return element;
}

/** A text, with what is between backticks as code. */
export const withCode = (text) => text.split("`").map((part, index) => (index % 2 ? h("code", {}, part) : part));

/** Change text only if it is different, so that selections and screen readers are not disturbed. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function setHidden(element, hidden) {
  if (element.hidden !== hidden) element.hidden = hidden;
}

/** Show why a list is empty; "" hides it. */
export function explain(element, text) {
  setText(element, text);
  setHidden(element, !text);
}

/**
 * Show these items in a table body. The row of an item stays the same element.
 *
 * `cells` returns a row's cells, each a text or {text, class, href, title, key, node}. `node` is called again only when
 * `key` changes.
 */
export function setRows(body, items, key, cells) {
  const known = new Map([...body.children].map((row) => [row.dataset.key, row]));
  const isFirst = !body.dataset.filled;
  items.forEach((item, index) => {
    const id = String(key(item));
    const row = known.get(id) ?? h("tr", { "data-key": id, class: isFirst ? null : "new" });
    known.delete(id);
    setCells(row, cells(item), body.closest("table")?.tHead?.rows[0].cells);
    if (body.children[index] !== row) body.insertBefore(row, body.children[index] ?? null);
  });
  for (const row of known.values()) row.remove();
  body.dataset.filled = "yes";
}

function setCells(row, cells, labels) {
  cells.forEach((cell, index) => {
    const wanted = typeof cell === "object" ? cell : { text: cell };
    const td = row.children[index] ?? row.appendChild(h("td", { "data-label": labels?.[index]?.textContent }));
    if (td.className !== (wanted.class ?? "")) td.className = wanted.class ?? "";
    if (wanted.title && td.title !== wanted.title) td.title = wanted.title;
    if (wanted.node) {
      if (td.dataset.made !== wanted.key) {
        td.replaceChildren(wanted.node());
        td.dataset.made = wanted.key;
      }
    } else if (wanted.href) {
      const link = td.firstElementChild ?? td.appendChild(h("a"));
      if (link.getAttribute("href") !== wanted.href) link.setAttribute("href", wanted.href);
      setText(link, wanted.text);
    } else {
      setText(td, wanted.text);
    }
  });
}

/** Show these elements in a list, unless it already shows them. */
export function setItems(list, items, signature) {
  const now = JSON.stringify(signature);
  if (list.dataset.signature === now) return;
  list.dataset.signature = now;
  list.replaceChildren(...items());
}

/** Have a screen reader say this, unless it was the last thing it said. */
export function announce(text) {
  setText($("announcer"), text);
}
