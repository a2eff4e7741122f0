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

// Duplicates: which copy of each group stays. Nothing is deleted: the others are listed, or moved by a script.
const nameOfCopy = ({ name, index }) => (map.names ? name : String(index));
const isDistinct = (copy) => decisions.pairs.some(([kind, name]) => kind === "distinct" && name === nameOfCopy(copy));
const left = ({ images }) => images.filter((copy) => !isDistinct(copy));
const takenOf = (group) => (left(group).length > 1 ? left(group).filter(({ kept }) => !kept) : []);

// What is no duplicate leaves its group; of the others, one is kept.
function partCopy(group, copy) {
  const others = left(group).filter((other) => other !== copy);
  if (!others.some(({ kept }) => kept)) others[0].kept = true;
  const pairs = others.map((other) => ["distinct", nameOfCopy(copy), nameOfCopy(other)]);
  decide(`${copy.name.toWellFormed()} is no duplicate.`, () => decisions.pairs.push(...pairs));
}

function copyItem(group, copy) {
  const point = pointOf.get(copy.index);
  const within = group.images.map(({ index }) => pointOf.get(index)).filter((other) => other !== undefined);
  const picture = point === undefined ? make("span", { className: "name", textContent: copy.name.toWellFormed() }) : tile(point, within);
  const choice = make("button", { type: "button" });
  const show = () => {
    choice.textContent = copy.kept ? "Keep" : "Move away";
    choice.setAttribute("aria-label", `${copy.name.toWellFormed()}: ${choice.textContent}`);
    entry.classList.toggle("answered", !copy.kept);
    entry.hidden = isDistinct(copy);
  };
  const facts = [...fileFacts(copy), ...(copy.keep ? ["Best copy"] : [])];
  // Of an image that is in no group, a file of corrections can say nothing.
  const part = make("button", { type: "button", textContent: "Not a duplicate", hidden: group.images.some(({ index }) => index < 0), onclick: () => partCopy(group, copy) });
  const entry = make("li", {}, picture, make("p", {}, ...facts.flatMap((fact) => [fact, make("br")])), choice, make("div", {}, part));
  copy.show = show;
  choice.onclick = () => { copy.kept = !copy.kept; drawCopies(); };
  show();
  return entry;
}

function copiesItem(number) {
  const group = copies[number];
  const title = `${group.kind === "exact" ? "The same picture" : "Nearly the same"}: ${count(group.images.length)}`;
  const entry = make("li", {}, make("h3", { textContent: title }), make("ul", { className: "photos copies" }, ...group.images.map((copy) => copyItem(group, copy))));
  group.show = () => { entry.hidden = left(group).length < 2; };
  group.show();
  return entry;
}

function drawCopies() {
  if (!element("duplicate-groups")) return;
  for (const group of copies) for (const part of [group, ...group.images]) part.show?.();
  const taken = copies.flatMap(takenOf);
  element("taken-count").textContent = `${count(taken.length)} to move away.`;
  for (const id of ["save-taken", "save-script"]) if (element(id)) element(id).disabled = !taken.length;
}

function keepBest() {
  for (const { images } of copies) for (const copy of images) copy.kept = copy.keep;
  drawCopies();
}

const takenRows = () => copies.flatMap((group, number) => takenOf(group).map((copy) => [number, group.kind, escaped(copy.name), escaped(left(group).find(({ kept }) => kept)?.name ?? "")]));

// A path of a URI, in which bytes that are no text stand as lone surrogates
const decoded = (path) => path.replace(/(%[0-9a-f]{2})+/gi, (part) => {
  try { return decodeURIComponent(part); } catch { return part.replace(/%(..)/g, (_, x) => String.fromCharCode(parseInt(x, 16) + (x < "8" ? 0 : 0xdc00))); }
});

// The script names whole paths, never overwrites a file, and deletes nothing.
function saveScript() {
  const plain = (text) => `'${text.replaceAll("'", "'\\''")}'`;
  const quoted = (text) => (text.isWellFormed() ? plain(text) : `"$(printf '%b' ${plain(bytes(text))})"`);
  const bytes = (text) => text.replaceAll("\\", "\\\\").replace(/[\udc80-\udcff]/gu, (c) => `\\0${byteOf(c).toString(8)}`);
  const from = decoded(new URL(map.folder).pathname).replace(/\/$/, "");
  download("move_duplicates.sh", [
    "#!/bin/sh",
    "# Moves duplicates out of the folder of the photos; nothing is overwritten or deleted.",
    "# To take it back, exchange the two folders.",
    "set -eu",
    `from=${quoted(from)}`,
    `to=${quoted(`${from} (duplicates)`)}`,
    'move() { mkdir -p "$to/$(dirname "./$1")"; mv -n -- "$from/$1" "$to/$1"; }',
    ...copies.flatMap(takenOf).map(({ name }) => `move ${quoted(name)}`),
    "",
  ].join("\n"), "text/x-shellscript");
}

function startDuplicates() {
  if (!element("duplicate-groups")) return;
  for (const { kind, images } of copies) for (const copy of images) copy.kept = kind === "near" || copy.keep;
  fillList(element("duplicate-groups"), copies.map((_, number) => number), copiesItem);
  drawCopies();
  element("keep-best").addEventListener("click", keepBest);
  element("save-taken").addEventListener("click", () => saveTable("duplicates_to_move.csv", [["group", "kind", map.column, "kept"], ...takenRows()]));
  element("save-script")?.addEventListener("click", saveScript);
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
