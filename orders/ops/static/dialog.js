// The dialog that confirms every change.

import { $, announce, h, setHidden, setText } from "./dom.js";

let onConfirm = () => {};
/** The number of the last question: another may have been asked while an action was under way. */
let lastQuestion = 0;

/**
 * Ask, then run `act(text, progress)` while the dialog stays open, and announce what it returns.
 *
 * With `choice` there is a list to choose from, `{label, options, chosen, note}`: `options` are pairs of a value and a text,
 * and `note(value)` says more about one. The value is passed to `act`, third.
 *
 * If it throws, the error is shown and the operator can try again. `progress(done, all)` returns false once the dialog
 * is closed.
 */
export function confirm({ title, text, yes, danger = false, field, choice, act }) {
  const dialog = $("dialog");
  const question = ++lastQuestion;
  const isCurrent = () => question === lastQuestion;
  setText($("dialog-title"), title);
  setText($("dialog-text"), text);
  setText($("dialog-yes"), yes);
  setText($("dialog-error"), "");
  $("dialog-yes").className = danger ? "danger" : "primary";
  setHidden($("dialog-field"), !field);
  setHidden($("dialog-progress"), true);
  $("dialog-input").value = "";
  $("dialog-input").required = Boolean(field);
  if (field) setText($("dialog-label"), field);
  setHidden($("dialog-choice"), !choice);
  if (choice) offer(choice, isCurrent);
  onConfirm = async () => {
    setBusy(true);
    setText($("dialog-error"), "");
    try {
      const outcome = await act($("dialog-input").value.trim(), (done, all) => {
        setHidden($("dialog-progress"), false);
        $("dialog-progress").max = Math.max(1, all);
        $("dialog-progress").value = done;
        return dialog.open && isCurrent();
      }, $("dialog-select").value);
      if (!isCurrent()) return;
      if (outcome) announce(outcome);
      dialog.close();
    } catch (error) {
      if (isCurrent()) setText($("dialog-error"), error.message);
    } finally {
      if (isCurrent()) setBusy(false);
    }
  };
  setBusy(false);
  dialog.showModal();
}

function offer({ label, options, chosen, note }, isCurrent) {
  const select = $("dialog-select");
  setText($("dialog-choice-label"), label);
  select.replaceChildren(...options.map(([value, text]) => h("option", { value, selected: value === chosen }, text)));
  select.onchange = async () => {
    setText($("dialog-choice-note"), "");
    const { value } = select;
    const more = note ? await note(value).catch((error) => error.message) : "";
    if (isCurrent() && select.value === value) setText($("dialog-choice-note"), more);
  };
  select.onchange();
}

function setBusy(isBusy) {
  $("dialog-yes").disabled = isBusy;
  setText($("dialog-no"), isBusy ? "Stop" : "Cancel");
}

export function prepare() {
  $("dialog-no").addEventListener("click", () => $("dialog").close());
  $("dialog").querySelector("form").addEventListener("submit", (event) => {
    event.preventDefault();
    if (!$("dialog-yes").disabled) onConfirm();
  });
}
