// The map of the points; a page of rows without positions has none.
const plot = element("plot-map");
const axes = map.axes.map(unpack);
const [pixelX, pixelY] = [new Float32Array(map.n_points), new Float32Array(map.n_points)];
const home = { zoom: 1, x: 0, y: 0 };
const camera = { ...home };
const center = [0, 0];
const extent = axes.map((axis, d) => {
  const [low, high] = axis.reduce(([a, b], x) => [Math.min(a, x), Math.max(b, x)], [Infinity, -Infinity]);
  center[d] = (low + high) / 2;
  return high - low || 1;
});
const pointSize = map.n_points > 5000 ? 3 : map.n_points > 800 ? 5 : 7;
const NAMED_ON_MAP = 60;
const FACE = 34; // pixels of the picture of a group
let places = new Map(); // group -> where its name is
let lasso = null; // the corners of a lasso while it is drawn
let pending = 0;

// A color "var(--name)" of the style sheet, as it is in the reader's theme
function themed(color) {
  const name = /^var\((--[a-z]+)\)$/.exec(color);
  return name ? getComputedStyle(document.documentElement).getPropertyValue(name[1]).trim() : color;
}

// Where a point of the map is, in pixels
function projection() {
  const [width, height] = [plot.clientWidth, plot.clientHeight];
  const scale = 0.92 * Math.min(width / extent[0], height / extent[1]) * camera.zoom;
  const [left, top] = [width / 2 + camera.x - scale * center[0], height / 2 + camera.y + scale * center[1]];
  return ([x, y]) => [left + scale * x, top - scale * y];
}

// Whoever reads the pixels of the points computes them: the last change may not have been drawn yet.
function project(place = projection()) {
  const [x, y] = axes;
  for (let i = 0; i < map.n_points; i++) [pixelX[i], pixelY[i]] = place([x[i], y[i]]);
}

// Points are squares where there are many, else circles; those of outliers are hollow.
function drawPoints(pen, strength, wanted) {
  const [r, isDense] = [pointSize / 2, map.n_points > 5000];
  for (const [id, points] of membersOf) {
    pen.fillStyle = pen.strokeStyle = themed(groups.get(id).color);
    [pen.globalAlpha, pen.lineWidth] = [strength, 1];
    for (const i of points) {
      if (wanted !== undefined && isSelected[i] !== wanted) continue;
      const [x, y] = [pixelX[i], pixelY[i]];
      if (isDense) { pen[about.outlier[i] ? "strokeRect" : "fillRect"](x - r, y - r, 2 * r, 2 * r); continue; }
      pen.beginPath();
      pen.arc(x, y, r, 0, 7);
      pen[about.outlier[i] ? "stroke" : "fill"]();
    }
  }
  pen.globalAlpha = 1;
}

// A group that a person has made has its name at the middle of its points.
function placeNames() {
  const middle = (points) => axes.map((axis) => points.reduce((sum, point) => sum + axis[point], 0) / points.length);
  const named = filled().slice(0, NAMED_ON_MAP);
  places = new Map(named.map((id) => [id, groups.get(id).at ?? (firstNames.has(id) ? null : middle(members(id)))]).filter(([, at]) => at));
}

// Names and pictures of the groups, the largest first: above, below or beside; where none is free, left out.
function drawNames(pen, place) {
  [pen.font, pen.textAlign, pen.lineJoin] = [`700 14px ${themed("var(--sans)")}`, "center", "round"];
  const taken = [];
  for (const [id, at] of places) {
    const name = titled(id);
    const at0 = partOf(members(id)[0]);
    const face = at0?.sheet.image.naturalWidth ? FACE : 0;
    const [half, high] = [Math.max(pen.measureText(name).width, face) / 2 + 4, face + 20];
    const [x0, y0] = place(at);
    if (x0 < 0 || y0 < 0 || x0 > plot.clientWidth || y0 > plot.clientHeight) continue;
    const spots = [[0, 0], [0, high + 24], [half + 14, high / 2 + 14], [-half - 14, high / 2 + 14]].map(([dx, dy]) => [
      Math.max(half, Math.min(x0 + dx, plot.clientWidth - half)), Math.max(high, Math.min(y0 + dy, plot.clientHeight - 4)), // not cut off at the edge
    ]);
    const isFree = ([x, y]) => !taken.some((box) => x - half < box[2] && x + half > box[0] && y - high < box[3] && y + 4 > box[1]);
    const spot = spots.find(isFree);
    if (!spot) continue;
    const [x, y] = spot;
    taken.push([x - half, y - high, x + half, y + 4]);
    if (face) {
      const { sheet, left, top } = at0;
      pen.drawImage(sheet.image, left, top, sheet.width, sheet.height, x - face / 2, y - face - 16, face, face);
      [pen.strokeStyle, pen.lineWidth] = [themed(groups.get(id).color), 3];
      pen.strokeRect(x - face / 2, y - face - 16, face, face);
    }
    [pen.fillStyle, pen.strokeStyle, pen.lineWidth] = [themed("var(--ink)"), themed("var(--paper)"), 3];
    pen.strokeText(name, x, y);
    pen.fillText(name, x, y);
  }
}

// However often the map changes, it is drawn once for each frame.
function redraw() { if (plot) pending ||= requestAnimationFrame(drawMap); }

function drawMap() {
  pending = 0;
  const size = [plot.clientWidth, plot.clientHeight].map((side) => Math.round(side * devicePixelRatio));
  if (!size[0] || !size[1]) return;
  if (plot.width !== size[0] || plot.height !== size[1]) [plot.width, plot.height] = size;
  const place = projection();
  project(place);
  const pen = plot.getContext("2d");
  pen.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
  pen.clearRect(0, 0, plot.clientWidth, plot.clientHeight);
  if (selected.length) drawPoints(pen, 0.15, 0);
  drawPoints(pen, selected.length ? 1 : 0.8, selected.length ? 1 : undefined);
  drawNames(pen, place);
  if (!lasso) return;
  [pen.strokeStyle, pen.lineWidth] = [themed("var(--accent)"), 1.5];
  pen.beginPath();
  for (const [x, y] of lasso) pen.lineTo(x, y);
  pen.closePath();
  pen.stroke();
}

// The point at a place of the map, or the nearest one within a few pixels; -1 for none.
function pointAt(x, y, reach) {
  project();
  let [best, closest] = [reach ** 2, -1];
  for (let i = 0; i < map.n_points; i++) {
    const far = (pixelX[i] - x) ** 2 + (pixelY[i] - y) ** 2;
    if (far <= best) [best, closest] = [far, i];
  }
  return closest;
}

// The points inside of a polygon: a ray from such a point crosses the sides an odd number of times.
function pointsInside(corners) {
  project();
  const inside = [];
  for (let i = 0; i < map.n_points; i++) {
    const [x, y] = [pixelX[i], pixelY[i]];
    let isInside = false;
    let [x0, y0] = corners.at(-1);
    for (const [x1, y1] of corners) {
      if (y1 > y !== y0 > y && x < x1 + ((y - y1) * (x0 - x1)) / (y0 - y1)) isInside = !isInside;
      [x0, y0] = [x1, y1];
    }
    if (isInside) inside.push(i);
  }
  return inside;
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
  if (point >= 0) open(point, members(groupOf[point]));
}

function turned(event) {
  const pinches = event.ctrlKey || event.metaKey; // two fingers on a touchpad
  if (!pinches && mode() !== "move") return; // the page scrolls
  event.preventDefault();
  zoomAt(...placeOf(event), Math.exp(-event.deltaY * (pinches ? 0.01 : 0.002)));
}

// The card next to the pointer
const card = element("card");

function hover(event) {
  if (pointers.size || event.pointerType === "touch") return;
  const point = pointAt(...placeOf(event), 8);
  plot.style.cursor = point >= 0 ? "pointer" : mode() === "move" ? "grab" : "crosshair";
  if (point < 0) return hideCard();
  card.replaceChildren(picture(point) ?? "", make("div", {}, ...inLines([...factsOf(point), titleOf(point)])));
  card.hidden = false;
  const box = card.getBoundingClientRect();
  const right = event.clientX + 18 + box.width > document.documentElement.clientWidth;
  card.style.left = `${Math.max(8, right ? event.clientX - 18 - box.width : event.clientX + 18)}px`;
  card.style.top = `${Math.min(Math.max(8, event.clientY - box.height / 2), innerHeight - box.height - 8)}px`;
}

function hideCard() { card.hidden = true; }

function startMap() {
  if (!plot) return;
  plot.addEventListener("pointerdown", pressed);
  plot.addEventListener("pointermove", hover);
  plot.addEventListener("pointerleave", hideCard);
  plot.addEventListener("wheel", turned, { passive: false });
  addEventListener("pointermove", moved);
  for (const kind of ["pointerup", "pointercancel"]) addEventListener(kind, released);
  addEventListener("scroll", hideCard, { passive: true });
  new ResizeObserver(redraw).observe(plot);
  const follow = () => { plot.dataset.drag = mode() ?? ""; };
  for (const radio of document.querySelectorAll("input[name=drag]")) {
    radio.checked = radio.value === "select" && !matchMedia("(pointer: coarse)").matches;
    radio.addEventListener("change", follow);
  }
  follow();
}
