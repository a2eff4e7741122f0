// What a person decides: steps, the last one last. All else on the page follows from them; any can be taken back.
let steps = [];
const firstNames = new Map(map.clusters.map(({ id, name }) => [id, name]));
const copies = report.duplicates ?? [];

// What a step does to what is decided. A step names photos by their rows, which stay when the page is opened again.
const APPLY = {
  move(now, { rows, to }) {
    for (const point of pointsOf(rows)) {
      now.right.delete(point);
      now.moved.set(point, to);
    }
  },
  right(now, { rows }) { for (const point of pointsOf(rows)) if (!now.moved.has(point)) now.right.add(point); },
  merge(now, { group, into, name }) {
    now.merged.set(group, into);
    if (name) now.named.set(into, name);
  },
  name(now, { group, name }) {
    if (name && name !== firstNames.get(group)) now.named.set(group, name);
    else now.named.delete(group);
  },
  whole: (now, { group }) => now.whole.add(group),
  keep(now, { set, row }) {
    if (copies[set].images.some(({ index, keep }) => keep && index === row)) now.kept.delete(set);
    else now.kept.set(set, row);
  },
};

function decided(by = steps) {
  const now = { moved: new Map(), right: new Set(), merged: new Map(), named: new Map(), whole: new Set(), kept: new Map() };
  for (const step of by) APPLY[step.kind](now, step);
  return now;
}

let decisions = decided();
const isAnswered = (point) => decisions.moved.has(point) || decisions.right.has(point);

function rootOf(id, { merged } = decisions) {
  while (merged.has(id)) id = merged.get(id);
  return id;
}

function decide(said, step) {
  steps.push({ said, ...step });
  refresh(said);
}

function takeBack(step = steps.at(-1)) {
  if (!step) return;
  steps = steps.filter((other) => other !== step);
  refresh(`Taken back: ${step.said}`);
}

function takeAllBack() {
  if (!confirm(`Take back ${steps.length === 1 ? "this correction" : "all corrections"}?`)) return;
  steps = [];
  refresh("All is taken back.");
}

// Equal copies are one photo: where one of them goes, the others follow.
const copiesOf = new Map(copies.filter(({ kind }) => kind === "exact").flatMap(({ images }) => {
  const points = pointsOf(images.map(({ index }) => index));
  return points.map((point) => [point, points]);
}));

// Moves points to a group: its number, "new" for a new one, NONE for no group; the one that they are in confirms it.
function move(chosen, to) {
  const every = [...new Set(chosen.flatMap((point) => copiesOf.get(point) ?? [point]))];
  if (to === "") return;
  const id = to === "new" ? Math.min(NONE, ...steps.map((step) => step.to ?? NONE)) - 1 : Number(to);
  const stays = every.every((point) => id === groupOf[point]);
  const points = stays ? every.filter((point) => id !== NONE && !isAnswered(point)) : every;
  if (!points.length) return; // It changes nothing.
  const name = to === "new" ? `a new ${words.cluster}` : id === NONE ? `no ${words.cluster}` : titled(id);
  const followed = points.filter((point) => !chosen.includes(point)).length;
  const also = followed ? `, ${followed} of them as an equal copy` : "";
  const rows = points.map((point) => about.index[point]);
  if (chosen === selected) select([]);
  decide(`${count(points.length)} ${stays ? "confirmed in" : "moved to"} ${name}${also}.`, { kind: stays ? "right" : "move", rows, to: id });
  if (to === "new") (dialog.open ? element("view-group") : cardOf(id)).querySelector("input").focus();
}

// The receiving group keeps its name. The numbers of the run stay: one of them receives a group that was made here.
function merge(id, into) {
  if (into === id) return;
  const said = `${titled(id)} is now part of ${titled(into)}.`;
  const name = groups.get(into).name || groups.get(id).name;
  if (isMade(into) && !isMade(id)) [id, into] = [into, id];
  decide(said, { kind: "merge", group: id, into, name: name === groups.get(into).name ? "" : name });
}

// Pasted text may have characters that are not seen; the command refuses them, but those that join parts of a sign.
const cleaned = (text) => text.replace(/\s+/g, " ").replace(/(?![\u200c\u200d])[\p{Cc}\p{Cf}\p{Cs}]/gu, "").trim();

// Where another group has the name, they may be one.
function rename(id, text) {
  const name = cleaned(text);
  const same = filled().find((other) => other !== id && titled(other) === name);
  const call = () => decide(name ? `The ${words.cluster} is called ${name}.` : "The name is the first one again.", { kind: "name", group: id, name });
  if (name === groups.get(id).name || (!name && !decisions.named.has(id))) return refresh("");
  if (same === undefined) return call();
  element("same-name").textContent = name;
  element("same-merge").onclick = () => merge(id, same);
  element("same-keep").onclick = call;
  element("same").onclose = () => refresh("");
  element("same").showModal();
}

// Everything on the page that follows from the decisions
function refresh(message) {
  decisions = decided();
  for (const id of [...groups.keys()]) if (isMade(id)) groups.delete(id);
  for (const id of [...decisions.moved.values(), ...decisions.merged.values()]) if (isMade(id)) groups.set(id, { id, color: "var(--accent)" });
  for (const [id, group] of groups) group.name = decisions.named.get(id) ?? firstNames.get(id) ?? "";
  membersOf = new Map([...groups.keys()].map((id) => [id, []]));
  for (const point of everyPoint) {
    groupOf[point] = rootOf(decisions.moved.get(point) ?? found[point]);
    membersOf.get(groupOf[point]).push(point);
  }
  drawCards();
  drawNumber();
  drawKinds();
  drawDoubts();
  for (const { images } of copies) for (const copy of images) copy.show?.();
  redraw();
  if (tree) showCut();
  if (message) element("said").textContent = message;
  element("how").hidden = true; // The file that was saved last does not have what has changed since.
  drawBar();
  store();
  requestAnimationFrame(fillAhead);
  if (dialog.open) open(current, around);
}

// How many points a group has, also where not all of them are on the page
const foundOnPage = new Map();
for (const id of found) foundOnPage.set(id, (foundOnPage.get(id) ?? 0) + 1);
const sizeOf = (id) => members(id).length + (groups.get(id)?.size ?? 0) - (foundOnPage.get(id) ?? 0);
const filled = () => [...groups.keys()].filter((id) => id !== NONE && members(id).length);

// The number of groups in the heading, which has groups without a point on the page, too. A small one counts as large
// once a person has said something about it.
const { large, small, one, many } = element("number").dataset;
const isTypical = (point) => small === "0" || !about.outlier[point];
const firstLarge = new Set(everyPoint.filter(isTypical).map((point) => found[point]).filter((id) => id !== NONE));
const firstFilled = [...foundOnPage.keys()].filter((id) => id !== NONE).length;

function drawNumber() {
  const held = new Set([...firstLarge, ...decisions.named.keys(), ...[...decisions.merged.values()].map((id) => rootOf(id))]);
  const ids = filled();
  const n = Number(large) - firstLarge.size + ids.filter((id) => isMade(id) || held.has(id) || members(id).some(isAnswered)).length;
  const others = Number(large) + Number(small) - firstFilled + ids.length - n;
  element("number").textContent = count(n, one, many) + (others ? ` and ${count(others, "small one")}` : "");
}

// Fills a list of groups when it is used; what its first entry says stays.
function drawChoices(select) {
  const { choice } = select.dataset;
  const own = choice === "merge" ? Number(select.closest("[data-group]").dataset.group) : NONE;
  const ids = [...groups.keys()].filter((id) => ![NONE, own].includes(id) && !decisions.merged.has(id));
  const named = ids.filter((id) => choice !== "index" || members(id).length).map((id) => [titled(id), id]).sort(([a], [b]) => compare(a, b));
  const more = ["merge", "index"].includes(choice) ? [] : [[`New ${words.cluster}`, "new"], [`No ${words.cluster}: wrong here`, NONE]];
  select.replaceChildren(select.options[0], ...[...named, ...more].map(([text, value]) => new Option(text, value)));
}

// The bar at the lower edge: what is selected, and what was decided
let selected = [];
const isSelected = new Uint8Array(map.n_points);

function select(points) {
  selected = points;
  isSelected.fill(0);
  for (const point of points) isSelected[point] = 1;
  for (const shown of document.querySelectorAll(".tile")) markTile(shown);
  drawBar();
  redraw();
}

function toggle(point) { select(isSelected[point] ? selected.filter((other) => other !== point) : [...selected, point]); }

function markTile(shown) { shown.setAttribute("aria-pressed", String(isSelected[pointOf.get(Number(shown.dataset.point))] === 1)); }

function drawBar() {
  const n = Object.values(decisions).reduce((sum, { size }) => sum + size, 0);
  element("selection").hidden = !selected.length;
  element("selection-count").textContent = `${count(selected.length)} selected`;
  element("decided").hidden = !steps.length && !element("said").textContent;
  element("decided-count").textContent = n ? `${count(n, "correction")}, not yet applied.` : "";
  element("save-corrections").disabled = !n;
  element("undo").disabled = element("history").hidden = !steps.length;
  element("bar").hidden = element("selection").hidden && element("decided").hidden;
  if (element("history").open) drawSteps();
}

function stepItem(step) {
  const item = copyOf("step-template");
  item.querySelector("span").textContent = step.said;
  item.querySelector("button").onclick = () => takeBack(step);
  return item;
}

function drawSteps() {
  const last = new Map(steps.flatMap((step) => (step.rows ?? [`${step.kind} ${step.group ?? step.set}`]).map((key) => [key, step])));
  const counting = new Set(last.values()); // A later step about the same photos, group, or set replaces an earlier one.
  element("steps").replaceChildren(...steps.filter((step) => counting.has(step)).map(stepItem).reverse());
}

// The corrections as one file: clusters by their numbers, photos by their rows, which are those of the state
function corrections() {
  const { moved, right, merged, named, whole, kept } = decisions;
  const keyOf = (id) => (isMade(id) ? `n${NONE - id}` : id);
  const placed = [...moved].map(([point, to]) => [about.index[point], rootOf(to)]);
  const ofRun = (ids) => [...ids].filter((id) => !isMade(id));
  return {
    state: report.state,
    browser,
    saved: numberOfFile(),
    names: Object.fromEntries(ofRun(named.keys()).filter((id) => rootOf(id) === id).map((id) => [id, named.get(id)])),
    merges: ofRun(merged.keys()).map((id) => [id, rootOf(id)]),
    new: Object.fromEntries(filled().filter(isMade).map((id) => [keyOf(id), groups.get(id).name || null])),
    labels: Object.fromEntries(placed.filter(([, to]) => to !== NONE).map(([row, to]) => [row, keyOf(to)])),
    wrong: placed.filter(([, to]) => to === NONE).map(([row]) => row),
    right: [...right].map((point) => about.index[point]),
    keep: [...kept.values()],
    whole: ofRun(whole).filter((id) => rootOf(id) === id),
  };
}

function saveCorrections() {
  // A name of its own: browsers number a second file of the same name, and the command would read the first one.
  const file = `corrections-${new Date().toISOString().slice(0, 19).replace(/\D/g, "")}.json`;
  const content = new Blob([`${JSON.stringify(corrections(), null, 1)}\n`], { type: "application/json" });
  make("a", { href: URL.createObjectURL(content), download: file }).click();
  for (const step of steps) step.isSaved = true;
  store();
  element("how").hidden = false;
  const shown = element("how").querySelector("code, b");
  shown.textContent = shown.textContent.replace(/[^=]*$/, file);
}
