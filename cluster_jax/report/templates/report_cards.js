// Cards: one for each group, with its best pictures; all of them are shown when asked for.
const [MORE_CARDS, SHOWN_BEST, SHOWN_IN_CUT] = [30, 8, 5];
let mostCards = 60;
const cardOf = (id) => element(`cluster-${id}`);

// The card of a new group stands beside that of the group from which its photos come; what is in no group is last.
function placeCard(id) {
  const card = copyOf("card-template");
  [card.id, card.dataset.group] = [`cluster-${id}`, id];
  card.querySelector("header").prepend(swatch(id));
  card.querySelector("[data-guess]").append(groups.get(id).guess ?? "");
  for (const part of card.querySelectorAll("input, select")) part.hidden = id === NONE;
  const source = isMade(id) && cardOf(rootOf(found[members(id)[0]]));
  if (source) source.after(card);
  else element("cards").insertBefore(card, id === NONE ? null : cardOf(NONE));
}

function drawCards() {
  const wanted = filled().filter((id, rank) => rank < mostCards || isMade(id));
  for (const id of [...wanted, NONE]) if (!cardOf(id) && members(id).length) placeCard(id);
  for (const card of [...element("cards").children]) drawCard(card, Number(card.dataset.group));
  element("more-cards").hidden = filled().every(cardOf);
}

function drawCard(card, id) {
  const points = members(id);
  if (!groups.has(id)) card.remove();
  card.hidden = !points.length;
  if (card.hidden) return;
  card.querySelector("[data-title]").textContent = titled(id);
  const field = card.querySelector("input");
  field.placeholder = `${titled(id)}: name it`;
  if (document.activeElement !== field) field.value = groups.get(id).name;
  card.querySelector("[data-size]").textContent = count(sizeOf(id));
  card.querySelector("[data-number]").textContent = id >= 0 && groups.get(id).name ? `${words.cluster} ${id}` : ""; // else in the title
  card.querySelector("[data-guess]").hidden = !groups.get(id).guess || decisions.named.has(id);
  const [list, more] = [card.querySelector(".photos"), card.querySelector("[data-all]")];
  const isOpen = more.getAttribute("aria-expanded") === "true";
  more.hidden = points.length <= SHOWN_BEST;
  list.classList.toggle("best", !isOpen);
  const shown = isOpen ? points : points.slice(0, SHOWN_BEST);
  if (list.shown !== shown.join()) fillList(list, shown, (point) => tileItem(point, points));
  list.shown = shown.join();
  drawParts(card, id);
}

// Which part each part of a cluster belongs to where the cluster is cut into n of them
function cutOf(cluster, n) {
  const merges = map.parts[cluster] ?? [];
  const tops = Array.from({ length: merges.length + 1 }, (_, part) => part);
  merges.slice(0, Math.max(0, tops.length - n)).forEach((pair, i) => {
    tops.forEach((top, part) => { if (pair.includes(top)) tops[part] = tops.length + i; });
  });
  return tops;
}

// The parts of a group where each cluster that it has points of is cut into n, the largest first
function partsAt(id, n) {
  const [cuts, parts] = [new Map(), new Map()];
  for (const point of members(id)) {
    const cluster = found[point];
    if (!cuts.has(cluster)) cuts.set(cluster, cutOf(cluster, n));
    const key = `${cluster} ${cuts.get(cluster)[about.part[point]]}`;
    parts.set(key, [...(parts.get(key) ?? []), point]);
  }
  return [...parts.values()].sort((one, other) => other.length - one.length);
}

// The cuts of a group that differ, the one of the fewest parts first; each has several
function cutsOf(id) {
  const cuts = about.part && id !== NONE ? [1, 2, 3, 4, 5, 6, 7, 8].map((n) => partsAt(id, n)) : [];
  return cuts.filter((parts, i) => parts.length > (cuts[i - 1]?.length ?? 1));
}

function partItem(part) {
  const pictures = make("ul", { className: "photos small" });
  fillList(pictures, part.slice(0, SHOWN_BEST), (point) => tileItem(point, part));
  const button = make("button", { type: "button", textContent: `Make it a new ${words.cluster}`, onclick: () => move(part, "new") });
  return make("li", {}, make("p", { textContent: count(part.length) }), pictures, button);
}

function drawParts(card, id) {
  const [box, button] = [card.querySelector(".parts"), card.querySelector("[data-split]")];
  button.hidden = id === NONE || !about.part || members(id).length < 2;
  const cuts = card.cut === undefined ? [] : cutsOf(id);
  box.hidden = !cuts.length;
  button.setAttribute("aria-expanded", String(!box.hidden));
  if (box.hidden) card.cut = undefined;
  else card.cut = Math.min(card.cut, cuts.length - 1);
  box.querySelector("[data-finer]").hidden = card.cut >= cuts.length - 1;
  fillList(box.querySelector("ul"), cuts[card.cut] ?? [], partItem);
}

// Asks whether a group is one kind or two; either answer takes the question away.
function kindItem(id) {
  const parts = make("ul", {}, ...partsAt(id, 2).map(partItem));
  const entry = make("li", {}, make("h3", { textContent: `${titled(id)}: one kind or two?` }), parts);
  const whole = () => decide(`${titled(id)} is of one kind.`, { kind: "whole", group: id });
  entry.append(make("button", { type: "button", textContent: "One kind", onclick: whole }));
  return entry;
}

function drawKinds() {
  const list = element("kinds");
  if (!list || !about.part) return;
  const divided = [...decisions.moved].filter(([, to]) => isMade(to)).map(([point]) => found[point]);
  const answered = new Set([...divided, ...decisions.whole]);
  const asked = map.asked.filter((id) => rootOf(id) === id && !answered.has(id) && partsAt(id, 2).length === 2);
  element("kinds-asked").hidden = !asked.length;
  const shown = asked.map((id) => [titled(id), ...members(id)]).join();
  if (list.shown !== shown) fillList(list, asked, kindItem);
  list.shown = shown;
}

// Opens the parts of a group, makes them smaller, or closes them.
function split(button) {
  const card = button.closest("article");
  if ("finer" in button.dataset) card.cut += 1;
  else card.cut = card.cut === undefined ? 0 : undefined;
  drawParts(card, Number(card.dataset.group));
}

function showAll(button) {
  button.setAttribute("aria-expanded", String(button.getAttribute("aria-expanded") !== "true"));
  drawCards();
}

function goTo(id) {
  if (!cardOf(id)) placeCard(id);
  drawCards();
  cardOf(id).scrollIntoView({ behavior: "instant" });
}

// Doubtful points, each with a question
const doubtful = [...unpack(map.doubtful)];
const others = unpack(map.doubtful_other);
const likelyOther = new Map(doubtful.map((point, i) => [point, others[i]]));
const isSettled = (point) => isAnswered(point) || groupOf[point] === rootOf(likelyOther.get(point)); // or its two groups are one now
const isPhone = matchMedia("(max-width: 45rem)").matches;

// The photos that one question is about: photos of one moment, and near copies. The first one is shown large.
const askedWith = new Map(map.questions.map((points) => [points[0], points]));

// Those for which the answer about the first one holds: not those that were answered otherwise.
const alsoAsked = (point) => askedWith.get(point).filter((other) => !isAnswered(other) || groupOf[other] === groupOf[point]);

function doubtItem(point) {
  const entry = copyOf("doubt-template");
  const more = askedWith.get(point).slice(1);
  const pictures = make("ul", { className: "photos small" });
  if (more.length) fillList(pictures, more, (other) => tileItem(other, askedWith.get(point)));
  entry.prepend(tile(point, doubtful, isPhone), ...(more.length ? [pictures] : []));
  entry.dataset.doubt = point;
  const [stays, likely] = entry.querySelectorAll("p ~ button");
  if (more.length) stays.textContent = `Yes, all ${more.length + 1} stay`;
  stays.onclick = () => move(alsoAsked(point), rootOf(found[point]));
  likely.onclick = () => move(alsoAsked(point), rootOf(likelyOther.get(point)));
  drawDoubt(entry);
  return entry;
}

function drawDoubt(entry) {
  const point = Number(entry.dataset.doubt);
  const other = groups.has(likelyOther.get(point)) ? rootOf(likelyOther.get(point)) : NONE;
  entry.classList.toggle("answered", isSettled(point));
  entry.hidden = isSettled(point) && !isAnswered(point);
  for (const part of entry.querySelectorAll("[data-open]")) part.hidden = isAnswered(point);
  entry.querySelector("b").textContent = groupOf[point] === NONE ? `no ${words.cluster}` : titled(groupOf[point]);
  const likely = entry.querySelector("[data-likely]");
  likely.querySelector("span").textContent = titled(other);
  likely.hidden = other === NONE || other === groupOf[point];
}

function drawDoubts() {
  for (const entry of document.querySelectorAll("[data-doubt]")) drawDoubt(entry);
  const left = doubtful.filter((point) => !isSettled(point)).length;
  for (const shown of document.querySelectorAll("h1 a, #doubts-left")) shown.textContent = `${count(left)} ${left === 1 ? "is" : "are"} doubtful`;
}

// Duplicates: which copy of each set is kept. Nothing is deleted: an export has the others in a folder of their own.
const isKeptOf = (set, { index, keep }) => (decisions.kept.has(set) ? decisions.kept.get(set) === index : keep);

function copyItem(set, copy) {
  const entry = copyOf("copy-template");
  const [point, within] = [pointOf.get(copy.index), pointsOf(copies[set].images.map(({ index }) => index))];
  const name = copy.name.toWellFormed();
  entry.prepend(point === undefined ? "" : tile(point, within));
  entry.querySelector("b").textContent = name.split("/").at(-1);
  entry.querySelector("p").append(...inLines(["", ...fileFacts(copy)]));
  const choice = entry.querySelector("button:not(.tile)");
  choice.setAttribute("aria-label", `Keep ${name}`);
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
  const title = `${kind === "exact" ? "The same file" : "Nearly the same"}: ${count(images.length)}`;
  return make("li", {}, make("h3", { textContent: title }), make("ul", { className: "photos copies" }, ...images.map((copy) => copyItem(set, copy))));
}

// The tree of groups: those that are joined at a cut, and the height of the cut as a line
function groupsAt(n) {
  const joined = tree.leaves.map((id) => [id]);
  for (const [left, right] of tree.merges.slice(0, tree.leaves.length - n)) {
    joined.push([...joined[left], ...joined[right]]);
    joined[left] = joined[right] = [];
  }
  return joined.map((ids) => ids.filter((id) => members(id).length)).filter((ids) => ids.length);
}

function cutItem(ids) {
  const each = Math.max(1, Math.ceil(SHOWN_IN_CUT / ids.length));
  const [within, shown] = [ids.flatMap(members), ids.flatMap((id) => members(id).slice(0, each)).slice(0, SHOWN_IN_CUT)];
  const pictures = make("ul", { className: "photos small" });
  fillList(pictures, shown, (point) => tileItem(point, within));
  return make("li", {}, pictures, make("p", {}, ...ids.flatMap((id) => [swatch(id), ` ${titled(id)} `])));
}

function showCut() {
  const n = Number(element("tree-cut").value);
  element("tree-count").textContent = n;
  fillList(element("tree-groups"), groupsAt(n), cutItem);
  element("tree-leaves").replaceChildren(...tree.leaves.map((id) => make("li", {}, swatch(id), ` ${titled(id)}`)));
  const done = tree.leaves.length - n;
  const [below, above] = [tree.heights[done - 1] ?? 0, tree.heights[done] ?? tree.heights.at(-1)];
  element("tree-line").setAttribute("d", `M${(below + above) / 2 / (tree.heights.at(-1) || 1)} 0v${tree.leaves.length}`);
}

// The groups of the cut become those of the page, by steps that can be taken back: the largest one receives the others.
function applyCut() {
  for (const ids of groupsAt(Number(element("tree-cut").value))) {
    const [into, ...others] = ids.sort((one, other) => members(other).length - members(one).length);
    for (const id of others) merge(id, into);
  }
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
}
