// The figures made in Python for plotly: an element names the one that it shows.
const touch = matchMedia("(pointer: coarse)").matches; // dragging scrolls the page; only a mouse zooms
function draw(target, { data, layout }) {
  // The buttons are listed because the default ones include an upload of the plot to a server.
  const config = {
    displaylogo: false, responsive: true, scrollZoom: false, showSendToCloud: false, plotlyServerURL: "",
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
  };
  // The zoom is kept when the theme changes, but not for another figure in the same place.
  const full = { template: { layout: report.look }, dragmode: touch ? false : "zoom", uirevision: target.dataset.figure, autosize: true, ...layout };
  return Plotly.react(target, themed(data), themed(full), config);
}

const drawFigures = () => document.querySelectorAll("[data-figure]").forEach((target) => draw(target, report.figures[target.dataset.figure]));

for (const select of document.querySelectorAll("select[data-plot]")) {
  const target = element(select.dataset.plot);
  const follow = () => { target.dataset.figure = select.value; };
  follow(); // a reloaded page may keep an earlier selection
  select.addEventListener("change", () => { follow(); draw(target, report.figures[select.value]); });
}

// The tree of groups: their pictures at a cut, and the height of the cut as a line

function groupsAt(count) {
  const groups = tree.leaves.map((leaf) => [leaf]);
  tree.merges.forEach(([left, right], i) => {
    groups.push(i < tree.leaves.length - count ? [...groups[left], ...groups[right]] : null);
    if (groups.at(-1)) groups[left] = groups[right] = null;
  });
  return groups.filter(Boolean);
}

const SHOWN_IN_CUT = 5;

function showCut() {
  const n = Number(element("tree-cut").value);
  element("tree-count").textContent = n;
  const shownGroups = groupsAt(n).map((leaves) => leaves.map(({ id }) => id).filter((id) => members(id).length));
  const items = shownGroups.filter((ids) => ids.length).map((ids) => {
    const each = Math.max(1, Math.ceil(SHOWN_IN_CUT / (ids.length || 1)));
    const shown = ids.flatMap((id) => members(id).slice(0, each)).slice(0, SHOWN_IN_CUT);
    const all = ids.flatMap(members);
    const names = make("p", {}, ...ids.flatMap((id) => [swatch(id), ` ${titled(id)} `]));
    const pictures = make("ul", { className: "photos small" }, ...(hasPicture(shown[0] ?? -1) ? shown.map((point) => tileItem(point, all)) : []));
    if (pictures.firstElementChild) pictures.querySelector("button").tabIndex = 0;
    return make("li", {}, pictures, names);
  });
  element("tree-groups").replaceChildren(...items);
  const done = tree.leaves.length - n;
  const [below, above] = [tree.heights[done - 1] ?? 0, tree.heights[done] ?? tree.heights.at(-1) * 1.08];
  const at = { type: "line", xref: "paper", x0: 0, x1: 1, y0: (below + above) / 2, y1: (below + above) / 2 };
  report.figures.tree.layout.shapes = [{ ...at, line: { color: "var(--accent)", width: 1, dash: "dot" } }];
  draw(element("plot-tree"), report.figures.tree);
}

if (tree) element("tree-cut").addEventListener("input", showCut);

// Duplicates: which copy of each set is kept. Nothing is deleted: an export has the others in a folder of their own.
const nameOfCopy = ({ name, index }) => (map.names ? name : String(index));
const isKeptOf = (number, copy) => (decisions.kept.has(number) ? decisions.kept.get(number) === nameOfCopy(copy) : copy.keep);

function keep(number, copy) {
  decide(`${copy.name.toWellFormed()} is kept of its copies.`, () => {
    if (copy.keep) decisions.kept.delete(number);
    else decisions.kept.set(number, nameOfCopy(copy));
  });
}

function copyItem(number, copy) {
  const point = pointOf.get(copy.index);
  const within = copies[number].images.map(({ index }) => pointOf.get(index)).filter((other) => other !== undefined);
  const picture = point === undefined ? make("span", { className: "name", textContent: copy.name.toWellFormed() }) : tile(point, within);
  const choice = make("button", { type: "button", onclick: () => keep(number, copy) });
  const facts = [copy.name.toWellFormed(), ...fileFacts(copy), ...(copy.keep ? ["Best copy"] : [])];
  const entry = make("li", {}, picture, make("p", {}, ...facts.flatMap((fact) => [fact, make("br")])), choice);
  copy.show = () => {
    choice.textContent = isKeptOf(number, copy) ? "Kept" : "Keep this one";
    choice.setAttribute("aria-label", `${copy.name.toWellFormed()}: ${choice.textContent}`);
    choice.disabled = isKeptOf(number, copy);
    entry.classList.toggle("answered", !choice.disabled);
  };
  copy.show();
  return entry;
}

function copiesItem(number) {
  const { kind, images } = copies[number];
  const title = `${kind === "exact" ? "The same picture" : "Nearly the same"}: ${count(images.length)}`;
  return make("li", {}, make("h3", { textContent: title }), make("ul", { className: "photos copies" }, ...images.map((copy) => copyItem(number, copy))));
}

const drawCopies = () => { for (const { images } of copies) for (const copy of images) copy.show?.(); };

function startDuplicates() {
  if (element("duplicate-groups")) fillList(element("duplicate-groups"), copies.map((_, number) => number), copiesItem);
}

startView();
startMap();
recall();
startDuplicates();
if (element("doubts")) fillList(element("doubts"), doubtful, doubtItem);
await loadPictures();
redraw();
document.head.append(make("script", { textContent: await unzip("plotly") }));
drawFigures();
if (tree) showCut();
document.body.dataset.ready = "true";
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  redraw();
  if (window.Plotly) drawFigures();
});
element("details")?.addEventListener("toggle", () => { if (window.Plotly) drawFigures(); });
