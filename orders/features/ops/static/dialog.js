// The dialog that confirms every change.

import { $, announce, h, setHidden, setText } from "./dom.js";

let onConfirm = () => {};
/** The number of the last question: another may have been asked while an action was under way. */
let lastQuestion = 0;

/**
 * Ask, then run `act(text, chosen)` while the dialog stays open, and announce what it returns. If it throws, the error is
 * shown and the operator can try again.
 *
 * With `choice` there is a list to choose from, `{label, options, chosen}`: `options` are pairs of a value and a text.
 */
export function confirm({ title, text, yes, danger = false, field, choice, act }) {
  const question = ++lastQuestion;
  const isCurrent = () => question === lastQuestion;
  setText($("dialog-title"), title);
  setText($("dialog-text"), text);
  setText($("dialog-yes"), yes);
  setText($("dialog-error"), "");
  $("dialog-yes").className = danger ? "danger" : "primary";
  setHidden($("dialog-field"), !field);
  $("dialog-input").value = "";
  $("dialog-input").required = Boolean(field);
  if (field) setText($("dialog-label"), field);
  setHidden($("dialog-choice"), !choice);
  if (choice) {
    setText($("dialog-choice-label"), choice.label);
    $("dialog-select").replaceChildren(...choice.options.map(([value, name]) => h("option", { value, selected: value === choice.chosen }, name)));
  }
  onConfirm = async () => {
    $("dialog-yes").disabled = true;
    setText($("dialog-error"), "");
    try {
      const outcome = await act($("dialog-input").value.trim(), $("dialog-select").value);
      if (!isCurrent()) return;
      announce(outcome);
      $("dialog").close();
    } catch (error) {
      if (isCurrent()) setText($("dialog-error"), error.message);
    } finally {
      if (isCurrent()) $("dialog-yes").disabled = false;
    }
  };
  $("dialog-yes").disabled = false;
  $("dialog").showModal();
}

export function prepare() {
  $("dialog-no").addEventListener("click", () => $("dialog").close());
  $("dialog").querySelector("form").addEventListener("submit", (event) => {
    event.preventDefault();
    if (!$("dialog-yes").disabled) onConfirm();
  });
}
