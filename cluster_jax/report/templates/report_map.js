// The map of the points; a page of rows without positions has none.
const plot = element("plot-map");
const card = element("card"); // of the point at the mouse
const axes = map.axes.map(unpack);
const ranges = axes.map((axis) => axis.reduce(([a, b], x) => [Math.min(a, x), Math.max(b, x)], [Infinity, -Infinity]));
const isDense = map.n_points > 5000; // then points are small squares
const radius = isDense ? 1.5 : map.n_points > 800 ? 2.5 : 3.5;
const [NAMED_ON_MAP, FACE] = [60, 34]; // groups; pixels of the picture of one
const MOST_ASIDE = 14; // pixels between a point and its place
let zoom = 1; // how much larger than its frame, which scrolls, the map is
let lasso = null; // the corners of a lasso while it is drawn
let pending = 0;

// A color "var(--name)" of the style sheet, as it is in the reader's theme
function themed(color) {
  const name = /^var\((--[a-z]+)\)$/.exec(color);
  return name ? getComputedStyle(document.documentElement).getPropertyValue(name[1]).trim() : color;
}

// A function that says where a point of the map is, in pixels
function projection() {
  const [width, height, frame] = [plot.clientWidth, plot.clientHeight, element("plot")];
  const [extent, middle] = [ranges.map(([low, high]) => high - low || 1), ranges.map(([low, high]) => (low + high) / 2)];
  const scale = 0.92 * Math.min(width / extent[0], height / extent[1]) * zoom;
  const [left, top] = [(zoom * width) / 2 - frame.scrollLeft, (zoom * height) / 2 - frame.scrollTop];
  return ([x, y]) => [left + scale * (x - middle[0]), top - scale * (y - middle[1])];
}

// How far each point is drawn from its place, in pixels: those at one place lie side by side in a spiral.
function asides() {
  const at = new Map();
  for (const point of map.n_places < map.n_points ? everyPoint : []) {
    const place = `${axes[0][point]} ${axes[1][point]}`;
    if (at.has(place)) at.get(place).push(point);
    else at.set(place, [point]);
  }
  const result = new Array(map.n_points).fill([0, 0]);
  for (const points of at.values()) {
    const gap = Math.min(2 * radius, MOST_ASIDE / Math.sqrt(points.length));
    points.forEach((point, i) => { result[point] = [gap * Math.sqrt(i) * Math.cos(2.4 * i), gap * Math.sqrt(i) * Math.sin(2.4 * i)]; });
  }
  return result;
}

const aside = asides();

// Where all points are now: the last change may not have been drawn yet.
function placesOfPoints() {
  const place = projection();
  return everyPoint.map((point) => {
    const [x, y] = place([axes[0][point], axes[1][point]]);
    return [x + aside[point][0], y + aside[point][1]];
  });
}

// Those of outliers are hollow; where some are selected, the others are pale.
function drawPoints(pen, places) {
  for (const [id, points] of membersOf) {
    pen.fillStyle = pen.strokeStyle = themed(groups.get(id).color);
    for (const point of points) {
      const [x, y] = places[point];
      pen.globalAlpha = selected.length && !isSelected[point] ? 0.15 : 0.85;
      pen.beginPath();
      if (isDense) pen.rect(x - radius, y - radius, 2 * radius, 2 * radius);
      else pen.arc(x, y, radius, 0, 7);
      pen[about.outlier[point] ? "stroke" : "fill"]();
    }
  }
  pen.globalAlpha = 1;
}

// Names and pictures of the groups at the middle of their points, the largest first; where there is no room, left out.
function drawNames(pen, places) {
  [pen.font, pen.textAlign, pen.lineJoin] = [`700 14px ${themed("var(--sans)")}`, "center", "round"];
  const taken = [];
  for (const id of filled().slice(0, NAMED_ON_MAP)) {
    const [points, part] = [members(id), partOf(members(id)[0])];
    const face = part ? FACE : 0;
    const half = Math.max(pen.measureText(titled(id)).width, face) / 2 + 4;
    const middle = [0, 1].map((axis) => points.reduce((sum, point) => sum + places[point][axis], 0) / points.length);
    const sides = [plot.clientWidth, plot.clientHeight];
    if (middle.some((at, axis) => at < 0 || at > sides[axis])) continue;
    const margins = [[half, half], [face + 20, 6]]; // so that nothing is cut off at the edge
    const [x, y] = middle.map((at, axis) => Math.max(margins[axis][0], Math.min(at, sides[axis] - margins[axis][1])));
    const box = [x - half, y - face - 20, x + half, y + 4];
    if (taken.some((other) => box[0] < other[2] && box[2] > other[0] && box[1] < other[3] && box[3] > other[1])) continue;
    taken.push(box);
    if (face) {
      const square = [x - face / 2, y - face - 16, face, face];
      pen.drawImage(part.sheet.image, part.left, part.top, part.sheet.width, part.sheet.height, ...square);
      [pen.strokeStyle, pen.lineWidth] = [themed(groups.get(id).color), 3];
      pen.strokeRect(...square);
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
  const [pen, places] = [plot.getContext("2d"), placesOfPoints()];
  pen.scale(devicePixelRatio, devicePixelRatio);
  drawPoints(pen, places);
  drawNames(pen, places);
  [pen.strokeStyle, pen.lineWidth] = [themed("var(--accent)"), 1.5];
  pen.beginPath();
  for (const corner of lasso ?? []) pen.lineTo(...corner);
  pen.closePath();
  pen.stroke();
}

// The point at a place of the map, or the nearest one within a few pixels
function pointAt([x, y], reach) {
  const far = placesOfPoints().map(([left, top]) => Math.hypot(left - x, top - y));
  const closest = far.reduce((best, distance, point) => (distance <= far[best] ? point : best), 0);
  return far[closest] <= reach ? closest : null;
}

// The points inside of a polygon: a ray from such a point crosses the sides an odd number of times.
function pointsInside(corners) {
  const crosses = ([x, y]) => ([x1, y1], at) => {
    const [x0, y0] = corners.at(at - 1);
    return y1 > y !== y0 > y && x < x1 + ((y - y1) * (x0 - x1)) / (y0 - y1);
  };
  const places = placesOfPoints();
  return everyPoint.filter((point) => corners.filter(crosses(places[point])).length % 2);
}

// The middle of what is seen stays there.
function zoomBy(factor) {
  const frame = element("plot");
  const before = zoom;
  zoom = Math.min(Math.max(zoom * factor, 1), 100);
  frame.style.setProperty("--zoom", zoom);
  const moved = (start, size) => ((start + size / 2) * zoom) / before - size / 2;
  frame.scrollTo(moved(frame.scrollLeft, plot.clientWidth), moved(frame.scrollTop, plot.clientHeight));
  redraw();
}

function placeOf(event) {
  const box = plot.getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top];
}

// A mouse selects by a lasso; a finger scrolls.
function pressed(event) {
  if (event.button) return;
  card.hidden = true;
  lasso = [placeOf(event)];
}

function moved(event) {
  lasso?.push(placeOf(event));
  if (lasso) redraw();
}

function released(event) {
  if (!lasso) return;
  const corners = lasso;
  lasso = null;
  redraw();
  if (event.type === "pointercancel") return;
  const isTouch = event.pointerType === "touch";
  const isClick = corners.every(([x, y]) => Math.hypot(x - corners[0][0], y - corners[0][1]) < 5);
  const point = isClick ? pointAt(corners[0], isTouch ? 20 : 8) : null;
  if (point !== null) open(point, members(groupOf[point]));
  else if (!isClick && !isTouch) select([...new Set([...(event.shiftKey ? selected : []), ...pointsInside(corners)])]);
}

function hover(event) {
  const point = lasso || event.pointerType === "touch" ? null : pointAt(placeOf(event), 8);
  plot.style.cursor = point === null ? "crosshair" : "pointer";
  card.hidden = point === null;
  if (point !== null) card.replaceChildren(picture(point) ?? "", make("div", {}, ...inLines([...factsOf(point), titleOf(point)])));
}

function startMap() {
  if (!plot) return;
  plot.addEventListener("pointerdown", pressed);
  plot.addEventListener("pointermove", hover);
  plot.addEventListener("pointerleave", () => { card.hidden = true; });
  addEventListener("pointermove", moved);
  for (const kind of ["pointerup", "pointercancel"]) addEventListener(kind, released);
  element("plot").addEventListener("scroll", redraw, { passive: true });
  new ResizeObserver(redraw).observe(plot);
}
