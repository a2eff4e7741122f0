// The large view of one point, those most alike, and its group
const dialog = element("view");
let current = -1;
let around = []; // what the arrow keys go through

const inFeatures = map.nearest && unpack(map.nearest);

function nearest(point) {
  const place = about.sample[point];
  return inFeatures && place >= 0 ? [...inFeatures.subarray(place * map.n_nearest, (place + 1) * map.n_nearest)] : [];
}

function open(point, list) {
  [current, around] = [point, list];
  const [image, link] = [showFile(element("view-large"), point), element("view-file")];
  // The small picture of a photo is not shown larger than the photo.
  const part = element("view-large").querySelector(".part");
  if (part && about.width?.[point]) part.style.maxWidth = `min(30rem, ${about.width[point]}px)`;
  [link.hidden, link.href] = [true, image?.src ?? "#view"];
  image?.addEventListener("load", () => { link.hidden = false; });
  element("view-name").textContent = titleOf(point).split("/").at(-1);
  element("view-facts").replaceChildren(...inLines(factsOf(point)));
  const near = nearest(point);
  element("view-nearest-title").hidden = !near.length;
  fillList(element("view-nearest"), near, (other) => tileItem(other, members(groupOf[other])));
  const own = element("view-group");
  own.dataset.group = groupOf[point];
  for (const part of own.querySelectorAll(".title, [data-choice=merge], [data-key=y], [data-key=w]")) part.disabled = groupOf[point] === NONE;
  own.querySelector("[data-key=y]").disabled ||= isAnswered(point);
  own.querySelector(".title").value = groups.get(groupOf[point]).name;
  element("view-cluster-title").textContent = `${titled(groupOf[point])}: ${count(sizeOf(groupOf[point]))}`;
  const group = members(groupOf[point]);
  fillList(element("view-members"), group.slice(0, 8), (other) => tileItem(other, group));
  if (!dialog.open) dialog.showModal();
}

// A finger that goes to the side turns to the next picture.
let touched = null;
function swiped({ clientX, clientY }) {
  if (!touched) return;
  const [x, y] = [clientX - touched[0], clientY - touched[1]];
  touched = null;
  if (Math.abs(x) > 40 && Math.abs(x) > 2 * Math.abs(y)) step(x < 0 ? 1 : -1);
}

function step(by) { open(around[(around.indexOf(current) + by + around.length) % around.length], around); }

// The most typical point of the next or last group
function stepGroup(by) {
  const ids = [...membersOf.keys()].filter((id) => members(id).length);
  const id = ids[(ids.indexOf(groupOf[current]) + by + ids.length) % ids.length];
  open(members(id)[0], members(id));
}

// The arrow keys among the pictures of a page: one list has one stop of the Tab key.
function stepTile(tileNow, by) {
  const list = [...tileNow.closest("ul").querySelectorAll(".tile")].filter((other) => other.offsetParent);
  focusTile(list[list.indexOf(tileNow) + by], tileNow);
}

function stepList(tileNow, by) {
  const lists = [...document.querySelectorAll("ul.photos")].filter((list) => list.offsetParent && list.querySelector(".tile"));
  focusTile(lists[lists.indexOf(tileNow.closest("ul")) + by]?.querySelector(".tile"), null);
}

function focusTile(next, before) {
  if (!next) return;
  if (before) before.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}

// What a key does; a button that does the same names its key. Tells whether it does anything.
function press(key, tileNow) {
  const inView = {
    ArrowRight: () => step(1), ArrowLeft: () => step(-1), ArrowDown: () => stepGroup(1), ArrowUp: () => stepGroup(-1), u: () => takeBack(),
    y: () => move([current], groupOf[current]), w: () => move([current], NONE), m: () => element("view-move").focus(), x: () => toggle(current),
  };
  const onTile = tileNow && {
    ArrowRight: () => stepTile(tileNow, 1), ArrowLeft: () => stepTile(tileNow, -1), ArrowDown: () => stepList(tileNow, 1), ArrowUp: () => stepList(tileNow, -1),
    x: () => toggle(pointOf.get(Number(tileNow.dataset.point))),
  };
  const inPage = {
    "/": () => element("find").focus(), Escape: () => { find(""); select([]); }, u: () => takeBack(), "?": () => element("keys").showModal(),
    ...(plot && { "+": () => zoomBy(1.5), "-": () => zoomBy(1 / 1.5), 0: () => zoomBy(0) }), ...onTile,
  };
  const action = !element("keys").open && !element("same").open && (dialog.open ? inView : inPage)[key];
  if (action) action();
  return Boolean(action);
}

function pressedKey(event) {
  if (event.key === "Escape" && event.target.matches?.("input.title")) {
    event.preventDefault(); // It would close the large view as well.
    event.target.value = groups.get(Number(event.target.closest("[data-group]").dataset.group)).name;
    event.target.blur();
  }
  if (event.key === "Enter" && event.target.matches?.("input.title")) {
    event.preventDefault();  // The same key would answer the question about a name of two groups.
    event.target.blur();
  }
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
  if (press(event.key, event.target.closest?.(".tile"))) event.preventDefault();
}

// A click on a picture opens it; on its upper left corner, or with Ctrl or Shift, selects it.
function clicked(event) {
  const [key, all, choose, tileNow] = ["[data-key]", "[data-all]", "[data-choose]", ".tile"].map((selector) => event.target.closest(selector));
  if (event.target.matches("input.title") && !decisions.named.has(Number(event.target.closest("[data-group]").dataset.group))) event.target.select();
  if (key) press(key.dataset.key);
  if (all) showAll(all);
  if (event.target.matches("[data-split], [data-finer]")) split(event.target);
  if (choose) select(members(Number(choose.closest("[data-group]").dataset.group)));
  if (!tileNow) return;
  const point = pointOf.get(Number(tileNow.dataset.point));
  const box = tileNow.getBoundingClientRect();
  const inCorner = event.detail > 0 && event.clientX - box.left < 26 && event.clientY - box.top < 26 && !tileNow.closest("dialog");
  if (inCorner || event.ctrlKey || event.metaKey || event.shiftKey) toggle(point);
  else open(point, tileNow.within);
}

function changed({ target }) {
  const { choice } = target.dataset ?? {};
  const id = Number(target.closest("[data-group]")?.dataset.group);
  if (target.matches("input.title")) rename(id, target.value);
  if (!choice || !target.value) return;
  if (choice === "index") goTo(Number(target.value));
  else if (choice === "merge") merge(id, Number(target.value));
  else move({ view: () => [current], doubt: () => alsoAsked(Number(target.closest("li").dataset.doubt)), selection: () => selected }[choice](), target.value);
  drawChoices(target);
}

// Groups and photos whose name or date has a text
let hits = { ids: [], points: [] };

// "Sao" finds "São", too.
const plain = (text) => text.normalize("NFD").replace(/\p{M}/gu, "").toLowerCase();
const datedNameOf = (point) => `${nameOf(point)} ${(map.taken?.[point] ?? "").replace("T", " ")}`;

function find(text) {
  const wanted = plain(text.trim());
  const has = (name) => wanted !== "" && plain(name).includes(wanted);
  if (!wanted) element("find").value = "";
  hits = { ids: filled().filter((id) => has(titled(id))), points: everyPoint.filter((point) => has(datedNameOf(point))) };
  element("hits").hidden = !wanted;
  element("hits-none").hidden = hits.ids.length + hits.points.length > 0;
  element("hits-select").hidden = !hits.points.length;
  const named = (id) => make("li", {}, make("button", { type: "button", textContent: titled(id), onclick: () => goTo(id) }));
  fillList(element("hits-groups"), hits.ids, named);
  fillList(element("hits-points"), hits.points);
  if (wanted) element("hits").scrollIntoView({ behavior: "instant" });
}

function openHit() {
  if (hits.points.length) open(hits.points[0], hits.points);
  else if (hits.ids.length) goTo(hits.ids[0]);
}

const on = (id, kind, action) => element(id)?.addEventListener(kind, action);
document.addEventListener("click", clicked);
for (const kind of ["pointerdown", "focusin"]) document.addEventListener(kind, ({ target }) => { if (target.dataset?.choice) drawChoices(target); });
document.addEventListener("change", changed);
addEventListener("keydown", pressedKey);
addEventListener("beforeunload", (event) => { if (steps.length && !isKept) event.preventDefault(); });
on("copy", "click", () => navigator.clipboard.writeText(selected.map(nameOf).join("\n")));
on("wrong", "click", () => move(selected, NONE));
on("save-corrections", "click", saveCorrections);
on("more-cards", "click", () => { mostCards += MORE_CARDS; drawCards(); });
on("tree-cut", "input", showCut);
on("tree-apply", "click", applyCut);
on("history", "toggle", drawSteps);
on("undo-all", "click", takeAllBack);
on("view-large", "pointerdown", ({ pointerType, clientX, clientY }) => { touched = pointerType === "touch" ? [clientX, clientY] : null; });
on("view-large", "pointerup", swiped);
on("hits-select", "click", () => select(hits.points));
on("find", "input", ({ target }) => find(target.value));
on("find", "keydown", (event) => {
  if (event.key === "Enter") openHit();
  if (event.key === "Escape" && press("Escape")) event.target.blur();
});

startMap();
const pictures = loadPictures();
recall();
if (tree) drawTree();
for (const list of document.querySelectorAll("[data-points]")) fillList(list, pointsOf(list.dataset.points.split(",").map(Number)));
if (copies.length) fillList(element("duplicate-groups"), copies.map((_, set) => set), copiesItem);
if (doubtful.length) fillList(element("doubts"), [...askedWith.keys()], doubtItem);
document.body.dataset.ready = "true";
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
await pictures;
redraw();
