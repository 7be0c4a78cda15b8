// What a failure means to the reader of the page, and what can be done. The words are the page's, the codes qstate's.

import { h, notice, setText } from "./dom.js";
import { token } from "./api.js";

const AWAY = ["The job does not answer", "It may have stopped, or be restarting. The page asks again."];
const TITLES = {
  COMPACTED: ["Some changes are gone", "They were compacted away before this page had them. It begins again."],
  DEADLINE_EXCEEDED: ["No answer in time", "The job may be restarting. The page asks again."],
  KEY_NOT_FOUND: ["No value", "The state has no value for this key now."],
  LOST: ["Connection lost", "The gateway does not answer. What you see is from before; the page tries again."],
  OVERLOADED: ["The gateway is busy", "It has as many requests or streams as it takes. The page asks again."],
  RESTORING: AWAY,
  SHUTTING_DOWN: AWAY,
  TOO_LARGE: ["Too large to show", "The value is larger than an answer may be."],
  UNAVAILABLE: AWAY,
  UNKNOWN_JOB: ["No such job", "It has stopped, or never ran under this name. The page asks again."],
  UNKNOWN_KEY_GROUP_LOCATION: AWAY,
  UNKNOWN_STATE: ["No such state", "The job has no queryable state of this name."],
  UNSUPPORTED: ["Not possible here", "The state's backend does not offer this."],
  WRONG_KEY_TYPE: ["No such key", "The text is not of the type of the state's keys."],
};
const NO_RIGHTS = {
  FORBIDDEN: ["No rights", "The token does not permit this. Another one may."],
  UNAUTHENTICATED: ["A token is needed", "It is kept in this tab only, and sent to this gateway only."],
};
const REFUSED = ["The token was refused", "Give another one. It is kept in this tab only, and sent to this gateway only."];
const NO_TOKEN = "This is no token: it has characters that no request can carry, such as typographic quotes.";

/** Whether a token could help. */
export function wantsToken(problem) {
  return problem.code in NO_RIGHTS;
}

/** An element that explains a problem; for one of rights, with a field for a token. */
function explain(problem) {
  const reason = h("p", { class: "note" }, problem.message.slice(0, 500));
  if (wantsToken(problem)) {
    const refused = problem.code === "UNAUTHENTICATED" && token.get();
    return tokenForm(...(refused ? REFUSED : NO_RIGHTS[problem.code]), reason);
  }
  const [title, text] = TITLES[problem.code] ?? ["It did not work", "The gateway reports a failure."];
  const found = notice(title, text, problem.code === "LOST");
  found.append(reason);
  return found;
}

/** A place for what has failed. Each source of a view reports and clears its own problem; the first one is shown. */
export class Problems {
  constructor() {
    this.element = h("div", { "aria-live": "polite" });
    this.found = new Map();
    this.shown = null;
  }

  report(source, problem) {
    this.found.set(source, problem);
    this.draw();
  }

  clear(source) {
    if (this.found.delete(source)) this.draw();
  }

  draw() {
    const [first] = this.found.values();
    const text = first ? first.code + first.message : null;
    if (text === this.shown) return; // the same again: what the reader has typed into its form stays
    this.shown = text;
    this.element.replaceChildren(...(first ? [explain(first)] : []));
  }
}

function tokenForm(title, text, reason) {
  const input = h("input", { type: "password", "aria-label": "Token", autocomplete: "off", maxlength: "4096" });
  const wrong = h("p", { class: "note", role: "alert" });
  const used = (event) => {
    event.preventDefault();
    if (!input.value) return;
    if (!token.fits(input.value)) {
      setText(wrong, NO_TOKEN);
      input.select();
      return;
    }
    token.set(input.value);
    window.dispatchEvent(new Event("qstate-again"));
  };
  return h(
    "section",
    { class: "card" },
    h("h2", {}, title),
    h("p", { class: "note" }, text),
    h("form", { class: "token", onsubmit: used }, input, h("button", { class: "main", type: "submit" }, "Use token")),
    wrong,
    reason,
  );
}
