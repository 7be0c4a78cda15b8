// One state: what it is, where its key groups live, and its keys: to search, or the largest by value.

import { get, pathOf, poll, query } from "./api.js";
import { Bars } from "./chart.js";
import { h, searchField, setText } from "./dom.js";
import { keyText, oneLine, plural, stringify, visible, whole } from "./format.js";
import { KeyGroups } from "./groups.js";
import { Problems, wantsToken } from "./problems.js";
import { columnsOf, hashOf, stateHash } from "./route.js";
import { Table } from "./table.js";
import { measureOf, measuresOf, shownValue } from "./values.js";

const EVERY_MS = 2000;
const PAGE = 100;
const LARGEST_PAGE = 1000;
/** So many keys are read to find the largest: it bounds what a look costs the job. */
const MOST_COMPARED = 10_000;

/** The elements of the view, kept current until the signal. */
export function stateView(place, signal) {
  const { job, state, show } = place;
  const problems = new Problems();
  const groups = new KeyGroups();
  const lead = h("p", { class: "lead" }, "Looking for the state…");
  const entries = show === "top" ? new Top(place, problems, signal) : new Keys(place, problems, signal);
  const count = countButton(pathOf(job, state), problems, signal);
  poll((until) => get(pathOf(job, state), until), EVERY_MS, {
    signal,
    show: (found) => {
      problems.clear("state");
      setText(lead, describe(found));
      count.hidden = found.keys !== null;
      groups.update(found);
      entries.begin(found);
    },
    failed: (error) => {
      problems.report("state", error);
      if (wantsToken(error)) entries.element.hidden = groups.element.hidden = true;
    },
  });
  const head = h("div", { class: "head" }, lead, count);
  return [h("h1", {}, visible(state)), head, problems.element, entries.element, groups.element];
}

function describe(state) {
  const entries = state.keys === null ? "" : ` · ${whole(state.keys)} ${state.keys === 1 ? "entry" : "entries"}`;
  const spaces = state.namespace_types?.length ? ` in a namespace of ${state.namespace_types.join(", ")}` : "";
  return visible(`${state.kind} state · ${state.key_types.join(", ")} → ${state.value_type}${spaces}${entries}`);
}

function countButton(path, problems, signal) {
  const button = h("button", { type: "button", class: "quiet", hidden: true, title: "Reads all keys of the state" }, "Count entries");
  button.addEventListener("click", async () => {
    button.disabled = true;
    try {
      setText(button, `${whole((await get(`${path}/count`, signal)).count)} entries`);
    } catch (error) {
      if (!signal.aborted) problems.report("count", error);
    }
    button.disabled = false;
  });
  return button;
}

/** The first `most` entries that are searched for, and whether there are more. */
async function load(path, search, most, signal) {
  const entries = [];
  let cursor = null;
  do {
    const limit = Math.min(LARGEST_PAGE, most - entries.length);
    const page = await get(`${path}/entries${query({ ...search, limit, cursor })}`, signal);
    entries.push(...page.entries);
    cursor = page.cursor;
  } while (cursor !== null && entries.length < most);
  return { entries, more: cursor !== null };
}

/** A card of a state's entries that follows a search field. A subclass says how many it needs, and draws them. */
class Entries {
  constructor(place, problems, signal) {
    this.place = place;
    this.problems = problems;
    this.signal = signal;
    this.text = place.begins;
    this.looking = new AbortController();
    this.note = h("span", { class: "note" });
    this.search = h("div");
    this.body = h("div");
    this.head = h("div", { class: "head" }, this.tabs(), this.search);
    this.element = h("section", { class: "card", hidden: true }, this.head, this.body, this.note);
  }

  tabs() {
    const { job, state, begins, show } = this.place;
    const tab = (name, value) =>
      h("a", { href: stateHash(job, state, { begins, show: value }), "aria-current": show === value ? "page" : null }, name);
    return h("nav", { class: "tabs", "aria-label": "Show" }, tab("Keys", ""), tab("Top by value", "top"));
  }

  /** The state is known: offer the search that its keys permit, and look. */
  begin({ kind, key_types: [type] }) {
    if (!this.element.hidden) return;
    this.element.hidden = false;
    this.kind = kind;
    this.begins = type === "string" || type === "binary";
    const label = this.begins ? `Keys that begin with…` : `Keys with this ${type}…`;
    this.search.replaceWith(searchField(label, this.text, (text) => this.find(text)));
    this.find(this.text);
  }

  find(text) {
    this.text = text;
    history.replaceState(null, "", stateHash(this.place.job, this.place.state, { begins: text, show: this.place.show }));
    this.look();
  }

  look() {
    this.looking.abort();
    this.looking = new AbortController();
    const search = this.text === "" ? {} : this.begins ? { begins: this.text } : { column: this.text };
    const path = pathOf(this.place.job, this.place.state);
    setText(this.note, "Looking…");
    poll((until) => load(path, search, this.most, until), EVERY_MS, {
      signal: AbortSignal.any([this.signal, this.looking.signal]),
      show: ({ entries, more }) => {
        this.problems.clear("entries");
        this.draw(entries.map((entry) => ({ ...entry, value: shownValue(this.kind, entry.value) })), more);
      },
      failed: (error) => {
        this.problems.report("entries", error);
        setText(this.note, "");
      },
    });
  }

  linkOf(entry) {
    return hashOf(this.place.job, this.place.state, columnsOf(entry.key), entry.namespace);
  }
}

/** The keys in the order in which the job keeps them, page by page. */
class Keys extends Entries {
  constructor(place, problems, signal) {
    super(place, problems, signal);
    this.most = PAGE;
    const columns = [
      { title: "Key", class: "name", cell: (entry) => this.keyLink(entry) },
      { title: "Namespace", class: "namespace", cell: (entry) => (entry.namespace === null ? "" : oneLine(entry.namespace, 60)) },
      { title: "Value", class: "code", flash: true, cell: (entry) => (entry.error ? entry.error.title : oneLine(entry.value, 160)) },
    ];
    this.table = new Table("Keys", columns, (entry) => stringify([entry.key, entry.namespace]), LARGEST_PAGE);
    this.more = h("button", { type: "button", onclick: () => this.showMore() }, `Show ${PAGE} more`);
    this.body.append(this.table.element, h("div", { class: "more" }, this.more));
  }

  keyLink(entry) {
    return h("a", { class: "code", href: this.linkOf(entry) }, keyText(entry.key));
  }

  showMore() {
    this.most = Math.min(this.most + PAGE, LARGEST_PAGE);
    this.look();
  }

  find(text) {
    this.most = PAGE;
    super.find(text);
  }

  draw(entries, more) {
    this.table.update(entries);
    this.table.table.classList.toggle("void", entries.every((entry) => entry.namespace === null));
    this.table.element.hidden = !entries.length;
    this.more.hidden = !more || this.most >= LARGEST_PAGE;
    const narrow = more && this.most >= LARGEST_PAGE ? ": search for the beginning of a key to see others" : "";
    const none = this.text ? "No key matches." : "The state has no entries yet.";
    setText(this.note, entries.length ? `${plural(entries.length, "key")}${more ? " of more" : ""}${narrow}` : none);
  }
}

/** The keys with the largest figure in their values. */
class Top extends Entries {
  constructor(place, problems, signal) {
    super(place, problems, signal);
    this.most = MOST_COMPARED;
    this.entries = [];
    this.bars = new Bars("Keys with the largest values");
    const options = [10, 25, 50, 100].map((size) => h("option", { value: size }, `Top ${size}`));
    this.size = h("select", { "aria-label": "How many", onchange: () => this.show() }, options);
    this.figure = h("select", { "aria-label": "By which figure", onchange: () => this.show() });
    this.head.append(this.figure, this.size);
    this.body.append(this.bars.element);
  }

  draw(entries, more) {
    this.entries = entries.map((entry) => ({ entry, measures: entry.error ? [] : measuresOf(entry.value) }));
    this.offer([...new Set(this.entries.flatMap(({ measures }) => measures.map(([name]) => name)))].slice(0, 50));
    const found = this.show();
    const all = (more ? "the first " : "") + plural(entries.length, "key");
    setText(this.note, found ? `Of ${all}.` : entries.length ? `No figures in the values of ${all}.` : "No key matches.");
  }

  offer(names) {
    const known = [...this.figure.options].map((one) => one.value);
    if (names.every((name) => known.includes(name))) return;
    const chosen = this.figure.value || names[0];
    this.figure.replaceChildren(
      ...[...new Set([...known, ...names])].map((name) => h("option", { value: name, selected: name === chosen }, visible(name, 60))),
    );
  }

  show() {
    this.figure.hidden = this.figure.options.length < 2;
    const rows = this.entries
      .map(({ entry, measures }) => ({ entry, value: measureOf(measures, this.figure.value) }))
      .filter((row) => Number.isFinite(row.value))
      .sort((one, other) => other.value - one.value)
      .slice(0, Number(this.size.value));
    this.bars.update(rows.map(({ entry, value }) => ({ value, href: this.linkOf(entry), label: labelOf(entry) })));
    return rows.length;
  }
}

function labelOf({ key, namespace }) {
  return keyText(key) + (namespace === null ? "" : ` (${oneLine(namespace, 60)})`);
}
