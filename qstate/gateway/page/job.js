// One job: its figures, its rows a second since the page was opened, its states and its subtasks.

import { get, pathOf, poll } from "./api.js";
import { LineChart } from "./chart.js";
import { h, searchField, setText } from "./dom.js";
import { bytes, duration, instant, plural, visible, whole } from "./format.js";
import { Problems, wantsToken } from "./problems.js";
import { hashOf } from "./route.js";
import { Table } from "./table.js";

const EVERY_MS = 2000;
const STATES_EVERY_MS = 5000;
/** The chart keeps a quarter of an hour. */
const MOST_POINTS = 450;

/** The elements of the view, kept current until the signal. */
export function jobView({ job }, signal) {
  const problems = new Problems();
  const figures = new Figures();
  const states = new States(job);
  const look = (path, everyMs, update) =>
    poll((until) => get(path, until), everyMs, {
      signal,
      show: (found) => {
        problems.clear(path);
        update(found);
      },
      failed: (error) => {
        problems.report(path, error);
        if (wantsToken(error)) states.element.hidden = true;
      },
    });
  const lead = h("p", { class: "lead" }, "Looking for the job…");
  look(pathOf(job), EVERY_MS, (found) => {
    figures.update(found);
    setText(lead, leadOf(found, figures.points.length > 0));
  });
  look(`${pathOf(job)}/states`, STATES_EVERY_MS, (found) => states.update(found.states));
  const title = h("h1", {}, visible(job));
  return [title, lead, problems.element, ...figures.elements, states.element, figures.subtasks];
}

function leadOf({ subtasks, standby }, hadFigures) {
  if (!subtasks.length && hadFigures) return "Running. Its metrics do not answer now.";
  if (!subtasks.length) return "Running. For rates, lag and sizes, start the gateway with --job-metrics HOST:PORT.";
  const operators = new Set(subtasks.map((one) => one.operator)).size;
  const beside = standby.length ? `, with a standby` : "";
  return `${plural(operators, "operator")} in ${plural(subtasks.length, "subtask")}${beside}`;
}

class States {
  constructor(job) {
    this.all = [];
    this.filter = "";
    this.count = h("span", { class: "note" });
    const columns = [
      { title: "State", class: "name", cell: (state) => h("a", { href: hashOf(job, state.name) }, visible(state.name)) },
      { title: "Kind", cell: (state) => visible(state.kind) },
      { title: "Key", cell: (state) => visible(state.key_types.join(", ")) },
      { title: "Value", cell: (state) => visible(state.value_type, 80) },
      { title: "Entries", class: "number", cell: (state) => whole(state.keys) },
    ];
    this.table = new Table("States", columns, (state) => state.name);
    this.none = h("p", { class: "empty" }, "This job has no queryable state yet.");
    const search = searchField("Search states", "", (text) => {
      this.filter = text;
      this.draw();
    });
    this.element = h(
      "section",
      { class: "card", hidden: true },
      h("div", { class: "head" }, h("h2", {}, "States"), this.count, search),
      this.table.element,
      this.none,
    );
  }

  update(states) {
    this.all = states;
    this.element.hidden = false;
    this.draw();
  }

  draw() {
    const wanted = this.filter.toLowerCase();
    const found = this.all.filter((state) => state.name.toLowerCase().includes(wanted));
    this.table.update(found);
    this.table.element.hidden = !found.length;
    this.none.hidden = found.length > 0;
    setText(this.none, this.all.length ? "No state matches." : "This job has no queryable state yet.");
    setText(this.count, this.filter ? `${found.length} of ${this.all.length}` : whole(this.all.length));
  }
}

const FIGURES = [
  ["Rows/s", (one) => whole(one.rows_in_per_s)],
  ["Epoch", (one) => whole(one.epoch), (one) => (one.epoch_s === null ? "" : `${duration(one.epoch_s)} each`)],
  ["Watermark lag", (one) => duration(one.lag_s), (one) => (one.watermark === null ? "" : instant(one.watermark))],
  ["State", (one) => (one.state_keys === null ? whole(one.state_entries) : whole(one.state_keys)), sizeOf],
  ["Snapshot age", (one) => duration(one.snapshot_age_s)],
  ["Reads/s", (one) => whole(one.reads_per_s), (one) => (one.restarts ? `${whole(one.restarts)} restarts` : "")],
];

function sizeOf(one) {
  const unit = one.state_keys === null ? "entries" : "keys";
  return one.state_bytes === null ? unit : `${unit}, ${bytes(one.state_bytes)}`;
}

const SUBTASKS = [
  { title: "Operator", class: "name", cell: (one) => visible(one.operator) },
  { title: "Subtask", class: "number", cell: (one) => whole(one.subtask) },
  { title: "Process", class: "number", cell: (one) => visible(one.process) },
  { title: "Epoch", class: "number", cell: (one) => whole(one.epoch) },
  { title: "Rows/s", class: "number", cell: (one) => whole(one.rows_in_per_s) },
  { title: "Epoch time", class: "number", cell: (one) => duration(one.epoch_s) },
  { title: "Keys", class: "number", cell: (one) => whole(one.state_keys ?? one.state_entries) },
  { title: "Timers", class: "number", cell: (one) => whole(one.timers) },
  { title: "Watermark", class: "number", cell: (one) => instant(one.watermark) },
];

class Figures {
  constructor() {
    this.points = [];
    this.cells = FIGURES.map(([, , under]) => [h("span"), h("small")]);
    const tiles = FIGURES.map(([title], index) =>
      h("div", {}, h("dt", {}, title), h("dd", {}, this.cells[index])),
    );
    this.list = h("dl", { class: "figures", hidden: true }, tiles);
    this.chart = new LineChart("Rows per second", { fromZero: true });
    this.card = h("section", { class: "card", hidden: true }, h("div", { class: "head" }, h("h2", {}, "Rows per second")), this.chart.element);
    this.silent = h("p", { class: "notice", hidden: true });
    this.elements = [this.silent, this.list, this.card];
    this.table = new Table("Subtasks", SUBTASKS, (one) => JSON.stringify([one.operator, one.subtask]));
    this.subtasks = h(
      "section",
      { class: "card", hidden: true },
      h("div", { class: "head" }, h("h2", {}, "Subtasks")),
      this.table.element,
    );
  }

  update({ figures, subtasks }) {
    this.list.hidden = this.card.hidden = !figures;
    this.subtasks.hidden = !subtasks.length;
    this.table.update(subtasks);
    if (!figures) return;
    FIGURES.forEach(([, text, under], index) => {
      setText(this.cells[index][0], text(figures));
      setText(this.cells[index][1], under ? under(figures) : "");
    });
    this.silent.hidden = !figures.silent.length;
    setText(this.silent, `No answer from process ${visible(figures.silent.join(", "))}: it may be restarting.`);
    if (figures.rows_in_per_s !== null) this.points.push([figures.at * 1000, figures.rows_in_per_s]);
    if (this.points.length > MOST_POINTS) this.points.shift();
    this.chart.draw(this.points, figures.at * 1000);
  }
}
