// Draws what is given: a line of values over time, and bars. It knows nothing of states.

import { h, setText, svg } from "./dom.js";
import { clock, number, short } from "./format.js";

const HEIGHT = 220;
const LEFT = 56;
const RIGHT = 14;
const TOP = 12;
const BOTTOM = 26;
/** The smallest range of values to draw, as a part of the values: some 50 doubles are in it. */
const FINEST = 1e-14;

/** Round numbers that span low to high, about `most` of them, and at most one more. */
export function ticks(low, high, most = 4) {
  const rough = (high - low) / most || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((one) => one * power).find((one) => one >= rough);
  const first = Math.ceil(low / step);
  const last = Math.floor(high / step + 1e-6);
  return Array.from({ length: Math.min(last - first, most) + 1 }, (_, index) => (first + index) * step);
}

/** A chart of a value over time. `draw(points, now)` shows points `[ms, value]`; a value holds until the next one. */
export class LineChart {
  constructor(label, { fromZero = false } = {}) {
    this.element = svg("svg", { class: "chart", role: "img", "aria-label": label });
    this.fromZero = fromZero;
    this.label = label;
    this.points = [];
    this.pointed = null;
    this.element.addEventListener("pointermove", (event) => {
      this.pointed = event.clientX - this.element.getBoundingClientRect().left;
      this.redraw();
    });
    this.element.addEventListener("pointerleave", () => {
      this.pointed = null;
      this.redraw();
    });
  }

  draw(points, now) {
    this.points = points;
    this.now = now;
    this.redraw();
  }

  redraw() {
    const width = this.element.clientWidth || 600;
    this.element.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    if (!this.points.length) {
      this.element.replaceChildren();
      return;
    }
    const scale = this.scale(width);
    const path = this.path(scale);
    const last = this.points.at(-1);
    const floor = HEIGHT - BOTTOM;
    this.element.replaceChildren(
      ...scale.ticks.map((at) => svg("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: scale.y(at), y2: scale.y(at) })),
      ...scale.ticks.map((at) => svg("text", { x: LEFT - 10, y: scale.y(at) + 4, "text-anchor": "end" }, short(at))),
      svg("text", { x: LEFT, y: HEIGHT - 6 }, clock(scale.from)),
      svg("text", { x: width - RIGHT, y: HEIGHT - 6, "text-anchor": "end" }, clock(scale.to)),
      svg("path", { class: "area", d: `${path}V${floor}H${scale.x(this.points[0][0])}Z` }),
      svg("path", { class: "line", d: path }),
      svg("circle", { class: "now", cx: scale.x(scale.to), cy: scale.y(last[1]), r: 4 }),
      ...this.cross(scale, floor),
    );
    const count = this.points.length;
    this.element.setAttribute("aria-label", `${this.label}: ${number(last[1])}, ${count} values since ${clock(scale.from)}`);
  }

  scale(width) {
    const values = this.points.map((point) => point[1]);
    let [low, high] = [Math.min(...values), Math.max(...values)];
    const size = Math.max(Math.abs(low), Math.abs(high));
    const range = high - low > size * FINEST ? high - low : size; // what doubles can hardly tell apart is constant
    const room = range * 0.1 || 1;
    [low, high] = [this.fromZero ? Math.min(low, 0) : low - room, high + room];
    const from = this.points[0][0];
    const to = Math.max(this.now, from + 1000);
    return {
      from,
      to,
      ticks: ticks(low, high),
      x: (at) => LEFT + ((at - from) / (to - from)) * (width - LEFT - RIGHT),
      y: (value) => TOP + ((high - value) / (high - low)) * (HEIGHT - TOP - BOTTOM),
    };
  }

  path(scale) {
    const [[firstAt, first], ...rest] = this.points;
    const steps = rest.map(([at, value]) => `H${scale.x(at)}V${scale.y(value)}`);
    return `M${scale.x(firstAt)},${scale.y(first)}${steps.join("")}H${scale.x(scale.to)}`;
  }

  cross(scale, floor) {
    if (this.pointed === null) return [];
    const point = this.points.findLast(([at]) => scale.x(at) <= this.pointed) ?? this.points[0];
    const x = Math.max(scale.x(point[0]), LEFT);
    const side = x > this.element.clientWidth / 2 ? { x: x - 8, "text-anchor": "end" } : { x: x + 8 };
    return [
      svg("line", { class: "cross", x1: x, x2: x, y1: TOP, y2: floor }),
      svg("text", { ...side, y: TOP + 8 }, `${number(point[1])} at ${clock(point[0])}`),
    ];
  }
}

/** A list of bars, the first the longest. `update` gets `{ label, href, value }`; elements stay, so focus does. */
export class Bars {
  constructor(label) {
    this.element = h("ol", { class: "bars", "aria-label": label });
  }

  update(rows) {
    const most = Math.max(...rows.map((row) => Math.abs(row.value)), 0) || 1;
    while (this.element.children.length < rows.length) this.element.append(this.row(this.element.children.length + 1));
    while (this.element.children.length > rows.length) this.element.lastChild.remove();
    rows.forEach((row, index) => {
      const [, name, track, value] = this.element.children[index].children;
      name.setAttribute("href", row.href);
      name.setAttribute("title", row.label);
      setText(name, row.label);
      setText(value, number(row.value));
      track.firstChild.style.width = `${(Math.abs(row.value) / most) * 100}%`;
    });
  }

  row(rank) {
    return h(
      "li",
      {},
      h("span", { class: "rank", "aria-hidden": "true" }, String(rank)),
      h("a", { class: "code cut" }),
      h("span", { class: "track", "aria-hidden": "true" }, h("span")),
      h("span", { class: "number" }),
    );
  }
}
