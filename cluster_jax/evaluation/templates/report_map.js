const element = (id) => document.getElementById(id);

// The text that an element holds compressed
async function unzip(id) {
  const bytes = Uint8Array.from(atob(element(id).textContent), (c) => c.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

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

// The map. A point is a number: its place in the columns, which hold the points cluster by cluster, the typical ones
// of a cluster first. A cluster is its rank by size.
const map = report.map;
const TYPES = { f4: Float32Array, i4: Int32Array, u1: Uint8Array };
const unpack = ({ dtype, bytes }) => new TYPES[dtype](Uint8Array.from(atob(bytes), (c) => c.charCodeAt(0)).buffer);
const about = Object.fromEntries(Object.entries(map.columns).map(([name, packed]) => [name, unpack(packed)]));
const axes = map.axes.map(unpack);
const startOf = (rank) => (rank ? map.clusters[rank - 1].stop : 0);
const rankOf = new Uint32Array(map.n_points);
map.clusters.forEach((cluster, rank) => rankOf.fill(rank, startOf(rank), cluster.stop));
const titled = (cluster) => (cluster.name ? `${cluster.id} (${cluster.name})` : String(cluster.id));
const idOf = (point) => map.clusters[rankOf[point]].id;
const nameOf = (point) => (map.names ? map.names[point] : String(about.index[point]));
const titleOf = (point) => (map.names ? nameOf(point) : `${map.noun[0].toUpperCase()}${map.noun.slice(1)} ${nameOf(point)}`);
const members = (rank) => Array.from({ length: map.clusters[rank].stop - startOf(rank) }, (_, i) => startOf(rank) + i);

const plot = element("plot-map");
const hidden = new Uint8Array(map.clusters.length); // clusters switched off in the legend
const [pixelX, pixelY] = [new Float32Array(map.n_points), new Float32Array(map.n_points)];
const home = { zoom: 1, x: 0, y: 0, yaw: 0, pitch: 0 };
const camera = { ...home, solid: false };
const center = [0, 0, 0];
const extent = axes.map((axis, d) => {
  const [low, high] = axis.reduce(([a, b], x) => [Math.min(a, x), Math.max(b, x)], [Infinity, -Infinity]);
  center[d] = (low + high) / 2;
  return high - low || 1;
});
const pointSize = map.n_points > 5000 ? 3 : map.n_points > 800 ? 5 : 7;
const NAMES_IN_LARGE_TYPE = 30;
const markers = new Map(); // pixels of the clusters' markers
let ratio = 1; // device pixels per pixel
let lasso = null; // the corners of a lasso while it is drawn
let pending = 0;

// Pixels are an affine function of the axes: the camera looks along the third one until it is turned.
function projection() {
  const [width, height] = [plot.clientWidth, plot.clientHeight];
  const room = camera.solid ? Math.min(width, height) / Math.hypot(...extent) : Math.min(width / extent[0], height / extent[1]);
  const scale = 0.92 * room * camera.zoom;
  const [yaw, pitch] = camera.solid ? [camera.yaw, camera.pitch] : [0, 0];
  const right = [Math.cos(yaw), 0, Math.sin(yaw)].map((x) => x * scale);
  const up = [Math.sin(pitch) * Math.sin(yaw), Math.cos(pitch), -Math.sin(pitch) * Math.cos(yaw)].map((x) => x * scale);
  const dot = (row, at) => row.reduce((sum, x, d) => sum + x * at[d], 0);
  const left = width / 2 + camera.x - dot(right, center);
  const top = height / 2 + camera.y + dot(up, center);
  return { right, up, left, top, place: (at) => [left + dot(right, [...at, 0]), top - dot(up, [...at, 0])] };
}

// Whoever reads the pixels of the points computes them: the last change may not have been drawn yet.
function project({ right, up, left, top } = projection()) {
  const [x, y, z] = axes;
  for (let i = 0; i < map.n_points; i++) {
    const depth = z ? z[i] : 0;
    pixelX[i] = left + right[0] * x[i] + right[2] * depth;
    pixelY[i] = top - up[0] * x[i] - up[1] * y[i] - up[2] * depth;
  }
}

// The pixels of a marker: their offsets in the canvas, how much they cover, and their color
function markerOf(rank, hollow) {
  const key = 2 * rank + hollow;
  if (markers.has(key)) return markers.get(key);
  const { color, symbol } = map.clusters[rank];
  const side = Math.ceil((pointSize + 2) * ratio);
  const pen = new OffscreenCanvas(side, side).getContext("2d");
  pen.translate(side / 2, side / 2);
  pen.scale(ratio, ratio);
  const r = pointSize / 2;
  if (symbol === "circle") pen.arc(0, 0, r, 0, 2 * Math.PI);
  else {
    if (symbol === "diamond") pen.rotate(Math.PI / 4);
    pen.rect(-0.9 * r, -0.9 * r, 1.8 * r, 1.8 * r);
  }
  if (hollow) pen.stroke();
  else pen.fill();
  const cover = pen.getImageData(0, 0, side, side).data.filter((_, k) => k % 4 === 3);
  const inside = [...cover.keys()].filter((k) => cover[k]);
  const marker = {
    side, color: rgbOf(color), offsets: inside.map((k) => 4 * ((k % side) + Math.floor(k / side) * plot.width)), cover: inside.map((k) => cover[k] / 255),
  };
  markers.set(key, marker);
  return marker;
}

function rgbOf(color) {
  const pen = new OffscreenCanvas(1, 1).getContext("2d");
  pen.fillStyle = themed(color);
  pen.fillRect(0, 0, 1, 1);
  return pen.getImageData(0, 0, 1, 1).data;
}

// Pixels are written one by one: of 100,000 markers, a canvas draws a few in each frame.
function drawPoints(image, strength, wanted) {
  const pixels = image.data;
  for (let rank = 0; rank < map.clusters.length; rank++) {
    if (hidden[rank]) continue;
    const pictures = [markerOf(rank, 0), markerOf(rank, 1)];
    for (let i = startOf(rank); i < map.clusters[rank].stop; i++) {
      if (wanted !== undefined && isSelected[i] !== wanted) continue;
      const { side, color, offsets, cover } = pictures[about.outlier[i]];
      const [x, y] = [Math.round(pixelX[i] * ratio - side / 2), Math.round(pixelY[i] * ratio - side / 2)];
      if (x < 0 || y < 0 || x + side > image.width || y + side > image.height) continue;
      const corner = 4 * (y * image.width + x);
      for (let k = 0; k < offsets.length; k++) {
        const at = corner + offsets[k];
        const share = cover[k] * strength;
        pixels[at] += (color[0] - pixels[at]) * share;
        pixels[at + 1] += (color[1] - pixels[at + 1]) * share;
        pixels[at + 2] += (color[2] - pixels[at + 2]) * share;
      }
    }
  }
}

function drawMap() {
  pending = 0;
  const size = [plot.clientWidth, plot.clientHeight].map((side) => Math.round(side * devicePixelRatio));
  if (!size[0] || !size[1]) return;
  if (plot.width !== size[0] || plot.height !== size[1] || ratio !== devicePixelRatio) {
    [plot.width, plot.height] = size;
    ratio = devicePixelRatio;
    markers.clear();
  }
  const { place, ...rows } = projection();
  project(rows);
  const pen = plot.getContext("2d");
  const image = pen.createImageData(plot.width, plot.height);
  new Uint32Array(image.data.buffer).fill(new Uint32Array(rgbOf("var(--surface)").buffer)[0]);
  if (selected.length) {
    drawPoints(image, 0.15, 0);
    drawPoints(image, 1, 1);
  } else drawPoints(image, 0.8);
  pen.putImageData(image, 0, 0);
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  const named = map.clusters.filter((cluster, rank) => cluster.at && !hidden[rank]);
  pen.font = `700 ${named.length > NAMES_IN_LARGE_TYPE ? 12 : 15}px ${themed("var(--sans)")}`;
  [pen.textAlign, pen.lineJoin, pen.lineWidth] = ["center", "round", 3];
  [pen.fillStyle, pen.strokeStyle] = themed(["var(--ink)", "var(--paper)"]);
  for (const cluster of named) {
    const name = cluster.name && named.length <= NAMES_IN_LARGE_TYPE ? `${cluster.id} ${cluster.name}` : String(cluster.id);
    let [x, y] = place(cluster.at);
    const half = pen.measureText(name).width / 2 + 4;
    if (x > 0 && x < plot.clientWidth) x = Math.max(half, Math.min(x, plot.clientWidth - half)); // not cut off at the edge
    pen.strokeText(name, x, y - 4);
    pen.fillText(name, x, y - 4);
  }
  if (!lasso) return;
  [pen.strokeStyle, pen.lineWidth] = [themed("var(--accent)"), 1.5];
  pen.beginPath();
  for (const [x, y] of lasso) pen.lineTo(x, y);
  pen.closePath();
  pen.stroke();
}

// However often the map changes, it is drawn once for each frame.
function redraw() { pending ||= requestAnimationFrame(drawMap); }

// The point at a place of the map, or the nearest one within a few pixels; -1 for none.
function pointAt(x, y, reach) {
  project();
  let [best, found] = [reach ** 2, -1];
  for (let i = 0; i < map.n_points; i++) {
    const far = (pixelX[i] - x) ** 2 + (pixelY[i] - y) ** 2;
    if (far <= best && !hidden[rankOf[i]]) [best, found] = [far, i];
  }
  return found;
}

// The points inside of a polygon: a ray from such a point crosses the sides an odd number of times.
function pointsInside(corners) {
  project();
  const found = [];
  for (let i = 0; i < map.n_points; i++) {
    if (hidden[rankOf[i]]) continue;
    const [x, y] = [pixelX[i], pixelY[i]];
    let inside = false;
    let [x0, y0] = corners.at(-1);
    for (const [x1, y1] of corners) {
      if (y1 > y !== y0 > y && x < x1 + ((y - y1) * (x0 - x1)) / (y0 - y1)) inside = !inside;
      [x0, y0] = [x1, y1];
    }
    if (inside) found.push(i);
  }
  return found;
}

function zoomAt(x, y, factor) {
  const [dx, dy] = [x - plot.clientWidth / 2, y - plot.clientHeight / 2];
  const zoom = Math.min(Math.max(camera.zoom * factor, 0.5), 500);
  camera.x = dx - ((dx - camera.x) * zoom) / camera.zoom;
  camera.y = dy - ((dy - camera.y) * zoom) / camera.zoom;
  camera.zoom = zoom;
  redraw();
}

const zoomBy = (factor) => zoomAt(plot.clientWidth / 2, plot.clientHeight / 2, factor);
function resetCamera() { Object.assign(camera, home); redraw(); }

// A mouse selects by a lasso, or moves the map; on a touch screen dragging scrolls the page until one of them is chosen.
const mode = () => document.querySelector("input[name=drag]:checked")?.value;
const pointers = new Map(); // fingers or buttons that are down -> where
let start = null; // where the first one went down; null once another did

function placeOf(event) {
  const box = plot.getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top];
}

function pressed(event) {
  if (event.button) return;
  pointers.set(event.pointerId, placeOf(event));
  start = pointers.size === 1 ? placeOf(event) : null;
  lasso = start && mode() === "select" ? [start] : null;
  hideCard();
}

function moved(event) {
  const before = pointers.get(event.pointerId);
  if (!before) return;
  const [x, y] = placeOf(event);
  const [dx, dy] = [x - before[0], y - before[1]];
  const other = [...pointers].find(([id]) => id !== event.pointerId)?.[1];
  pointers.set(event.pointerId, [x, y]);
  if (other) {
    const apart = (at) => Math.hypot(at[0] - other[0], at[1] - other[1]) || 1;
    zoomAt(other[0], other[1], apart([x, y]) / apart(before));
  } else if (lasso) lasso.push([x, y]);
  else if (mode() === "move" && camera.solid) [camera.yaw, camera.pitch] = [camera.yaw - dx / 150, camera.pitch + dy / 150];
  else if (mode() === "move") [camera.x, camera.y] = [camera.x + dx, camera.y + dy];
  redraw();
}

function released(event) {
  if (!pointers.delete(event.pointerId)) return;
  const [x, y] = placeOf(event);
  const corners = lasso;
  lasso = null;
  redraw();
  if (event.type === "pointercancel" || !start) return;
  const isClick = Math.hypot(x - start[0], y - start[1]) < 5 && (corners?.length ?? 0) < 10;
  if (!isClick && corners) return select(event.shiftKey ? [...new Set([...selected, ...pointsInside(corners)])] : pointsInside(corners));
  const point = isClick ? pointAt(x, y, event.pointerType === "touch" ? 20 : 8) : -1;
  if (point >= 0) open(point, members(rankOf[point]));
}

function turned(event) {
  const pinches = event.ctrlKey || event.metaKey; // two fingers on a touchpad
  if (!pinches && mode() !== "move") return; // the page scrolls
  event.preventDefault();
  zoomAt(...placeOf(event), Math.exp(-event.deltaY * (pinches ? 0.01 : 0.002)));
}

// The card next to the pointer
const card = element("card");
const sheet = new Image(); // all thumbnails
const tileOf = new Map(); // point -> the picture of it that stands on the page

function line(parent, tag, words) {
  const item = document.createElement(tag);
  item.textContent = words;
  parent.append(item);
}

function describe(parent, point) {
  line(parent, "strong", `Cluster ${titled(map.clusters[rankOf[point]])}`);
  if (about.label) line(parent, "div", `Label: ${map.label_names[about.label[point]]}`);
  line(parent, "div", `Distance ${Number(about.distance[point].toPrecision(4))}${about.outlier[point] ? ", outlier" : ""}`);
  if (about.probability) {
    const second = about.runner_up_probability[point].toFixed(3);
    line(parent, "div", `Probability ${about.probability[point].toFixed(3)}${Number(second) ? `, of cluster ${about.runner_up[point]} ${second}` : ""}`);
    if (about.runner_up_probability[point] > about.probability[point]) line(parent, "div", "(most of its neighbors are there, but it is nearer to the center of its own cluster)");
  }
}

function hover(event) {
  if (pointers.size || event.pointerType === "touch") return;
  const point = pointAt(...placeOf(event), 8);
  plot.style.cursor = point >= 0 ? "pointer" : mode() === "move" ? "grab" : "crosshair";
  if (point < 0) return hideCard();
  const text = card.querySelector("div");
  text.replaceChildren();
  describe(text, point);
  line(text, "div", titleOf(point));
  drawThumbnail(card.querySelector("canvas"), point);
  card.hidden = false;
  const box = card.getBoundingClientRect();
  const right = event.clientX + 18 + box.width > document.documentElement.clientWidth;
  card.style.left = `${Math.max(8, right ? event.clientX - 18 - box.width : event.clientX + 18)}px`;
  card.style.top = `${Math.min(Math.max(8, event.clientY - box.height / 2), innerHeight - box.height - 8)}px`;
}

function hideCard() { card.hidden = true; }

function drawThumbnail(canvas, point) {
  const tile = tileOf.get(point); // of more pixels than in the sprite
  const place = about.sample[point];
  canvas.hidden = !tile?.naturalWidth && (place < 0 || !map.sprite);
  if (canvas.hidden) return;
  let [picture, left, top, width, height] = [tile, 0, 0, tile?.naturalWidth, tile?.naturalHeight];
  if (!width) {
    [picture, width, height] = [sheet, map.sprite.width, map.sprite.height];
    [left, top] = [(place % map.sprite.columns) * width, Math.floor(place / map.sprite.columns) * height];
  }
  const pen = canvas.getContext("2d");
  const scale = Math.min(canvas.width / width, canvas.height / height);
  const [w, h] = [width * scale, height * scale];
  pen.clearRect(0, 0, canvas.width, canvas.height);
  pen.imageSmoothingEnabled = Math.max(width, height) > 40;
  pen.drawImage(picture, left, top, width, height, (canvas.width - w) / 2, (canvas.height - h) / 2, w, h);
}

function startMap() {
  plot.addEventListener("pointerdown", pressed);
  plot.addEventListener("pointermove", hover);
  plot.addEventListener("pointerleave", hideCard);
  plot.addEventListener("wheel", turned, { passive: false });
  addEventListener("pointermove", moved);
  for (const kind of ["pointerup", "pointercancel"]) addEventListener(kind, released);
  addEventListener("scroll", hideCard, { passive: true });
  new ResizeObserver(redraw).observe(plot);
  const legend = [...document.querySelectorAll("[data-ranks]")];
  const show = (button, on) => {
    button.setAttribute("aria-pressed", String(on));
    hidden.fill(on ? 0 : 1, ...button.dataset.ranks.split(" ").map(Number));
    redraw();
  };
  for (const button of legend) button.addEventListener("click", () => show(button, button.getAttribute("aria-pressed") === "false"));
  for (const [id, on] of [["show-all", true], ["hide-all", false]]) {
    element(id).addEventListener("click", () => { for (const button of legend) show(button, on); });
  }
  for (const [id, factor] of [["zoom-in", 1.5], ["zoom-out", 1 / 1.5]]) element(id).addEventListener("click", () => zoomBy(factor));
  element("zoom-reset").addEventListener("click", resetCamera);
  const follow = () => { plot.dataset.drag = mode() ?? ""; };
  for (const radio of document.querySelectorAll("input[name=drag]")) {
    radio.checked = radio.value === "select" && !matchMedia("(pointer: coarse)").matches;
    radio.addEventListener("change", follow);
  }
  follow();
  for (const radio of document.querySelectorAll("input[name=view]")) {
    radio.addEventListener("change", () => { camera.solid = radio.value === "3"; resetCamera(); });
  }
  drawMap();
}
