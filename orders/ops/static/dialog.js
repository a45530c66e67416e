// One dialog for everything that has to be confirmed.

import { $, announce, setHidden, setText } from "./dom.js";

let answer = () => {};
/** The question that is open: one may follow another. */
let asked = 0;

/**
 * Ask, and do it: `act(text, progress)` runs while the dialog stays open; what it returns is announced.
 *
 * If it throws, the error is shown and the operator may try again. Closing the dialog makes `progress` return false.
 */
export function confirm({ title, text, yes, danger = false, field, act }) {
  const dialog = $("dialog");
  const question = ++asked;
  setText($("dialog-title"), title);
  setText($("dialog-text"), text);
  setText($("dialog-yes"), yes);
  setText($("dialog-error"), "");
  setText($("dialog-no"), "Cancel");
  $("dialog-yes").className = danger ? "danger" : "primary";
  setHidden($("dialog-field"), !field);
  setHidden($("dialog-progress"), true);
  $("dialog-input").value = "";
  $("dialog-input").required = Boolean(field);
  if (field) setText($("dialog-label"), field);
  answer = async () => {
    busy(true);
    setText($("dialog-error"), "");
    try {
      const said = await act($("dialog-input").value.trim(), (done, all) => {
        setHidden($("dialog-progress"), false);
        $("dialog-progress").max = Math.max(1, all);
        $("dialog-progress").value = done;
        return dialog.open && question === asked;
      });
      if (question !== asked) return; // it was stopped, and another one is open
      if (said) announce(said);
      dialog.close();
    } catch (error) {
      if (question === asked) setText($("dialog-error"), error.message);
    } finally {
      if (question === asked) busy(false);
    }
  };
  busy(false);
  dialog.showModal();
}

function busy(is) {
  $("dialog-yes").disabled = is;
  setText($("dialog-no"), is ? "Stop" : "Cancel");
}

export function prepare() {
  $("dialog-no").addEventListener("click", () => $("dialog").close());
  $("dialog").querySelector("form").addEventListener("submit", (event) => {
    event.preventDefault();
    if (!$("dialog-yes").disabled) answer();
  });
}
