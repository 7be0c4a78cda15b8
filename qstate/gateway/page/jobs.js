// The first view: all jobs with their figures.

import { get, pathOf, poll } from "./api.js";
import { h, searchField, setText } from "./dom.js";
import { bytes, duration, visible, whole } from "./format.js";
import { Problems, wantsToken } from "./problems.js";
import { hashOf } from "./route.js";
import { Table } from "./table.js";

const EVERY_MS = 2000;

const COLUMNS = [
  { title: "Job", class: "name", cell: (job) => h("a", { href: hashOf(job.name) }, visible(job.name)) },
  { title: "Rows/s", class: "number", cell: (job) => whole(job.figures?.rows_in_per_s) },
  { title: "Epoch", class: "number", cell: (job) => whole(job.figures?.epoch) },
  { title: "Watermark lag", class: "number", cell: (job) => duration(job.figures?.lag_s) },
  { title: "Keys", class: "number", cell: (job) => whole(job.figures?.state_keys ?? job.figures?.state_entries) },
  { title: "State", class: "number", cell: (job) => bytes(job.figures?.state_bytes) },
  { title: "Snapshot age", class: "number", cell: (job) => duration(job.figures?.snapshot_age_s) },
  { title: "Status", class: "number", cell: statusOf },
];

function statusOf(job) {
  if (job.gone) return "stopped";
  const silent = job.figures?.silent.length ?? 0;
  return silent ? `${silent} silent` : "running";
}

/** The elements of the view, kept current until the signal. */
export function jobsView(_place, signal) {
  const seen = new Map();
  const lead = h("p", { class: "lead" }, "Looking for jobs…");
  const problems = new Problems();
  const table = new Table("Jobs", COLUMNS, (job) => job.name);
  const card = h("section", { class: "card", hidden: true });
  const hint = h("p", { class: "note", hidden: true });
  let [filter, hadFigures] = ["", false];
  const draw = () => {
    const wanted = filter.toLowerCase();
    const found = [...seen.values()].filter((job) => job.name.toLowerCase().includes(wanted));
    table.update(found.sort((one, other) => (one.name < other.name ? -1 : 1)));
    const running = [...seen.values()].filter((job) => !job.gone).length;
    setText(lead, `${running} running${filter ? `, ${found.length} match` : ""}`);
  };
  const search = searchField("Search jobs", "", (text) => {
    filter = text;
    draw();
  });
  card.append(h("div", { class: "head" }, search), table.element, hint);
  poll((until) => get(pathOf(), until), EVERY_MS, {
    signal,
    show: ({ jobs }) => {
      problems.clear("jobs");
      const names = new Set(jobs.map((job) => job.name));
      for (const job of seen.values()) job.gone = !names.has(job.name);
      for (const job of jobs) seen.set(job.name, job);
      card.hidden = seen.size === 0;
      draw();
      if (!seen.size) setText(lead, "No job is running at this gateway's proxies. This page shows one as soon as it starts.");
      hadFigures ||= jobs.some((job) => job.figures);
      hint.hidden = hadFigures || !jobs.length;
      setText(hint, "Rates, lag and sizes come from the metrics of a job: start the gateway with --job-metrics HOST:PORT.");
    },
    failed: (error) => {
      problems.report("jobs", error);
      if (wantsToken(error)) card.hidden = true;
      if (!seen.size) setText(lead, "");
    },
  });
  return [h("h1", {}, "Jobs"), lead, problems.element, card];
}
