// The record of the page, its points, their groups, and their small pictures.
const element = (id) => document.getElementById(id);

function make(tag, properties = {}, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}

// A copy of what a template of the page holds
const copyOf = (id) => element(id).content.firstElementChild.cloneNode(true);

// By a loop: `Uint8Array.from` with a function takes many times as long for the pictures of 2,000 photos.
function binary(base64) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i += 1) bytes[i] = text.charCodeAt(i);
  return bytes;
}

const unzipped = new Blob([binary(element("report-data").textContent)]).stream().pipeThrough(new DecompressionStream("gzip"));
const report = JSON.parse(await new Response(unzipped).text());

// A point is a number: its place in the columns, which hold the points cluster by cluster, the typical ones of a
// cluster first. Its row, `about.index`, is its number in the run.
const { map, tree, words } = report;
const TYPES = { f4: Float32Array, i4: Int32Array, u1: Uint8Array };
const unpack = ({ dtype, bytes }) => new TYPES[dtype](binary(bytes).buffer);
const about = Object.fromEntries(Object.entries(map.columns).map(([name, packed]) => [name, unpack(packed)]));
const everyPoint = Array.from({ length: map.n_points }, (_, point) => point);
const pointOf = new Map(Array.from(about.index, (index, point) => [index, point]));
const pointsOf = (rows) => rows.map((row) => pointOf.get(row)).filter((point) => point !== undefined);
const nameOf = (point) => (map.names ? map.names[point] : String(about.index[point]));
const capital = (word) => word[0].toUpperCase() + word.slice(1);
const titleOf = (point) => (map.names ? nameOf(point).toWellFormed() : `${capital(words.point)} ${nameOf(point)}`);
const count = (n, one = words.point, many = `${one}s`) => `${n.toLocaleString("en")} ${n === 1 ? one : many}`;
const percent = (share) => `${Math.round(100 * share)} %`;
const { compare } = new Intl.Collator("en", { numeric: true });

// Groups: the clusters of the run, and those that a person makes, whose numbers are below NONE, which holds what is in
// no group.
const NONE = -1;
const isMade = (id) => id < NONE;
const found = new Int32Array(map.n_points); // the group of each point when the page was made
const groups = new Map(map.clusters.map((cluster) => [cluster.id, { ...cluster }]));
map.clusters.forEach((cluster, rank) => found.fill(cluster.id, rank ? map.clusters[rank - 1].stop : 0, cluster.stop));
if (!groups.has(NONE)) groups.set(NONE, { id: NONE, size: 0, color: "var(--faint)" });
const groupOf = found.slice(); // the group of each point now
let membersOf = new Map(); // group -> its points, the typical ones first; the largest group first
const members = (id) => membersOf.get(id) ?? [];

function titled(id) {
  if (id === NONE) return `In no ${words.cluster}`;
  return groups.get(id)?.name || (isMade(id) ? `New ${words.cluster} ${NONE - id}` : `${capital(words.cluster)} ${id}`);
}

function swatch(id) {
  const mark = make("i", { className: "swatch" });
  mark.style.setProperty("--c", groups.get(id).color);
  return mark;
}

// The file of an image; null for no file. A byte of its name that is no text stands there as a lone surrogate.
function fileOf(point) {
  if (!map.folder || !map.names) return null;
  const byte = (character) => `%${(character.charCodeAt(0) - 0xdc00).toString(16)}`;
  return map.folder + nameOf(point).replace(/[^/\udc80-\udcff]+/gu, encodeURIComponent).replace(/[\udc80-\udcff]/gu, byte);
}

// What is known of the file of an image: date, folder, size
function fileFacts({ name, taken, width, height, bytes }) {
  const folder = name.split("/").slice(0, -1).join("/");
  const size = bytes < 1e6 ? `${Math.ceil(bytes / 1000)} kB` : `${(bytes / 1e6).toFixed(1)} MB`;
  const date = taken && `Taken ${taken.replace("T", " ").slice(0, 16)}`;
  return [date, folder && `In ${folder.toWellFormed()}`, width && `${width} × ${height}, ${size}`].filter(Boolean);
}

// What is said of a point beside its picture: all lines, the group first
function factsOf(point) {
  const lines = [titled(groupOf[point])];
  if (about.label) lines.push(`Label: ${map.label_names[about.label[point]].toWellFormed()}`);
  if (groupOf[point] !== found[point]) lines.push(`Before: ${titled(found[point])}`);
  else if (about.decided[point] || isAnswered(point)) lines.push("Confirmed by a person");
  else if (about.probability) {
    const other = about.second_cluster[point];
    const second = about.second_probability[point];
    const instead = groups.has(other) && second >= 0.005 ? `; ${titled(other)} ${percent(second)}` : "";
    lines.push(`Belongs here: ${percent(about.probability[point])}${instead}`);
  } else if (map.folder === null || !map.names) lines.push(`Distance ${Number(about.distance[point].toPrecision(4))}`);
  if (about.outlier[point]) lines.push("Outlier: unlike all others");
  const size = map.taken && { width: about.width[point], height: about.height[point], bytes: about.bytes[point] };
  return size ? [...lines, ...fileFacts({ name: nameOf(point), taken: map.taken[point], ...size })] : lines;
}

const inLines = (texts) => texts.map((text, i) => make(i ? "div" : "strong", { textContent: text }));

// Small pictures are parts of sheets: the first one has many, another one larger ones of those that cards show.
const sheets = map.sheets.map((sheet) => ({ ...sheet, image: new Image() }));

// The part of a sheet with a point's picture: left and top in pixels; null for none
function partOf(point) {
  const sheet = sheets.findLast(({ column }) => about[column][point] >= 0);
  if (!sheet) return null;
  const place = about[sheet.column][point];
  return { sheet, left: (place % sheet.columns) * sheet.width, top: Math.floor(place / sheet.columns) * sheet.height };
}

// The picture of a point as an element; null for none
function picture(point) {
  const at = partOf(point);
  if (!at) return null;
  const { columns, rows, width, height, image } = at.sheet;
  const part = make("span", { className: width > 40 ? "part" : "part pixels" });
  const place = (start, side, n) => (n > 1 ? `${(100 * start) / (side * (n - 1))}%` : "0");
  part.style.background = `url("${image.src}") ${place(at.left, width, columns)} ${place(at.top, height, rows)} / ${100 * columns}% ${100 * rows}%`;
  part.style.aspectRatio = `${width} / ${height}`;
  return part;
}

// Shows the file of a point in a box; as long as it is not loaded, its small picture, or else its name. Returns it.
function showFile(box, point) {
  box.replaceChildren(picture(point) ?? make("span", { className: "name", textContent: titleOf(point) }));
  if (!fileOf(point)) return null;
  const image = make("img", { alt: "", loading: "lazy", decoding: "async", src: fileOf(point) });
  image.onload = () => { if (image.isConnected) box.replaceChildren(image); };
  box.append(image);
  return image;
}

// A button with the picture of a point, or with its name; `within` are the points that the arrow keys go through.
function tile(point, within, isLarge = false) {
  const button = make("button", { className: "tile", type: "button", title: titleOf(point), tabIndex: -1 });
  button.setAttribute("aria-label", `${titleOf(point)}, ${titled(groupOf[point])}`);
  button.within = within;
  button.dataset.point = about.index[point];
  button.style.setProperty("--c", groups.get(groupOf[point]).color);
  if (isLarge || !partOf(point)) showFile(button, point);
  else button.append(picture(point));
  markTile(button);
  return button;
}

const tileItem = (point, within) => make("li", {}, tile(point, within));
const BATCH = 120; // items that are added at once
const ends = new Set(); // of lists that have more

function fillAhead() { for (const end of [...ends]) if (end.getBoundingClientRect().top < innerHeight + 1200) end.more(); }
addEventListener("scroll", fillAhead, { passive: true });

// Fills a list with an item for each point, a batch at a time as the end of the list comes into view.
function fillList(list, points, item = (point) => tileItem(point, points)) {
  const end = make("li", { className: "end" });
  let next = 0;
  end.more = () => {
    end.before(...points.slice(next, (next += BATCH)).map(item));
    ends[end.isConnected && next < points.length ? "add" : "delete"](end);
    if (next >= points.length) end.remove();
  };
  const before = list.childElementCount; // at least as many again, so that the page does not jump
  list.replaceChildren(end);
  do end.more(); while (next < Math.min(before, points.length));
  const first = list.querySelector("button");
  if (first) first.tabIndex = 0;
}

// The page is there before its pictures are; the promise is kept when the map can have them as well.
function loadPictures() {
  for (const { uri, image } of sheets) {
    const [, kind, bytes] = /^data:(.*);base64,(.*)$/.exec(uri);
    image.src = URL.createObjectURL(new Blob([binary(bytes)], { type: kind }));
  }
  return Promise.all(sheets.map(({ image }) => image.decode()));
}
