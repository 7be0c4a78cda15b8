// The frame of the page: which view is shown, the bar at the top, the theme and the keyboard.

import { link, token } from "./api.js";
import { h, setText } from "./dom.js";
import { keyText } from "./format.js";
import { hashOf, placeOf } from "./route.js";
import { jobView } from "./job.js";
import { jobsView } from "./jobs.js";
import { keyView } from "./key.js";
import { stateView } from "./state.js";

const THEMES = ["auto", "light", "dark"];
const content = document.getElementById("content");
let shown = new AbortController();

function show() {
  shown.abort();
  shown = new AbortController();
  const place = placeOf(location.hash);
  const view = place.columns ? keyView : place.state ? stateView : place.job ? jobView : jobsView;
  showPath(place);
  document.getElementById("leave").hidden = !token.get();
  content.replaceChildren(...view(place, shown.signal));
  scrollTo(0, 0);
}

function showPath({ job, state, columns, namespace }) {
  const steps = [["jobs", "#/"]];
  if (job) steps.push([job, hashOf(job)]);
  if (state) steps.push([state, hashOf(job, state)]);
  if (columns) steps.push([keyText(columns), hashOf(job, state, columns, namespace)]);
  const last = steps.pop();
  document.getElementById("path").replaceChildren(
    ...steps.map(([name, href]) => h("li", {}, h("a", { href }, keyText(name)))),
    h("li", {}, h("span", { "aria-current": "page" }, keyText(last[0]))),
  );
  document.title = [last[0], ...steps.map(([name]) => name).slice(1).reverse(), "qstate"].map(keyText).join(" · ");
}

function showLink() {
  const element = document.getElementById("link");
  element.dataset.state = link.state;
  setText(element, { connecting: "connecting", live: "live", lost: "connection lost, trying again" }[link.state]);
}

function chosenTheme() {
  const found = localStorage.getItem("qstate.theme");
  return THEMES.includes(found) ? found : "auto";
}

function showTheme() {
  const chosen = chosenTheme();
  document.documentElement.dataset.theme = chosen;
  setText(document.getElementById("theme"), `Theme: ${chosen}`);
}

function keyboard(event) {
  const typing = event.target.matches?.("input, select, textarea");
  if (event.key === "Escape" && typing) event.target.blur();
  if (event.key !== "/" || typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const search = content.querySelector('input[type="search"]');
  if (!search) return;
  event.preventDefault();
  search.focus();
  search.select();
}

document.getElementById("theme").addEventListener("click", () => {
  localStorage.setItem("qstate.theme", THEMES[(THEMES.indexOf(chosenTheme()) + 1) % THEMES.length]);
  showTheme();
});
document.getElementById("leave").addEventListener("click", () => {
  token.set(null);
  show();
});
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  content.focus();
});
document.addEventListener("keydown", keyboard);
link.addEventListener("change", showLink);
window.addEventListener("hashchange", () => {
  show();
  content.focus();
});
window.addEventListener("qstate-again", show);
showTheme();
show();
