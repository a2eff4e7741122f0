// The record of the page, its points, their groups, and their small pictures.
const element = (id) => document.getElementById(id);

function make(tag, properties = {}, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}

const binary = (base64) => Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));

// The text that an element holds compressed
const unzip = (id) => new Response(new Blob([binary(element(id).textContent)]).stream().pipeThrough(new DecompressionStream("gzip"))).text();

const report = JSON.parse(await unzip("report-data"));

// A copy of a value in which each "var(--name)" has become its value in the current theme.
function themed(value) {
  if (typeof value === "string") {
    const name = /^var\((--[a-z]+)\)$/.exec(value);
    return name ? getComputedStyle(document.documentElement).getPropertyValue(name[1]).trim() : value;
  }
  if (Array.isArray(value)) return value.map(themed);
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, themed(item)]));
}

// A point is a number: its place in the columns, which hold the points cluster by cluster, the typical ones of a
// cluster first.
const { map, words } = report;
const TYPES = { f4: Float32Array, i4: Int32Array, u1: Uint8Array };
const unpack = ({ dtype, bytes }) => new TYPES[dtype](binary(bytes).buffer);
const about = Object.fromEntries(Object.entries(map.columns).map(([name, packed]) => [name, unpack(packed)]));
const everyPoint = Array.from({ length: map.n_points }, (_, point) => point);
const pointOf = new Map(Array.from(about.index, (index, point) => [index, point]));
const nameOf = (point) => (map.names ? map.names[point] : String(about.index[point]));
const capital = (word) => word[0].toUpperCase() + word.slice(1);
// The byte of a name that is no text: it stands in it as a lone surrogate.
const byteOf = (character) => character.charCodeAt(0) - 0xdc00;
const titleOf = (point) => (map.names ? nameOf(point).toWellFormed() : `${capital(words.point)} ${nameOf(point)}`);
const count = (n, noun = words.point) => `${n.toLocaleString("en")} ${noun}${n === 1 ? "" : "s"}`;
const percent = (share) => `${Math.round(100 * share)} %`;

// Groups: the clusters of the run, and those that a person makes. NONE holds what is in no group.
const NONE = -1;
const found = new Int32Array(map.n_points); // the group of each point when the page was made
const groups = new Map(map.clusters.map((cluster) => [cluster.id, { ...cluster }]));
map.clusters.forEach((cluster, rank) => found.fill(cluster.id, rank ? map.clusters[rank - 1].stop : 0, cluster.stop));
const groupOf = found.slice(); // the group of each point now
let membersOf = new Map(); // group -> its points, the typical ones first; the largest group first
const titled = (id) => (id === NONE ? `In no ${words.cluster}` : groups.get(id).name || `${capital(words.cluster)} ${id}`);
const lookOf = (id) => groups.get(id) ?? { color: "var(--faint)", symbol: "circle" };
const members = (id) => membersOf.get(id) ?? [];

function swatch(id) {
  const mark = make("i", { className: `swatch ${lookOf(id).symbol}` });
  mark.style.setProperty("--c", lookOf(id).color);
  return mark;
}

// The file of an image; null for no file.
function fileOf(point) {
  if (!map.folder || !map.names) return null;
  return map.folder + nameOf(point).replace(/[^/\udc80-\udcff]+/gu, encodeURIComponent).replace(/[\udc80-\udcff]/gu, (c) => `%${byteOf(c).toString(16)}`);
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
  else if (about.decided[point] || checked(point)) lines.push("Confirmed by a person");
  else if (about.probability) {
    const other = about.runner_up[point];
    const second = about.runner_up_probability[point];
    const instead = groups.has(other) && second >= 0.005 ? `; ${titled(other)} ${percent(second)}` : "";
    lines.push(`Belongs here: ${percent(about.probability[point])}${instead}`);
  } else if (map.folder === null || !map.names) lines.push(`Distance ${Number(about.distance[point].toPrecision(4))}`);
  if (about.outlier[point]) lines.push("Outlier: unlike all others");
  const size = map.taken && { width: about.width[point], height: about.height[point], bytes: about.bytes[point] };
  return size ? [...lines, ...fileFacts({ name: nameOf(point), taken: map.taken[point], ...size })] : lines;
}

const inLines = (texts) => texts.map((text, i) => make(i ? "div" : "strong", { textContent: text }));

// Small pictures: those that stand on the page, or else a part of the sheet that holds the others
const sheet = new Image();
const tileOf = new Map(); // point -> the picture of it that stands on the page
const hasPicture = (point) => about.sample[point] >= 0 && map.sprite !== null;

// The part of the sheet with a point's picture: left and top in pixels
function partOf(point) {
  const { columns, width, height } = map.sprite;
  return [(about.sample[point] % columns) * width, Math.floor(about.sample[point] / columns) * height];
}

// The picture of a point as an element; null for none
function picture(point) {
  const standing = tileOf.get(point);
  if (standing) return make("img", { src: standing.src, alt: "", className: standing.className });
  if (!hasPicture(point)) return null;
  const { columns, rows, width, height } = map.sprite;
  const [left, top] = partOf(point);
  const part = make("span", { className: width > 40 ? "part" : "part pixels" });
  const place = (at, side, n) => (n > 1 ? `${(100 * at) / (side * (n - 1))}%` : "0");
  part.style.backgroundPosition = `${place(left, width, columns)} ${place(top, height, rows)}`;
  part.style.aspectRatio = `${width} / ${height}`;
  return part;
}

// A button with the picture of a point, or with its name; `within` are the points that the arrow keys go through.
function tile(point, within) {
  const button = make("button", { className: "tile", type: "button", title: titleOf(point), tabIndex: -1 });
  button.setAttribute("aria-label", `${titleOf(point)}, ${titled(groupOf[point])}`);
  button.within = within;
  button.dataset.point = about.index[point];
  button.style.setProperty("--c", lookOf(groupOf[point]).color);
  const shown = picture(point);
  button.append(shown ?? make("span", { className: "name", textContent: titleOf(point) }));
  if (!shown && fileOf(point)) {
    const image = make("img", { alt: "", loading: "lazy", decoding: "async" });
    image.onload = () => button.replaceChildren(image);
    image.src = fileOf(point);
  }
  return button;
}

const tileItem = (point, within) => make("li", {}, tile(point, within));
const BATCH = 120; // tiles that are added at once
const ends = new Set(); // of lists that have more
addEventListener("scroll", () => {
  for (const end of [...ends]) if (end.getBoundingClientRect().top < innerHeight + 1200) end.more();
}, { passive: true });

// Fills a list with an item for each point, a batch at a time as the end of the list comes into view.
function fillList(list, points, item = (point) => tileItem(point, points)) {
  const end = make("li", { className: "end" });
  let next = 0;
  end.more = () => {
    end.before(...points.slice(next, (next += BATCH)).map(item));
    ends[end.isConnected && next < points.length ? "add" : "delete"](end);
    if (next >= points.length) end.remove();
  };
  list.replaceChildren(end);
  end.more();
  const first = list.querySelector("button");
  if (first) first.tabIndex = 0;
}

async function loadPictures() {
  if (!map.sprite) return;
  const [, kind, bytes] = /^data:(.*);base64,(.*)$/.exec(map.sprite.uri);
  sheet.src = URL.createObjectURL(new Blob([binary(bytes)], { type: kind }));
  await sheet.decode();
  const { style } = document.documentElement;
  style.setProperty("--sheet", `url("${sheet.src}")`);
  style.setProperty("--sheet-size", `${100 * map.sprite.columns}% ${100 * map.sprite.rows}%`);
}
