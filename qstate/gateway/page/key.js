// One key: its value as the job commits it, what it was since the page was opened, and its other namespaces.

import { follow, get, pathOf, pause, poll, query } from "./api.js";
import { LineChart } from "./chart.js";
import { h, notice, setText } from "./dom.js";
import { clock, keyText, oneLine, parse, plural, stringify, visible, whole } from "./format.js";
import { Problems } from "./problems.js";
import { hashOf } from "./route.js";
import { changed, measureOf, measuresOf, shownValue, valueElement } from "./values.js";

const MOST_POINTS = 2000;
const MOST_CHANGES = 50;
const MOST_NAMESPACES = 500;
const EVERY_MS = 1000;
/** Figures from this one on are not drawn: a double could not hold the range from one to another. */
const LARGEST = 1e307;
const LIVE = "Live, asked every second (this state has no feed of changes)";

/** The elements of the view, kept current until the signal. */
export function keyView(place, signal) {
  const { job, state, columns, namespace } = place;
  const path = pathOf(job, state);
  const named = { key: columns, namespace: stringify(namespace) };
  const problems = new Problems();
  const history = new History();
  const seen = (how, epoch) => {
    problems.clear("changes");
    history.seen(how, epoch);
  };
  const ask = () =>
    poll((until) => get(path + "/value" + query(named), until), EVERY_MS, {
      signal,
      show: (found) => {
        history.put(found.epoch, found.value);
        seen(LIVE, found.epoch);
      },
      failed: (error) => {
        if (error.code === "KEY_NOT_FOUND") {
          history.put(null, undefined);
          history.seen(LIVE, null);
        }
        problems.report("changes", error);
      },
    });
  const watch = () =>
    follow(path + "/changes" + query(named), {
      signal,
      everyMs: EVERY_MS,
      ask: async (until) => {
        const found = await get(path + "/value" + query({ ...named, isolation: "committed" }), until).catch(orNothing);
        history.put(found.epoch, found.value);
        seen("Committed, asked every second (other windows follow as many keys as a browser can)", found.epoch);
      },
      event: (kind, data) => {
        for (const change of data.changes ?? []) history.take(data.epoch, change);
        if (kind === "snapshot" && !data.changes.length) history.put(data.epoch, undefined);
        if (kind === "progress") history.begin(data.epoch);
        seen("Committed, shown as it changes", data.epoch);
      },
      failed: (error) => {
        if (error.code === "UNSUPPORTED") ask();
        else problems.report("changes", error);
      },
    });
  const known = new AbortController();
  poll((until) => get(path, until), EVERY_MS, {
    signal: AbortSignal.any([signal, known.signal]),
    show: ({ kind }) => {
      known.abort();
      history.kind = kind;
      watch();
    },
    failed: (error) => problems.report("changes", error),
  });
  const elements = history.elements();
  drawUntil(() => history.drawValue(), history.card, signal);
  drawUntil(() => history.drawChart(), history.chartCard, signal);
  const spaces = namespacesOf(place, signal);
  const lead = h("div", { class: "head lead" }, h("span", {}, "Key of ", h("a", { href: hashOf(job, state) }, visible(state))), spaces);
  return [h("h1", { class: "code" }, keyText(columns)), lead, problems.element, ...elements];
}

/** A key without a value, in place of the failure to find one. */
function orNothing(error) {
  if (error.code === "KEY_NOT_FOUND") return { epoch: null, value: undefined };
  throw error;
}

/** Draw twice a second until the signal, and sooner while `draw` says that there is nothing to draw yet.
 *
 * A failure is said in the card, in place of what was drawn before, and ends the drawing of this card only. */
async function drawUntil(draw, card, signal) {
  try {
    while (!signal.aborted) {
      const drawn = draw();
      await pause(drawn ? 500 : 100, signal).catch(() => {});
    }
  } catch (error) {
    card.replaceChildren(notice("This cannot be drawn", `${error}. Load the page again to try once more.`, true));
    throw error; // for the browser's console
  }
}

/** A choice among the key's namespaces, if it has several. */
function namespacesOf({ job, state, columns, namespace }, signal) {
  const choice = h("select", {
    "aria-label": "Namespace",
    onchange: () => {
      location.hash = hashOf(job, state, columns, parse(choice.value));
    },
  });
  const element = h("label", { hidden: true }, "Namespace ", choice);
  get(`${pathOf(job, state)}/namespaces${query({ key: columns })}`, signal)
    .then(({ namespaces }) => {
      const current = stringify(namespace);
      const found = [...new Set([current, ...namespaces.slice(0, MOST_NAMESPACES).map(stringify)])].sort();
      const name = (text) => (text === "null" ? "none" : oneLine(parse(text)));
      choice.replaceChildren(...found.map((text) => h("option", { value: text, selected: text === current }, name(text))));
      element.hidden = found.length < 2;
    })
    .catch(() => {}); // where it cannot be told, there is nothing to choose
  return element;
}

/** The values of the key since the page was opened: the newest, a chart of a figure in them, and a list. */
class History {
  constructor() {
    this.kind = null;
    this.value = undefined;
    this.begun = false;
    this.values = [];
    this.fresh = true;
    this.said = "";
    this.current = h("div");
    this.note = h("p", { class: "note" }, "Waiting for the value…");
    this.chart = new LineChart("Value over time");
    this.choice = h("select", { "aria-label": "Figure to draw", hidden: true, onchange: () => (this.fresh = true) });
    this.since = h("span", { class: "note" });
    this.body = h("tbody");
    this.opened = Date.now();
  }

  elements() {
    const heads = [["Time"], ["Epoch", "number"], ["Value"]].map(([text, kind]) => h("th", { scope: "col", class: kind }, text));
    this.card = h("section", { class: "card", id: "value" }, this.current, this.note);
    this.chartCard = h(
      "section",
      { class: "card" },
      h("div", { class: "head" }, h("h2", {}, "Since this page was opened"), this.since, this.choice),
      this.chart.element,
    );
    return [
      h("div", { class: "columns" }, this.card, this.chartCard),
      h(
        "section",
        { class: "card" },
        h("div", { class: "head" }, h("h2", {}, "Values"), h("span", { class: "note" }, `the newest ${MOST_CHANGES}`)),
        h("table", { class: "history" }, h("caption", {}, "Values"), h("thead", {}, h("tr", {}, heads)), this.body),
      ),
    ];
  }

  /** What is known now is all: without a value, there is none. */
  begin(epoch) {
    if (!this.begun) this.put(epoch, this.value);
  }

  take(epoch, change) {
    if (change.error) this.put(epoch, `cannot be read: ${change.error.title ?? "no reason given"}`);
    else this.put(epoch, changed(this.value, change));
  }

  put(epoch, value) {
    if (this.begun && stringify(value ?? null) === stringify(this.value ?? null)) return;
    this.begun = true;
    this.value = value;
    // Not the values: two thousand large ones would fill the memory.
    const shown = shownValue(this.kind, value);
    const text = value === undefined ? "no value" : oneLine(shown);
    this.values.push({ at: Date.now(), epoch, text, measures: measuresOf(shown) });
    if (this.values.length > MOST_POINTS) this.values.shift();
    this.fresh = true;
  }

  /** What was put last is the value of this epoch. The page shows both together when it draws the value. */
  seen(how, epoch) {
    this.said = `${how}, epoch ${whole(epoch)}`;
  }

  /** Whether there is something to draw: the chart of the values. */
  drawChart() {
    if (!this.begun || this.chartCard.hidden) return this.begun;
    const points = this.values.map(({ at, measures }) => [at, measureOf(measures, this.choice.value)]);
    this.chart.draw(points.filter(([, value]) => Math.abs(value) < LARGEST), Date.now());
    return true;
  }

  /** Whether there is something to draw: the newest value with its epoch, and the list. */
  drawValue() {
    if (!this.begun) return false;
    setText(this.note, this.said);
    if (!this.fresh) return true;
    this.fresh = false;
    const none = h("p", { class: "empty" }, "The state has no value for this key.");
    const shown = shownValue(this.kind, this.value);
    this.current.replaceChildren(this.value === undefined ? none : valueElement(shown));
    this.drawChoice(measuresOf(shown).map(([name]) => name));
    setText(this.since, `${clock(this.opened)}, ${plural(this.values.length, "value")}`);
    this.body.replaceChildren(
      ...this.values.slice(-MOST_CHANGES).reverse().map(({ at, epoch, text }) =>
        h(
          "tr",
          {},
          h("td", {}, clock(at)),
          h("td", { class: "number" }, whole(epoch)),
          h("td", { class: "code" }, h("span", { class: "cut" }, text)),
        ),
      ),
    );
    return true;
  }

  drawChoice(names) {
    const known = [...this.choice.options].map((one) => one.value);
    const wanted = [...new Set([...known, ...names])].slice(0, 50);
    if (wanted.length !== known.length) {
      const chosen = this.choice.value || wanted[0];
      this.choice.replaceChildren(
        ...wanted.map((name) => h("option", { value: name, selected: name === chosen }, visible(name, 60))),
      );
    }
    this.choice.hidden = wanted.length < 2;
    this.chartCard.hidden = !wanted.length;
  }
}
