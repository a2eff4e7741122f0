// What is not saved yet survives that the page is closed, and that the run moves on: the page of its next state offers it
// again, for the photos and groups that are the same by what they are.
const storageKey = `cluster_jax ${report.state}`;
const SAMPLE = 50; // photos by which a group is known again
let isKept = true; // whether the browser keeps it
function inStorage(use) {
  try {
    return use();
  } catch {
    isKept = false;
    return null;
  }
}

// By it a later file of the same page and browser is known to be a change of mind, and no other person's file. A text that
// changes with each visit does where the browser keeps nothing.
const browser = (() => {
  const key = "cluster_jax_browser";
  const fresh = Math.random().toString(36).slice(2);
  return inStorage(() => localStorage.getItem(key) ?? (localStorage.setItem(key, fresh), fresh)) ?? fresh;
})();

// The number of the next file that this browser saves. By it a file is known to be earlier than one that was applied.
let lastFile = 0;
function numberOfFile() {
  const key = "cluster_jax_files";
  lastFile = Math.max(lastFile, Number(inStorage(() => localStorage.getItem(key)))) + 1;
  inStorage(() => localStorage.setItem(key, lastFile));
  return lastFile;
}

// What tells a photo from all others, also on another page and under another name; "" if only its number does
function identity(point) {
  if (about.digest?.[point]) return [about.digest[point], about.width[point], about.height[point]].join("|");
  return map.names && !/^row \d+$/.test(nameOf(point)) ? nameOf(point) : "";
}

const groupsOf = ({ to, group, into }) => [to, group, into].filter((id) => id !== undefined && id !== NONE);

// The photos and groups that some steps are about. The groups are those after all other steps.
function evidence(open) {
  const now = decided(steps.filter((step) => !open.includes(step)));
  const wanted = new Map(open.flatMap(groupsOf).map((id) => [rootOf(id, now), []]));
  if (wanted.size) for (const point of everyPoint) wanted.get(rootOf(now.moved.get(point) ?? found[point], now))?.push(point);
  const rows = open.flatMap((step) => step.rows ?? (step.kind === "keep" ? [step.row] : []));
  const known = [...wanted].filter(([, points]) => points.length);
  return {
    photos: Object.fromEntries(rows.map((row) => [row, pointOf.has(row) ? identity(pointOf.get(row)) : ""])),
    groups: Object.fromEntries(known.map(([id, points]) => [id, { size: points.length, photos: points.slice(0, SAMPLE).map(identity) }])),
  };
}

function store() {
  // What another window with this page has stored is not stored by this one again.
  const own = inStorage(() => stored(storageKey));
  if (!own && !steps.length) return; // A window that opens must not replace the first decision of another one.
  if (own && !own.isCarried && JSON.stringify(own.steps) === JSON.stringify(steps)) return;
  const put = (more) => localStorage.setItem(storageKey, JSON.stringify({ page: location.pathname, at: Date.now(), steps, ...more }));
  const unsaved = steps.filter((step) => !step.isSaved);
  const all = () => (unsaved.length < steps.length ? evidence(steps) : undefined);
  inStorage(() => {
    try { put({ ...evidence(unsaved), all: all() }); } catch { put({}); } // without what lets the next page know the photos, there is more room
  });
}

function stored(key) {
  const value = JSON.parse(localStorage.getItem(key));
  return Array.isArray(value) ? { steps: value } : value;
}

// What the page of another state of this run has stored last, and no page has taken over; null for nothing. Saved steps are
// in the run if it has applied the file.
function earlier() {
  const keys = Object.keys(localStorage).filter((key) => key.startsWith("cluster_jax ") && key !== storageKey);
  const kept = keys.map((key) => ({ key, ...stored(key) })).filter(({ page, isCarried }) => page === location.pathname && !isCarried);
  const last = kept.sort((one, other) => other.at - one.at)[0];
  const isApplied = report.applied.includes(`${last?.key.slice("cluster_jax ".length)} ${browser}`);
  if (!isApplied && last?.steps.some((step) => step.isSaved)) {
    return { ...last, ...last.all, done: "applied", steps: last.steps.map((step) => ({ ...step, isSaved: false })) };
  }
  return last?.steps.some((step) => !step.isSaved) ? { ...last, done: "saved" } : null;
}

// The steps that an earlier page has not saved as steps of this one, and those that suit it no longer. What holds by now
// is neither.
function carried({ steps: before, photos = {}, groups: known = {} }) {
  const places = new Map(everyPoint.map((point) => [identity(point), point]));
  const pointNow = (row) => (photos[row] ? places.get(photos[row]) : undefined);
  // The group that has most of its photos and is no more than twice as large
  const groupNow = (id) => {
    if (id === NONE || (isMade(id) && !known[id])) return id;
    const { size, photos: sample } = known[id] ?? { size: 0, photos: [] };
    const ids = sample.map((photo) => (photo ? found[places.get(photo)] : undefined));
    const has = (other) => ids.filter((one) => one === other).length;
    return [...groups.keys()].find((other) => other !== NONE && 2 * has(other) > sample.length && groups.get(other).size <= 2 * size);
  };
  const now = {
    move(step) {
      const [points, to] = [step.rows.map(pointNow), groupNow(step.to)];
      const rows = points.filter((point) => point !== undefined && found[point] !== to).map((point) => about.index[point]);
      const isWhole = to !== undefined && !points.includes(undefined);
      return [to !== undefined && rows.length ? { ...step, kind: "move", rows, to } : null, isWhole];
    },
    right: (step) => {
      const rows = step.rows.filter((row) => found[pointNow(row)] === groupNow(step.to));
      return rows.length === step.rows.length ? [{ ...step, rows: rows.map((row) => about.index[pointNow(row)]) }, true] : now.move(step);
    },
    merge(step) {
      const [group, into] = [groupNow(step.group), groupNow(step.into)];
      const isWhole = group !== undefined && into !== undefined;
      return [isWhole && group !== into ? { ...step, group, into } : null, isWhole];
    },
    name(step) {
      const group = groupNow(step.group);
      return [group !== undefined && firstNames.get(group) !== step.name ? { ...step, group } : null, group !== undefined];
    },
    whole(step) {
      const group = groupNow(step.group);
      return [map.asked.includes(group) ? { ...step, group } : null, group !== undefined];
    },
    keep(step) {
      const row = about.index[pointNow(step.row)];
      const set = copies.findIndex(({ images }) => images.some(({ index }) => index === row));
      return [set >= 0 ? { ...step, set, row } : null, set >= 0];
    },
  };
  const results = before.filter((step) => !step.isSaved).map((step) => [step, ...now[step.kind](step)]);
  return { steps: results.map(([, step]) => step).filter(Boolean), lost: results.filter(([, , isWhole]) => !isWhole).map(([step]) => step.said) };
}

function recall() {
  const own = inStorage(() => stored(storageKey)) ?? { steps: [] };
  steps = own.steps;
  const isSaved = steps.some((step) => step.isSaved);
  let said = steps.length ? "The corrections of your last visit are here again." : "";
  if (isSaved) said = "The corrections that you had saved are here again. The run does not have them: they were not applied, or they were undone.";
  const before = !steps.length || own.isCarried ? inStorage(earlier) : null;
  if (before) {
    const { key, done, ...rest } = before;
    const { steps: again, lost } = carried(rest);
    steps = again;
    inStorage(() => localStorage.setItem(key, JSON.stringify({ ...rest, isCarried: true })));
    const not = lost.length ? `Not ${done}, and not to be had again as the run has changed: ${lost.join(" ")}` : "";
    const what = done === "saved" ? "What you had not saved when the run changed" : "What you had saved, and the run does not have,";
    said = [again.length ? `${what} is here again.` : "", not].filter(Boolean).join(" ");
  }
  refresh(said);
}

// The same page in two windows is one page: each goes on with what was decided in the other one.
addEventListener("storage", ({ key, newValue }) => {
  if (key !== storageKey || !newValue) return;
  steps = JSON.parse(newValue).steps;
  refresh("");
});
