// Cards: one for each group, with its best pictures; all of them are shown when asked for.
const [FIRST_CARDS, MORE_CARDS, SHOWN_BEST] = [60, 30, 8];
const cardOf = (id) => element(`cluster-${id}`);

// The order in which the photos of a group are shown, beside that of how typical they are
const ORDERS = {
  doubt: (a, b) => about.probability[a] - about.probability[b],
  date: (a, b) => compare(map.taken[a] || "9999", map.taken[b] || "9999"),
  folder: (a, b) => compare(nameOf(a), nameOf(b)),
  size: (a, b) => about.bytes[b] - about.bytes[a],
};
const ordered = (points) => (element("sort")?.value ? [...points].sort(ORDERS[element("sort").value]) : points);

function sortCards() {
  drawCards();
  for (const list of document.querySelectorAll("#cards .all:not([hidden])")) fillAll(list.closest("article"));
}

function newCard(id) {
  const card = copyOf("card-template");
  [card.id, card.dataset.group] = [`cluster-${id}`, id];
  card.querySelector("header").prepend(swatch(id));
  card.querySelector("[data-guess]").append(groups.get(id).guess ?? "");
  for (const part of card.querySelectorAll("input, select")) part.hidden = id === NONE;
  return card;
}

// The card of a new group stands beside that of the group from which its photos come; what is in no group is last.
function placeCard(id) {
  const source = isMade(id) && cardOf(rootOf(found[members(id)[0]]));
  if (source) source.after(newCard(id));
  else if (isMade(id)) element("cards").prepend(newCard(id));
  else element("cards").insertBefore(newCard(id), id === NONE ? null : cardOf(NONE));
}

function drawCards(more = 0) {
  const shown = () => document.querySelectorAll("#cards article");
  for (const card of shown()) if (!groups.has(Number(card.dataset.group))) card.remove();
  const missing = filled().filter((id) => !cardOf(id));
  const ofRun = missing.filter((id) => !isMade(id));
  const room = more || FIRST_CARDS - shown().length;
  for (const id of [...missing.filter(isMade), ...ofRun.slice(0, Math.max(room, 0))]) placeCard(id);
  if (members(NONE).length && !cardOf(NONE)) placeCard(NONE);
  for (const card of shown()) drawCard(card, Number(card.dataset.group));
  element("more-cards").hidden = filled().every(cardOf);
}

function drawCard(card, id) {
  const points = ordered(members(id));
  card.hidden = !points.length;
  if (card.hidden) return;
  card.querySelector("[data-title]").textContent = titled(id);
  const field = card.querySelector("input");
  field.placeholder = `${titled(id)}: name it`;
  if (document.activeElement !== field) field.value = groups.get(id).name;
  card.querySelector("[data-size]").textContent = count(sizeOf(id));
  card.querySelector("[data-guess]").hidden = !groups.get(id).guess || decisions.named.has(id);
  const best = card.querySelector(".best");
  const shown = points.slice(0, SHOWN_BEST);
  if (best.dataset.shown !== shown.join()) {
    fillList(best, shown, (point) => tileItem(point, points));
    best.dataset.shown = shown.join();
  }
  card.querySelector("[data-all]").hidden = points.length <= SHOWN_BEST;
  const others = new Set(points.slice(SHOWN_BEST));
  for (const other of card.querySelectorAll(".all .tile")) other.parentElement.hidden = !others.has(pointOf.get(Number(other.dataset.point)));
}

// All members of a group, drawn as they are scrolled to
function showAll(button) {
  const card = button.closest("article");
  const list = card.querySelector(".all");
  list.hidden = !list.hidden;
  button.setAttribute("aria-expanded", String(!list.hidden));
  if (!list.hidden) fillAll(card);
}

function fillAll(card) {
  const points = ordered(members(Number(card.dataset.group)));
  fillList(card.querySelector(".all"), points.slice(SHOWN_BEST), (point) => tileItem(point, points));
}

function goTo(id) {
  if (!cardOf(id)) placeCard(id);
  drawCards();
  drawChoices(cardOf(id));
  cardOf(id).scrollIntoView({ behavior: "instant" });
}

// Doubtful points, each with a question
const doubtful = [...unpack(map.doubtful)];
const others = unpack(map.doubtful_other);
const likelyOther = new Map(doubtful.map((point, i) => [point, others[i]]));
const isPhone = matchMedia("(max-width: 45rem)").matches;

function doubtItem(point) {
  const entry = copyOf("doubt-template");
  entry.prepend(tile(point, doubtful, isPhone));
  entry.dataset.doubt = point;
  const [stays, likely, neither] = entry.querySelectorAll("p ~ button");
  stays.onclick = () => move([point], rootOf(found[point]));
  likely.onclick = () => move([point], rootOf(likelyOther.get(point)));
  neither.onclick = () => move([point], NONE);
  drawChoices(entry);
  drawDoubt(entry);
  return entry;
}

function drawDoubt(entry) {
  const point = Number(entry.dataset.doubt);
  const other = groups.has(likelyOther.get(point)) ? rootOf(likelyOther.get(point)) : NONE;
  entry.classList.toggle("answered", isAnswered(point));
  entry.querySelector("b").textContent = titled(groupOf[point]);
  const likely = entry.querySelector("[data-likely]");
  likely.querySelector("span").textContent = titled(other);
  likely.hidden = other === NONE || other === rootOf(found[point]);
}

function drawDoubts() {
  for (const entry of document.querySelectorAll("[data-doubt]")) drawDoubt(entry);
  if (doubtful.length) element("doubts-left").textContent = count(doubtful.filter((point) => !isAnswered(point)).length);
}

// Duplicates: which copy of each set is kept. Nothing is deleted: an export has the others in a folder of their own.
const isKeptOf = (set, { index, keep }) => (decisions.kept.has(set) ? decisions.kept.get(set) === index : keep);

function copyItem(set, copy) {
  const entry = copyOf("copy-template");
  const point = pointOf.get(copy.index);
  const within = pointsOf(copies[set].images.map(({ index }) => index));
  const name = copy.name.toWellFormed();
  entry.prepend(point === undefined ? "" : tile(point, within));
  entry.querySelector("b").textContent = name.split("/").at(-1);
  entry.querySelector("p").append(...inLines(["", ...fileFacts(copy)]));
  const choice = entry.querySelector("button:not(.tile)");
  choice.setAttribute("aria-label", `Keep ${name}`);
  choice.hidden = copy.index < 0; // not on the page
  choice.onclick = () => decide(`${name} is kept of its copies.`, { kind: "keep", set, row: copy.index });
  copy.show = () => {
    choice.disabled = isKeptOf(set, copy);
    entry.classList.toggle("kept", isKeptOf(set, copy));
  };
  copy.show();
  return entry;
}

function copiesItem(set) {
  const { kind, images } = copies[set];
  const title = `${kind === "exact" ? "The same picture" : "Nearly the same"}: ${count(images.length)}`;
  return make("li", {}, make("h3", { textContent: title }), make("ul", { className: "photos copies" }, ...images.map((copy) => copyItem(set, copy))));
}

// The tree of groups: those that are joined at a cut, and the height of the cut as a line
function groupsAt(n) {
  const joined = tree.leaves.map((id) => [id]);
  for (const [left, right] of tree.merges.slice(0, tree.leaves.length - n)) {
    joined.push([...joined[left], ...joined[right]]);
    joined[left] = joined[right] = [];
  }
  return joined.filter((ids) => ids.length);
}

const SHOWN_IN_CUT = 5;

function cutItem(ids) {
  const each = Math.max(1, Math.ceil(SHOWN_IN_CUT / ids.length));
  const shown = ids.flatMap((id) => members(id).slice(0, each)).slice(0, SHOWN_IN_CUT);
  const pictures = make("ul", { className: "photos small" }, ...shown.map((point) => tileItem(point, ids.flatMap(members))));
  if (shown.length) pictures.querySelector("button").tabIndex = 0;
  return make("li", {}, pictures, make("p", {}, ...ids.flatMap((id) => [swatch(id), ` ${titled(id)} `])));
}

function showCut() {
  const n = Number(element("tree-cut").value);
  element("tree-count").textContent = n;
  const filledAt = groupsAt(n).map((ids) => ids.filter((id) => members(id).length)).filter((ids) => ids.length);
  fillList(element("tree-groups"), filledAt, cutItem);
  element("tree-leaves").replaceChildren(...tree.leaves.map((id) => make("li", {}, swatch(id), ` ${titled(id)}`)));
  const done = tree.leaves.length - n;
  const [below, above] = [tree.heights[done - 1] ?? 0, tree.heights[done] ?? tree.heights.at(-1)];
  element("tree-line").setAttribute("d", `M${(below + above) / 2 / (tree.heights.at(-1) || 1)} 0v${tree.leaves.length}`);
}

function drawTree() {
  const nodes = tree.leaves.map((_, i) => [0, i + 0.5]);
  let branches = "";
  tree.merges.forEach(([left, right], i) => {
    const [[x0, y0], [x1, y1]] = [nodes[left], nodes[right]];
    const x = tree.heights[i] / (tree.heights.at(-1) || 1);
    branches += `M${x0} ${y0}H${x}V${y1}H${x1}`;
    nodes.push([x, (y0 + y1) / 2]);
  });
  element("tree-branches").setAttribute("d", branches);
  element("tree-cut").addEventListener("input", showCut);
}
