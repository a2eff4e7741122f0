// The map of the points; a page of rows without positions has none.
const plot = element("plot-map");
const axes = map.axes.map(unpack);
const [pixelX, pixelY] = [new Float32Array(map.n_points), new Float32Array(map.n_points)];
const home = { zoom: 1, x: 0, y: 0 };
const camera = { ...home };
const ranges = axes.map((axis) => axis.reduce(([a, b], x) => [Math.min(a, x), Math.max(b, x)], [Infinity, -Infinity]));
const pointSize = map.n_points > 5000 ? 3 : map.n_points > 800 ? 5 : 7;
const NAMED_ON_MAP = 60;
const FACE = 34; // pixels of the picture of a group
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
  const [extent, middle] = [ranges.map(([low, high]) => high - low || 1), ranges.map(([low, high]) => (low + high) / 2)];
  const scale = 0.92 * Math.min(width / extent[0], height / extent[1]) * camera.zoom;
  return ([x, y]) => [width / 2 + camera.x + scale * (x - middle[0]), height / 2 + camera.y - scale * (y - middle[1])];
}

// Whoever reads the pixels of the points computes them: the last change may not have been drawn yet.
function project(place = projection()) {
  for (const i of everyPoint) [pixelX[i], pixelY[i]] = place([axes[0][i], axes[1][i]]);
}

// Points are squares where there are many, else circles; those of outliers are hollow.
function drawPoints(pen, strength, wanted) {
  const [r, isDense] = [pointSize / 2, map.n_points > 5000];
  [pen.globalAlpha, pen.lineWidth] = [strength, 1];
  for (const [id, points] of membersOf) {
    pen.fillStyle = pen.strokeStyle = themed(groups.get(id).color);
    for (const i of points) {
      if (wanted !== undefined && isSelected[i] !== wanted) continue;
      pen.beginPath();
      if (isDense) pen.rect(pixelX[i] - r, pixelY[i] - r, 2 * r, 2 * r);
      else pen.arc(pixelX[i], pixelY[i], r, 0, 7);
      pen[about.outlier[i] ? "stroke" : "fill"]();
    }
  }
  pen.globalAlpha = 1;
}

// Where the name of a group is; that of a group that a person has made, at the middle of its points
function placeOfName(id) {
  const points = members(id);
  const middle = () => axes.map((axis) => points.reduce((sum, point) => sum + axis[point], 0) / points.length);
  return groups.get(id).at ?? (isMade(id) ? middle() : null);
}

// Names and pictures of the groups, the largest first: above, below or beside; where none is free, left out.
function drawNames(pen, place) {
  [pen.font, pen.textAlign, pen.lineJoin] = [`700 14px ${themed("var(--sans)")}`, "center", "round"];
  const taken = [];
  for (const id of filled().slice(0, NAMED_ON_MAP)) {
    const [at, part] = [placeOfName(id), partOf(members(id)[0])];
    const face = part ? FACE : 0;
    const [half, high] = [Math.max(pen.measureText(titled(id)).width, face) / 2 + 4, face + 20];
    const [x0, y0] = at ? place(at) : [-1, -1];
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
      const box = [x - face / 2, y - face - 16, face, face];
      pen.drawImage(part.sheet.image, part.left, part.top, part.sheet.width, part.sheet.height, ...box);
      [pen.strokeStyle, pen.lineWidth] = [themed(groups.get(id).color), 3];
      pen.strokeRect(...box);
    }
    [pen.fillStyle, pen.strokeStyle, pen.lineWidth] = [themed("var(--ink)"), themed("var(--paper)"), 3];
    pen.strokeText(titled(id), x, y);
    pen.fillText(titled(id), x, y);
  }
}

// However often the map changes, it is drawn once for each frame.
function redraw() { if (plot) pending ||= requestAnimationFrame(drawMap); }

function drawMap() {
  pending = 0;
  [plot.width, plot.height] = [plot.clientWidth, plot.clientHeight].map((side) => Math.round(side * devicePixelRatio));
  if (!plot.width || !plot.height) return;
  const place = projection();
  project(place);
  const pen = plot.getContext("2d");
  pen.scale(devicePixelRatio, devicePixelRatio);
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
  for (const i of everyPoint) {
    const far = (pixelX[i] - x) ** 2 + (pixelY[i] - y) ** 2;
    if (far <= best) [best, closest] = [far, i];
  }
  return closest;
}

// The points inside of a polygon: a ray from such a point crosses the sides an odd number of times.
function pointsInside(corners) {
  project();
  const crosses = (x, y) => ([x1, y1], at) => {
    const [x0, y0] = corners.at(at - 1);
    return y1 > y !== y0 > y && x < x1 + ((y - y1) * (x0 - x1)) / (y0 - y1);
  };
  return everyPoint.filter((i) => corners.filter(crosses(pixelX[i], pixelY[i])).length % 2);
}

function zoomAt(x, y, factor) {
  const [dx, dy] = [x - plot.clientWidth / 2, y - plot.clientHeight / 2];
  const zoom = Math.min(Math.max(camera.zoom * factor, 0.5), 500);
  const grown = zoom / camera.zoom;
  Object.assign(camera, { zoom, x: dx - (dx - camera.x) * grown, y: dy - (dy - camera.y) * grown });
  redraw();
}

const zoomBy = (factor) => zoomAt(plot.clientWidth / 2, plot.clientHeight / 2, factor);
function resetCamera() { Object.assign(camera, home); redraw(); }

// A mouse selects by a lasso, or moves the map; on a touch screen dragging scrolls the page until one of them is chosen.
const mode = () => document.querySelector("input[name=drag]:checked")?.value;
let [start, last] = [null, null]; // where the pointer went down, and where it was last

function placeOf(event) {
  const box = plot.getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top];
}

function pressed(event) {
  if (event.button || start) return;
  start = last = placeOf(event);
  lasso = mode() === "select" ? [start] : null;
  hideCard();
}

function moved(event) {
  if (!start) return hover(event);
  const [x, y] = placeOf(event);
  if (lasso) lasso.push([x, y]);
  else if (mode() === "move") [camera.x, camera.y] = [camera.x + x - last[0], camera.y + y - last[1]];
  last = [x, y];
  redraw();
}

function released(event) {
  if (!start) return;
  const [x, y] = placeOf(event);
  const [from, corners] = [start, lasso];
  start = lasso = null;
  redraw();
  if (event.type === "pointercancel") return;
  const isClick = Math.hypot(x - from[0], y - from[1]) < 5 && (corners?.length ?? 0) < 10;
  if (!isClick && corners) return select([...new Set([...(event.shiftKey ? selected : []), ...pointsInside(corners)])]);
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
  if (event.pointerType === "touch" || event.target !== plot) return hideCard();
  const point = pointAt(...placeOf(event), 8);
  plot.style.cursor = point >= 0 ? "pointer" : mode() === "move" ? "grab" : "crosshair";
  if (point < 0) return hideCard();
  card.replaceChildren(picture(point) ?? "", make("div", {}, ...inLines([...factsOf(point), titleOf(point)])));
  card.hidden = false;
  const { width, height } = card.getBoundingClientRect();
  const right = event.clientX + 18 + width > document.documentElement.clientWidth;
  card.style.left = `${Math.max(8, right ? event.clientX - 18 - width : event.clientX + 18)}px`;
  card.style.top = `${Math.min(Math.max(8, event.clientY - height / 2), innerHeight - height - 8)}px`;
}

function hideCard() { card.hidden = true; }

function startMap() {
  if (!plot) return;
  plot.addEventListener("pointerdown", pressed);
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
