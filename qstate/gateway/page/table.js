// A table that is updated in place: rows keep their elements, so focus and selection stay, and only so many are shown.

import { h, setText } from "./dom.js";

const ROWS = 100;

/** Columns are `{ title, class, cell(row) }`; a cell is text, or an element that stays as it was made first.
 *
 * `id(row)` tells rows apart. Rows beyond the first hundred, or `most`, come with a button. */
export class Table {
  constructor(caption, columns, id, most = ROWS) {
    this.columns = columns;
    this.id = id;
    this.most = most;
    this.rows = [];
    this.elements = new Map();
    this.body = h("tbody");
    this.count = h("span", { class: "note" });
    this.button = h("button", { type: "button", onclick: () => this.showMore() });
    this.more = h("div", { class: "more", hidden: true }, this.button, this.count);
    const heads = columns.map((column) => h("th", { scope: "col", class: column.class === "number" ? "number" : null }, column.title));
    this.table = h("table", { class: "wide" }, h("caption", {}, caption), h("thead", {}, h("tr", {}, heads)), this.body);
    this.element = h("div", {}, h("div", { class: "scroll" }, this.table), this.more);
  }

  showMore() {
    this.most += ROWS;
    this.update(this.rows);
  }

  update(rows) {
    this.rows = rows;
    this.elements = new Map(rows.slice(0, this.most).map((row) => [this.id(row), this.rowOf(row)]));
    const wanted = [...this.elements.values()];
    wanted.forEach((element, index) => {
      if (this.body.children[index] !== element) this.body.insertBefore(element, this.body.children[index] ?? null);
    });
    while (this.body.children.length > wanted.length) this.body.lastChild.remove();
    this.more.hidden = rows.length <= this.most;
    setText(this.button, `Show ${Math.min(ROWS, rows.length - this.most)} more`);
    setText(this.count, `${wanted.length} of ${rows.length}`);
  }

  rowOf(row) {
    const element = this.elements.get(this.id(row));
    if (element) {
      this.columns.forEach((column, index) => update(element.children[index], column.cell(row), column.flash));
      return element;
    }
    return h(
      "tr",
      {},
      this.columns.map((column) =>
        h("td", { class: column.class, "data-label": column.class === "name" ? null : column.title }, column.cell(row)),
      ),
    );
  }
}

function update(cell, content, flash) {
  if (content instanceof Node || cell.textContent === content) return;
  cell.textContent = content;
  if (!flash) return;
  cell.classList.remove("fresh");
  void cell.offsetWidth; // the animation begins again only after a layout without it
  cell.classList.add("fresh");
}
