// The large view of one image, its cluster, and the images nearest to it: in the features, or on the map for one of
// which only the place there is known
const dialog = element("view");
let current = -1;
let around = []; // what the arrow keys go through

const inFeatures = map.nearest && unpack(map.nearest);

function nearest(point) {
  const place = about.sample[point];
  if (inFeatures && place >= 0) return [...inFeatures.subarray(place * map.n_nearest, (place + 1) * map.n_nearest)];
  return nearestOnMap(point, 8);
}

function nearestOnMap(point, count) {
  const distance = (other) => axes.reduce((sum, axis) => sum + (axis[other] - axis[point]) ** 2, 0);
  const best = [];
  for (let other = 0; other < map.n_points; other++) {
    const far = distance(other);
    if (other === point || (best.length === count && far >= best.at(-1)[0])) continue;
    best.splice(best.findIndex(([d]) => d > far) >>> 0, 0, [far, other]);
    best.length = Math.min(best.length, count);
  }
  return best.map(([, other]) => other);
}

// The file of an image; null for no file, and for a name that is not valid Unicode, which has no URI.
function fileOf(point) {
  if (!map.folder || !map.names || !nameOf(point).isWellFormed()) return null;
  return map.folder + nameOf(point).split("/").map(encodeURIComponent).join("/");
}

// A thumbnail, or the small file itself, or else the name
function fillTile(button, point) {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 56;
  drawThumbnail(canvas, point);
  if (!canvas.hidden) return button.replaceChildren(canvas);
  button.textContent = titleOf(point);
  const uri = fileOf(point);
  if (!uri) return undefined;
  const image = Object.assign(new Image(), { alt: "", width: 56, height: 56, decoding: "async" });
  image.onload = () => button.replaceChildren(image);
  image.src = uri;
  return undefined;
}

function tiles(list, shown, within) {
  list.replaceChildren(...shown.map((point) => {
    const entry = document.createElement("li");
    const button = document.createElement("button");
    button.className = "tile";
    button.title = `${titleOf(point)}, cluster ${idOf(point)}`;
    button.style.setProperty("--c", map.clusters[rankOf[point]].color);
    fillTile(button, point);
    button.setAttribute("aria-label", button.title);
    button.addEventListener("click", () => open(point, within ?? members(rankOf[point])));
    entry.append(button);
    return entry;
  }));
}

function open(point, list) {
  [current, around] = [point, list];
  const rank = rankOf[point];
  const uri = fileOf(point);
  const large = element("view-large");
  const canvas = element("view-canvas");
  const link = element("view-file");
  drawThumbnail(canvas, point);
  link.hidden = true;
  large.replaceChildren(canvas.hidden ? "No picture in this file" : canvas);
  if (uri) {
    const image = Object.assign(new Image(), { alt: titleOf(point) });
    image.onload = () => {
      if (current !== point) return;
      large.replaceChildren(image);
      [link.href, link.hidden] = [uri, false];
    };
    image.src = uri;
  }
  element("view-name").textContent = titleOf(point);
  const facts = element("view-facts");
  facts.replaceChildren();
  describe(facts, point);
  if (corrections.has(point)) line(facts, "div", `Correction: ${correctionText(corrections.get(point))}`);
  element("view-nearest-title").textContent = inFeatures && about.sample[point] >= 0 ? "Most alike" : "Nearest on the map";
  tiles(element("view-nearest"), nearest(point));
  element("view-cluster-title").textContent = `Cluster ${titled(map.clusters[rank])}, ${count(map.clusters[rank].size)}: most typical`;
  tiles(element("view-members"), members(rank).slice(0, 8));
  element("view-move").value = "";
  hideCard();
  if (!dialog.open) dialog.showModal();
}

function step(by) { open(around[(around.indexOf(current) + by + around.length) % around.length], around); }

// The most typical image of the next or last cluster; one may have no drawn member
function stepCluster(by) {
  const n = map.clusters.length;
  let rank = rankOf[current];
  do rank = (rank + by + n) % n; while (startOf(rank) === map.clusters[rank].stop);
  open(startOf(rank), members(rank));
}

// Selected images, by a lasso or by name, corrections of their clusters, and names of clusters
const MAX_TILES = 60;
let selected = [];
const isSelected = new Uint8Array(map.n_points);
const corrections = new Map(); // point -> the cluster that it belongs to, or "" for another one
const names = new Map(); // a cluster's number -> the name that was typed
const oldNames = new Map(map.clusters.map((cluster) => [cluster.id, cluster.name]));
let saved = true;
const count = (n) => `${n.toLocaleString("en")} ${map.noun}${n === 1 ? "" : "s"}`;

function correctionText(to) { return to === "" ? "wrong cluster" : `move to cluster ${to}`; }

function select(list) {
  selected = list;
  isSelected.fill(0);
  for (const point of list) isSelected[point] = 1;
  element("selection").hidden = !list.length;
  const more = list.length > MAX_TILES ? `; the first ${MAX_TILES} are shown` : "";
  element("selection-count").textContent = `${count(list.length)} selected${more}`;
  tiles(element("selection-tiles"), list.slice(0, MAX_TILES), list);
  redraw();
}

function correct(list, to) {
  for (const point of list) {
    if (to === String(idOf(point))) corrections.delete(point);
    else corrections.set(point, to);
  }
  showCorrections();
  if (dialog.open) open(current, around);
}

function showCorrections() {
  saved = !corrections.size && !names.size;
  element("corrections").hidden = saved;
  const named = names.size ? `, ${names.size} cluster${names.size === 1 ? "" : "s"} named` : "";
  element("corrections-count").textContent = `${count(corrections.size)} corrected${named}`;
}

// The name of a cluster, everywhere on the page
function rename(field) {
  const id = Number(field.dataset.cluster);
  field.value = field.value.trim() || field.defaultValue;
  if (field.value === field.defaultValue) names.delete(id);
  else names.set(id, field.value);
  const name = names.get(id) ?? oldNames.get(id);
  for (const cluster of [...map.clusters, ...(tree?.leaves ?? [])]) if (cluster.id === id) cluster.name = name;
  for (const shown of document.querySelectorAll(`[data-name="${id}"]`)) shown.textContent = name;
  listClusters();
  if (tree && window.Plotly) showCut();
  redraw();
  showCorrections();
}

// The clusters that an image can be moved to
function listClusters() {
  const choices = map.clusters.filter((cluster) => cluster.id >= 0).sort((a, b) => a.id - b.id);
  for (const id of ["move", "view-move"]) {
    element(id).replaceChildren(new Option("cluster …", ""), ...choices.map((cluster) => new Option(titled(cluster), cluster.id)));
  }
}

// A name as in assignments.csv: a byte that is not UTF-8 and a carriage return as \xNN, a backslash as two
const escaped = (name) => name.replaceAll("\\", "\\\\").replaceAll("\r", "\\x0d").replace(/[\udc80-\udcff]/gu, (c) => `\\x${(c.charCodeAt(0) - 0xdc00).toString(16)}`);

function save(file, rows) {
  const cell = (value) => (/[",\r\n]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);
  const text = rows.map((row) => row.map((value) => cell(String(value))).join(",")).join("\n");
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([`${text}\n`], { type: "text/csv" }));
  link.download = file;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function pressedKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
  const inView = { ArrowRight: () => step(1), ArrowLeft: () => step(-1), ArrowDown: () => stepCluster(1), ArrowUp: () => stepCluster(-1) };
  const inPage = { "/": () => element("find").focus(), Escape: () => select([]), "+": () => zoomBy(1.5), "-": () => zoomBy(1 / 1.5), 0: resetCamera };
  const action = (dialog.open ? inView : inPage)[event.key];
  if (!action) return;
  event.preventDefault();
  action();
}

function startSelection() {
  listClusters();
  for (const field of document.querySelectorAll("[data-cluster]")) field.addEventListener("change", () => rename(field));
  const on = (id, kind, action) => element(id).addEventListener(kind, action);
  on("copy", "click", async ({ target }) => {
    try {
      await navigator.clipboard.writeText(selected.map(nameOf).join("\n"));
      target.textContent = "Copied";
    } catch {
      target.textContent = "The browser refuses: save them";
    }
    setTimeout(() => { target.textContent = "Copy names"; }, 2000);
  });
  on("save", "click", () => save("selected.csv", [[map.noun, "cluster"], ...selected.map((point) => [escaped(nameOf(point)), idOf(point)])]));
  on("clear", "click", () => { select([]); element("find").value = ""; });
  on("wrong", "click", () => correct(selected, ""));
  on("move", "change", ({ target }) => { if (target.value) correct(selected, target.value); target.value = ""; });
  on("view-wrong", "click", () => correct([current], ""));
  on("view-move", "change", ({ target }) => { if (target.value) correct([current], target.value); });
  on("view-back", "click", () => step(-1));
  on("view-next", "click", () => step(1));
  on("view-cluster", "click", () => { dialog.close(); select(members(rankOf[current])); });
  on("undo", "click", () => {
    corrections.clear();
    for (const field of document.querySelectorAll("[data-cluster]")) {
      field.value = field.defaultValue;
      rename(field);
    }
    correct([], "");
  });
  on("save-corrections", "click", () => {
    const rows = [...corrections].map(([point, to]) => [escaped(nameOf(point)), idOf(point), to === "" ? "wrong" : "move", to]);
    const named = [...names].map(([id, name]) => ["", id, "name", escaped(name)]);
    save("corrections.csv", [[map.noun, "cluster", "correction", "to"], ...rows, ...named]);
    saved = true;
  });
  on("find", "input", ({ target }) => {
    const words = target.value.trim().toLowerCase();
    select(words ? Array.from(rankOf.keys()).filter((point) => nameOf(point).toLowerCase().includes(words)) : []);
  });
  on("find", "keydown", (event) => {
    if (event.key === "Enter" && selected.length) open(selected[0], selected);
    if (event.key === "Escape") { select([]); event.target.value = ""; event.target.blur(); }
  });
  const pointOf = new Map(Array.from(about.index, (index, point) => [index, point]));
  for (const tile of document.querySelectorAll("[data-point]")) {
    const point = pointOf.get(Number(tile.dataset.point));
    tile.disabled = point === undefined; // not drawn
    if (tile.disabled) continue;
    tile.addEventListener("click", () => open(point, members(rankOf[point])));
    const picture = tile.querySelector("img");
    if (picture) tileOf.set(point, picture);
  }
  addEventListener("keydown", pressedKey);
  addEventListener("beforeunload", (event) => { if (!saved) event.preventDefault(); });
}
