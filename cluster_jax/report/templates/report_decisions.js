// What a person decides: where points belong, which groups are one, new groups, names, and which image is kept of a
// set of copies. The rest follows from it.
let decisions = { moved: new Map(), merged: new Map(), named: new Map(), kept: new Map(), made: [] };
const history = []; // earlier decisions, the last ones last
const firstNames = new Map(map.clusters.map(({ id, name }) => [id, name]));
const storageKey = `cluster_jax ${report.run} ${report.state}`;
const TYPICAL_SAVED = 20; // images by which a saved file means a group
let isKept = true; // whether the browser keeps what is not saved yet
const checked = (point) => decisions.moved.has(point) && rootOf(decisions.moved.get(point)) === rootOf(found[point]);
const { tree } = report;
const doubtful = [...unpack(map.doubtful)];
const others = unpack(map.doubtful_other);
const likelyOther = new Map(doubtful.map((point, i) => [point, others[i]]));
const countDecisions = () => decisions.moved.size + decisions.merged.size + decisions.named.size + decisions.kept.size;

function rootOf(id) {
  while (decisions.merged.has(id)) id = decisions.merged.get(id);
  return id;
}

function decide(message, change) {
  history.push(structuredClone(decisions));
  change();
  refresh(message);
}

function undo() {
  if (!history.length) return;
  decisions = history.pop();
  refresh("Undone.");
}

// Equal copies are one photo: where one of them goes, the others follow.
const copies = report.duplicates ?? [];
const copiesOf = new Map(copies.filter(({ kind }) => kind === "exact").flatMap(({ images }) => {
  const points = images.map(({ index }) => pointOf.get(index)).filter((point) => point !== undefined);
  return points.map((point) => [point, points]);
}));

// Moves points to a group: its number, "new" for a new one, NONE for no group; the one that they are in confirms it.
function move(chosen, to) {
  const points = [...new Set(chosen.flatMap((point) => copiesOf.get(point) ?? [point]))];
  if (to === "" || !points.length) return;
  const fresh = Math.max(report.next_cluster, ...decisions.made.map((id) => id + 1));
  const id = to === "new" ? fresh : Number(to);
  const stays = points.every((point) => id === groupOf[point]);
  const name = to === "new" ? `a new ${words.cluster}, number ${fresh}` : id === NONE ? `no ${words.cluster}` : titled(rootOf(id));
  const followed = points.length - chosen.length;
  const also = followed ? `, ${followed} of them as an equal copy` : "";
  decide(`${count(points.length)} ${stays ? "confirmed in" : "moved to"} ${name}${also}.`, () => {
    if (to === "new") decisions.made.push(fresh);
    for (const point of points) {
      if (!stays && id === rootOf(found[point]) && decisions.moved.has(point)) decisions.moved.delete(point);
      else decisions.moved.set(point, id);
    }
  });
  if (chosen === selected) select([]);
}

function merge(id, into) {
  if (rootOf(into) === id) return;
  decide(`${titled(id)} is now part of ${titled(into)}.`, () => decisions.merged.set(id, into));
}

function rename(id, text) {
  const name = text.trim().slice(0, 100);
  if (name === groups.get(id).name || (!name && !decisions.named.has(id))) return refresh("");
  decide(name ? `The ${words.cluster} is called ${name}.` : "The name is the first one again.", () => {
    if (name && name !== firstNames.get(id)) decisions.named.set(id, name);
    else decisions.named.delete(id);
  });
}

// Everything on the page that follows from the decisions
function refresh(message) {
  for (const id of [...groups.keys()]) if (!firstNames.has(id) && !decisions.made.includes(id)) groups.delete(id);
  for (const id of decisions.made) if (!groups.has(id)) groups.set(id, { id, symbol: "diamond", color: "var(--accent)", at: null });
  for (const [id, group] of groups) group.name = decisions.named.get(id) ?? firstNames.get(id) ?? "";
  membersOf = new Map([...groups.keys()].map((id) => [id, []]));
  for (const point of everyPoint) {
    groupOf[point] = rootOf(decisions.moved.get(point) ?? found[point]);
    if (!membersOf.has(groupOf[point])) membersOf.set(groupOf[point], []);
    membersOf.get(groupOf[point]).push(point);
  }
  drawCards();
  for (const entry of document.querySelectorAll("[data-doubt]")) drawDoubt(entry);
  drawChoices(document);
  drawCopies();
  placeNames();
  redraw();
  if (tree && window.Plotly) showCut();
  if (message) element("said").textContent = message;
  element("how").hidden = true; // The file that was saved last does not have what has changed since.
  drawBar();
  remember();
  if (dialog.open) open(current, around);
}

// How many points a group has, also where not all of them are on the page
const foundOnPage = new Map();
for (const id of found) foundOnPage.set(id, (foundOnPage.get(id) ?? 0) + 1);
const sizeOf = (id) => members(id).length + (groups.get(id)?.size ?? 0) - (foundOnPage.get(id) ?? 0);

const choosable = () => [...groups.keys()].filter((id) => id !== NONE && !decisions.merged.has(id));
const filled = () => choosable().filter((id) => members(id).length);

// The choices of every list of groups: what its first entry says stays.
function drawChoices(parent) {
  const options = (except) => choosable().filter((id) => id !== except).sort((a, b) => titled(a).localeCompare(titled(b))).map((id) => new Option(titled(id), id));
  for (const select of parent.querySelectorAll("select[data-choice]")) {
    const isMerge = select.dataset.choice === "merge";
    const own = isMerge ? Number(select.closest("[data-group]")?.dataset.group) : NONE;
    const more = isMerge ? [] : [new Option(`New ${words.cluster}`, "new"), new Option(`No ${words.cluster}: wrong here`, NONE)];
    select.replaceChildren(select.options[0], ...options(own), ...more);
  }
}

// The order in which the photos of a group are shown, beside that of how typical they are
const { compare } = new Intl.Collator("en", { numeric: true });
const ORDERS = {
  doubt: (a, b) => about.probability[a] - about.probability[b],
  date: (a, b) => compare(map.taken[a] || "9999", map.taken[b] || "9999"),
  folder: (a, b) => compare(nameOf(a), nameOf(b)),
  size: (a, b) => about.bytes[b] - about.bytes[a],
};
const ordered = (points) => (element("sort")?.value ? [...points].sort(ORDERS[element("sort").value]) : points);

function sortCards() {
  drawCards();
  for (const list of document.querySelectorAll(".all:not([hidden])")) fillAll(list.closest("article"));
}

// Cards: one for each group, with its best pictures; all of them are shown when asked for.
const SHOWN_BEST = 8;
const cardOf = (id) => document.querySelector(`article[data-group="${id}"]`);

function newCard(id) {
  const card = element("card-template").content.firstElementChild.cloneNode(true);
  card.dataset.group = id;
  card.id = `cluster-${id}`;
  card.querySelector("header").prepend(swatch(id));
  return card;
}

function drawCards() {
  const list = element("cards");
  for (const id of [...decisions.made].reverse()) if (!cardOf(id)) list.prepend(newCard(id));
  for (const card of list.querySelectorAll("article")) drawCard(card, Number(card.dataset.group));
  element("more-cards").hidden = filled().every(cardOf);
}

function drawCard(card, id) {
  const points = ordered(members(id));
  card.hidden = !points.length || !groups.has(id);
  if (card.hidden) return;
  card.querySelector("[data-title]").textContent = titled(id);
  const field = card.querySelector("input");
  if (field && document.activeElement !== field) field.value = decisions.named.get(id) ?? firstNames.get(id) ?? "";
  card.querySelector("[data-size]").textContent = count(sizeOf(id));
  const best = card.querySelector(".best");
  if (best) {
    const shown = points.slice(0, SHOWN_BEST);
    if (best.dataset.shown !== shown.join()) {
      best.replaceChildren(...shown.map((point) => tileItem(point, points)));
      best.querySelector("button").tabIndex = 0;
      best.dataset.shown = shown.join();
    }
    card.querySelector("[data-all]").hidden = points.length <= SHOWN_BEST;
  }
  const others = new Set(points.slice(SHOWN_BEST));
  for (const shown of card.querySelectorAll(".all .tile")) shown.parentElement.hidden = !others.has(pointOf.get(Number(shown.dataset.point)));
}

// All members of a group, drawn as they are scrolled to
function showAll(button) {
  const card = button.closest("article");
  const list = card.querySelector(".all");
  list.hidden = !list.hidden;
  button.setAttribute("aria-expanded", String(!list.hidden));
  button.textContent = list.hidden ? "Show all" : "Show fewer";
  if (!list.hidden) fillAll(card);
}

function fillAll(card) {
  const points = ordered(members(Number(card.dataset.group)));
  fillList(card.querySelector(".all"), points.slice(SHOWN_BEST), (point) => tileItem(point, points));
}

function showMoreCards() {
  const hidden = filled().filter((id) => !cardOf(id)).slice(0, 30);
  element("cards").append(...hidden.map(newCard));
  drawCards();
  drawChoices(element("cards"));
}

// Doubtful points, each with a question
function doubtItem(point) {
  const other = likelyOther.get(point);
  const answer = (text, to) => make("button", { type: "button", textContent: text, onclick: () => move([point], to) });
  const likely = groups.has(other) && other !== found[point] ? [answer("", other)] : [];
  const entry = make("li", {}, tile(point, doubtful), make("p"), answer("Yes, it stays", rootOf(found[point])), ...likely, answer("Neither", NONE));
  entry.dataset.doubt = point;
  drawDoubt(entry);
  return entry;
}

function drawDoubt(entry) {
  const point = Number(entry.dataset.doubt);
  const isAnswered = decisions.moved.has(point);
  const words_ = [isAnswered ? (checked(point) ? "Stays: " : "Now: ") : "", make("b", { textContent: titled(groupOf[point]) }), isAnswered ? "" : "?"];
  entry.classList.toggle("answered", isAnswered);
  entry.querySelector("p").replaceChildren(...words_);
  const other = rootOf(likelyOther.get(point));
  const [, , likely, neither] = entry.querySelectorAll("button");
  if (!neither) return;
  likely.textContent = `No, ${titled(other)}`;
  likely.hidden = other === rootOf(found[point]);
}

// The bar at the lower edge: what is selected, and what was decided
let selected = [];
const isSelected = new Uint8Array(map.n_points);

function select(points) {
  selected = points;
  isSelected.fill(0);
  for (const point of points) isSelected[point] = 1;
  for (const shown of document.querySelectorAll(".tile[data-point]")) markTile(shown);
  drawBar();
  redraw();
}

function toggle(point) { select(isSelected[point] ? selected.filter((other) => other !== point) : [...selected, point]); }

function markTile(shown) {
  const point = pointOf.get(Number(shown.dataset.point));
  shown.setAttribute("aria-pressed", String(point !== undefined && isSelected[point] === 1));
}

function drawBar() {
  const n = countDecisions();
  element("selection").hidden = !selected.length;
  element("selection-count").textContent = `${count(selected.length)} selected`;
  element("decided").hidden = !n && !history.length;
  element("decided-count").textContent = n ? `${count(n, "correction")}, not yet applied.` : "";
  element("save-corrections").disabled = !n;
  element("undo").disabled = !history.length;
  element("bar").hidden = element("selection").hidden && element("decided").hidden;
}

// What is not saved yet survives that the page is closed.
function inStorage(use) {
  try {
    return use(localStorage);
  } catch {
    isKept = false;
    return null;
  }
}

function remember() {
  const { moved, merged, named, kept, made } = decisions;
  const byIndex = [...moved].map(([point, to]) => [about.index[point], to]);
  const stored = countDecisions() ? { moved: byIndex, merged: [...merged], named: [...named], kept: [...kept], made } : null;
  inStorage((storage) => storage.setItem(storageKey, JSON.stringify(stored)));
}

function recall() {
  const stored = inStorage((storage) => JSON.parse(storage.getItem(storageKey)));
  if (!stored) return refresh("");
  const moved = stored.moved.filter(([index]) => pointOf.has(index)).map(([index, to]) => [pointOf.get(index), to]);
  decisions = { moved: new Map(moved), merged: new Map(stored.merged), named: new Map(stored.named), kept: new Map(stored.kept ?? []), made: stored.made };
  return refresh("The corrections of your last visit are here again.");
}

// A name as in assignments.csv: a byte that is not UTF-8 and a carriage return as \xNN, a backslash as two
const escaped = (name) => name.replaceAll("\\", "\\\\").replaceAll("\r", "\\x0d").replace(/[\udc80-\udcff]/gu, (c) => `\\x${byteOf(c).toString(16)}`);

function download(file, text, type) {
  const link = make("a", { href: URL.createObjectURL(new Blob([text], { type })), download: file });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function saveTable(file, rows) {
  const cell = (value) => (/[",\r\n]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);
  download(file, `${rows.map((row) => row.map((value) => cell(String(value))).join(",")).join("\n")}\n`, "text/csv");
}

function saveCorrections() {
  const made = decisions.made.filter((id) => members(id).length);
  const merged = [...decisions.merged].filter(([id]) => firstNames.has(id)).map(([id, into]) => [id, rootOf(into)]);
  const named = [...decisions.named].filter(([id]) => firstNames.has(id) && rootOf(id) === id);
  const moved = [...decisions.moved].map(([point, to]) => [point, rootOf(to)]);
  const meant = new Set([...merged.flat(), ...named.map(([id]) => id), ...moved.flatMap(([point, to]) => [found[point], to]), ...made]);
  meant.delete(NONE);
  const typical = (id) => (firstNames.has(id) ? everyPoint.filter((point) => found[point] === id) : members(id)).slice(0, TYPICAL_SAVED);
  // A name of its own: browsers number a second file of the same name, and the command would read the first one.
  const file = `corrections_${new Date().toISOString().slice(0, 19).replace(/\D/g, "")}.csv`;
  saveTable(file, [
    [map.column, "cluster", "correction", "to"],
    ["", "", "run", report.run],
    ...[...meant].flatMap((id) => typical(id).map((point) => [escaped(nameOf(point)), id, "member", ""])),
    ...made.map((id) => ["", id, "new", escaped(decisions.named.get(id) ?? "")]),
    ...merged.map(([id, into]) => ["", id, "merge", into]),
    ...named.map(([id, name]) => ["", id, "name", escaped(name)]),
    ...moved.map(([point, to]) => [escaped(nameOf(point)), found[point], to === NONE ? "wrong" : "move", to === NONE ? "" : to]),
    ...[...decisions.kept.values()].map((name) => [escaped(name), "", "keep", ""]),
    ["", "", "end", ""],
  ]);
  const how = element("how");
  how.hidden = false;
  for (const part of how.children) part.textContent = part.textContent.replace(/corrections(_\d+)?\.csv$/, file);
}
