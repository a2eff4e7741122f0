"use strict";
(() => {
  const report = JSON.parse(document.getElementById("report-data").textContent);
  const element = (id) => document.getElementById(id);

  // A copy of a figure in which "var(--name)" has become its value in the current theme.
  function themed(value) {
    if (typeof value === "string") {
      const name = /^var\((--[a-z]+)\)$/.exec(value);
      return name ? getComputedStyle(document.documentElement).getPropertyValue(name[1]).trim() : value;
    }
    if (Array.isArray(value)) return value.map(themed);
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, themed(item)]));
  }

  // Dragging on a touch screen scrolls the page; only a mouse zooms.
  const touch = matchMedia("(pointer: coarse)").matches;

  function draw(target, { data, layout }) {
    // The buttons are listed because the default ones include an upload of the plot to a server.
    const config = {
      displaylogo: false, responsive: true, scrollZoom: false, showSendToCloud: false, plotlyServerURL: "",
      modeBarButtons: layout.scene ? [["toImage", "resetCameraDefault3d"]] : [["toImage", "lasso2d", "select2d", "zoom2d", "pan2d", "resetScale2d"]],
    };
    // The zoom is kept when the theme changes, but not for another figure in the same place.
    const full = { dragmode: touch ? false : target === plot ? "lasso" : "zoom", uirevision: target.dataset.figure ?? "map", autosize: true, ...layout };
    return Plotly.react(target, themed(data), themed(full), config);
  }

  // The figures made in Python: an element names the one that it shows.
  function drawFigures() {
    for (const target of document.querySelectorAll("[data-figure]")) draw(target, report.figures[target.dataset.figure]);
  }

  for (const select of document.querySelectorAll("select[data-plot]")) {
    const target = element(select.dataset.plot);
    const follow = () => { target.dataset.figure = select.value; };
    follow(); // a reloaded page may keep an earlier selection
    select.addEventListener("change", () => { follow(); draw(target, report.figures[select.value]); });
  }

  // The map
  const map = report.map;
  const plot = element("plot-map");
  const legend = [...document.querySelectorAll("[data-trace]")];
  const hidden = new Set(); // traces switched off in the legend
  let view = "2";
  const sheet = new Image(); // all thumbnails
  // All drawn points in one list, with what is known of each.
  const unpack = ({ bdata }) => new Float32Array(Uint8Array.from(atob(bdata), (c) => c.charCodeAt(0)).buffer);
  const items = map.traces.flatMap((trace) => {
    const axes = Object.values(trace.coordinates).map(unpack);
    return trace.points.map((point, i) => ({
      point, trace, i, at: axes.map((axis) => axis[i]), cluster: trace.cluster_labels[i], thumbnail: trace.thumbnails[i],
      name: trace.sources ? trace.sources[i] : String(point),
    }));
  });
  const itemOf = new Map(items.map((item) => [item.point, item]));
  const starts = []; // of each trace in the list
  map.traces.reduce((start, trace) => { starts.push(start); return start + trace.points.length; }, 0);
  const webgl = (() => {
    try { return Boolean(document.createElement("canvas").getContext("webgl")); } catch { return false; }
  })();

  function drawMap() {
    const solid = view === "3";
    const size = (map.webgl ? 3 : map.n_points > 800 ? 5 : 7) - (solid ? 2 : 0);
    const points = map.traces.map((trace, i) => ({
      type: solid ? "scatter3d" : map.webgl && webgl ? "scattergl" : "scatter",
      mode: "markers", x: trace.coordinates.x, y: trace.coordinates.y, ...(solid ? { z: trace.coordinates.z } : {}),
      hoverinfo: "none", visible: !hidden.has(i),
      marker: {
        color: trace.color, size, opacity: 0.8, line: { width: 0 },
        symbol: trace.outliers ? trace.outliers.map((outlier) => trace.symbol + (outlier ? "-open" : "")) : trace.symbol,
      },
    }));
    // In 2-D the names are annotations, which lie above points drawn by WebGL.
    const named = map.traces.filter((trace, i) => trace.name && !hidden.has(i));
    const font = { size: named.length > 30 ? 12 : 15, weight: 700, color: "var(--ink)" };
    const names = named.map(({ name, name_position: at }) => (solid
      ? { type: "scatter3d", mode: "text", text: [name], x: [at[0]], y: [at[1]], z: [at[2]], textposition: "top center", textfont: font, hoverinfo: "skip" }
      : { text: name, x: at[0], y: at[1], yanchor: "bottom", showarrow: false, font: { ...font, shadow: halo() } }));
    const bare = { showgrid: false, showline: false, showticklabels: false, ticks: "", title: { text: "" } };
    const side = { ...bare, showgrid: true, gridcolor: "var(--line)", showbackground: false, zeroline: false, showspikes: false };
    draw(plot, {
      data: solid ? [...points, ...names] : points,
      layout: {
        template: map.template, margin: { l: 6, r: 6, t: 6, b: 6 }, hovermode: "closest",
        ...(solid
          ? { scene: { xaxis: side, yaxis: side, zaxis: side, aspectmode: "data" }, dragmode: "orbit" }
          : { xaxis: bare, yaxis: { ...bare, scaleanchor: "x" }, annotations: names }),
      },
    });
  }

  function halo() {
    const paper = themed("var(--paper)");
    return [[1, 0], [-1, 0], [0, 1], [0, -1], [1, 1], [-1, -1], [1, -1], [-1, 1]]
      .map(([x, y]) => `${x}px ${y}px 1px ${paper}`).join(", ");
  }

  // The card next to the pointer
  const card = element("card");
  const mouse = { x: 0, y: 0 };

  function line(parent, tag, words) {
    const item = document.createElement(tag);
    item.textContent = words;
    parent.append(item);
  }

  function describe(parent, { trace, i, cluster }) {
    line(parent, "strong", `Cluster ${cluster}`);
    if (trace.label_names) line(parent, "div", `Label: ${trace.label_names[i]}`);
    line(parent, "div", `Distance ${trace.distances[i]}${trace.outliers?.[i] ? ", outlier" : ""}`);
    if (trace.probabilities) {
      const second = trace.runners_up[i];
      line(parent, "div", `Probability ${trace.probabilities[i]}${second ? `, of cluster ${second[0]} ${second[1]}` : ""}`);
    }
  }

  function titleOf(item) {
    return item.trace.sources ? item.name : `${map.noun[0].toUpperCase()}${map.noun.slice(1)} ${item.point}`;
  }

  function itemAt({ curveNumber, pointNumber }) { return map.traces[curveNumber] && items[starts[curveNumber] + pointNumber]; }

  function showCard(event) {
    const item = itemAt(event.points[0]);
    if (!item) return; // a name in 3-D
    const text = card.querySelector("div");
    text.replaceChildren();
    describe(text, item);
    line(text, "div", titleOf(item));
    drawThumbnail(card.querySelector("canvas"), item.thumbnail);
    card.hidden = false;
    const box = card.getBoundingClientRect();
    const right = mouse.x + 18 + box.width > document.documentElement.clientWidth;
    card.style.left = `${Math.max(8, right ? mouse.x - 18 - box.width : mouse.x + 18)}px`;
    card.style.top = `${Math.min(Math.max(8, mouse.y - box.height / 2), innerHeight - box.height - 8)}px`;
  }

  function drawThumbnail(canvas, place) {
    canvas.hidden = place < 0 || !sheet.complete;
    if (canvas.hidden) return;
    const { columns, width, height } = map.sprite;
    const pen = canvas.getContext("2d");
    const scale = Math.min(canvas.width / width, canvas.height / height);
    const [w, h] = [width * scale, height * scale];
    pen.clearRect(0, 0, canvas.width, canvas.height);
    pen.imageSmoothingEnabled = Math.max(width, height) > 40;
    pen.drawImage(sheet, (place % columns) * width, Math.floor(place / columns) * height, width, height,
      (canvas.width - w) / 2, (canvas.height - h) / 2, w, h);
  }

  function hideCard() { card.hidden = true; }

  function startMap() {
    if (map.sprite) sheet.src = map.sprite.uri;
    const follow = (event) => { mouse.x = event.clientX; mouse.y = event.clientY; };
    for (const kind of ["pointermove", "pointerdown"]) plot.addEventListener(kind, follow, { capture: true, passive: true });
    plot.addEventListener("pointerleave", hideCard);
    addEventListener("scroll", hideCard, { passive: true });
    const listen = () => {
      plot.on("plotly_hover", showCard);
      plot.on("plotly_unhover", hideCard);
      plot.on("plotly_click", (event) => { const item = itemAt(event.points[0]); if (item) open(item, membersOf(item)); });
      plot.on("plotly_selected", (event) => select((event?.points ?? []).map(itemAt).filter(Boolean)));
    };
    drawMap();
    listen();
    const show = (button, on) => {
      button.setAttribute("aria-pressed", String(on));
      hidden[on ? "delete" : "add"](Number(button.dataset.trace));
    };
    for (const button of legend) {
      button.addEventListener("click", () => { show(button, button.getAttribute("aria-pressed") === "false"); drawMap(); });
    }
    for (const [id, on] of [["show-all", true], ["hide-all", false]]) {
      element(id).addEventListener("click", () => { for (const button of legend) show(button, on); drawMap(); });
    }
    for (const radio of document.querySelectorAll("input[name=view]")) {
      radio.disabled = radio.value === "3" && !webgl;
      radio.addEventListener("change", () => { view = radio.value; hideCard(); Plotly.purge(plot); drawMap(); listen(); });
    }
  }

  // The large view of one image, and the images nearest to it on the map
  const dialog = element("view");
  let current = null;
  let around = []; // what the arrow keys go through

  function membersOf({ trace }) {
    const start = starts[map.traces.indexOf(trace)];
    return items.slice(start, start + trace.points.length).sort((a, b) => trace.distances[a.i] - trace.distances[b.i]);
  }

  function nearest(item, count) {
    const distance = (other) => item.at.reduce((sum, x, d) => sum + (x - other.at[d]) ** 2, 0);
    const best = [];
    for (const other of items) {
      const far = distance(other);
      if (other === item || (best.length === count && far >= best.at(-1)[0])) continue;
      best.splice(best.findIndex(([d]) => d > far) >>> 0, 0, [far, other]);
      best.length = Math.min(best.length, count);
    }
    return best.map(([, other]) => other);
  }

  function tiles(list, shown, within) {
    list.replaceChildren(...shown.map((item) => {
      const entry = document.createElement("li");
      const button = document.createElement("button");
      button.className = "tile";
      button.title = `${titleOf(item)}, cluster ${item.cluster}`;
      button.style.setProperty("--c", item.trace.color);
      const canvas = document.createElement("canvas");
      canvas.width = canvas.height = 56;
      drawThumbnail(canvas, item.thumbnail);
      if (canvas.hidden) button.textContent = titleOf(item);
      else button.append(canvas);
      button.setAttribute("aria-label", button.title);
      button.addEventListener("click", () => open(item, within ?? membersOf(item)));
      entry.append(button);
      return entry;
    }));
  }

  function open(item, list) {
    [current, around] = [item, list];
    const image = Object.assign(new Image(), { alt: titleOf(item) });
    const canvas = element("view-canvas");
    drawThumbnail(canvas, item.thumbnail);
    element("view-large").replaceChildren(canvas);
    image.onload = () => { if (current === item) element("view-large").replaceChildren(image); };
    // A name that is not valid Unicode has no URI.
    if (map.folder && item.trace.sources && item.name.isWellFormed()) image.src = map.folder + item.name.split("/").map(encodeURIComponent).join("/");
    element("view-name").textContent = titleOf(item);
    const facts = element("view-facts");
    facts.replaceChildren();
    describe(facts, item);
    if (corrections.has(item)) line(facts, "div", `Correction: ${correctionText(corrections.get(item))}`);
    tiles(element("view-nearest"), nearest(item, 8));
    element("view-move").value = "";
    hideCard();
    if (!dialog.open) dialog.showModal();
  }

  function step(by) { open(around[(around.indexOf(current) + by + around.length) % around.length], around); }

  // Selected images, by a lasso or by name, and corrections of their clusters
  const MAX_TILES = 60;
  let selected = [];
  const corrections = new Map(); // item -> the cluster that it belongs to, or "" for another one
  let saved = true;
  const clusterNames = [...new Set(items.map((item) => item.cluster))].sort((a, b) => a - b);
  const count = (n) => `${n.toLocaleString("en")} ${map.noun}${n === 1 ? "" : "s"}`;

  function correctionText(to) { return to === "" ? "wrong cluster" : `move to cluster ${to}`; }

  function select(list) {
    selected = list;
    element("selection").hidden = !list.length;
    const more = list.length > MAX_TILES ? `; the first ${MAX_TILES} are shown` : "";
    element("selection-count").textContent = `${count(list.length)} selected${more}`;
    tiles(element("selection-tiles"), list.slice(0, MAX_TILES), list);
  }

  function correct(list, to) {
    for (const item of list) {
      if (to === String(item.cluster)) corrections.delete(item);
      else corrections.set(item, to);
    }
    saved = corrections.size === 0;
    element("corrections").hidden = saved;
    element("corrections-count").textContent = `${count(corrections.size)} corrected`;
    if (dialog.open) open(current, around);
  }

  function save(name, rows) {
    const cell = (value) => (/[",\n]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);
    const text = rows.map((row) => row.map((value) => cell(String(value))).join(",")).join("\n");
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([`${text}\n`], { type: "text/csv" }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  function startSelection() {
    for (const id of ["move", "view-move"]) {
      const options = ["", ...clusterNames].map((name) => new Option(name === "" ? "cluster …" : name, name));
      element(id).replaceChildren(...options);
    }
    const on = (id, kind, action) => element(id).addEventListener(kind, action);
    on("copy", "click", () => navigator.clipboard.writeText(selected.map((item) => item.name).join("\n")));
    on("save", "click", () => save("selected.csv", [[map.noun, "cluster"], ...selected.map((item) => [item.name, item.cluster])]));
    on("clear", "click", () => { select([]); element("find").value = ""; drawMap(); });
    on("wrong", "click", () => correct(selected, ""));
    on("move", "change", (event) => { if (event.target.value) correct(selected, event.target.value); event.target.value = ""; });
    on("view-wrong", "click", () => correct([current], ""));
    on("view-move", "change", (event) => { if (event.target.value) correct([current], event.target.value); });
    on("view-back", "click", () => step(-1));
    on("view-next", "click", () => step(1));
    on("undo", "click", () => { const all = [...corrections.keys()]; corrections.clear(); correct([], ""); if (all.length) select(all); });
    on("save-corrections", "click", () => {
      const rows = [...corrections].map(([item, to]) => [item.name, item.cluster, to === "" ? "wrong" : "move", to]);
      save("corrections.csv", [[map.noun, "cluster", "correction", "to"], ...rows]);
      saved = true;
    });
    on("find", "input", (event) => {
      const words = event.target.value.trim().toLowerCase();
      select(words ? items.filter((item) => item.name.toLowerCase().includes(words)) : []);
    });
    on("find", "keydown", (event) => { if (event.key === "Enter" && selected.length) open(selected[0], selected); });
    for (const tile of document.querySelectorAll("[data-point]")) {
      const item = itemOf.get(Number(tile.dataset.point));
      tile.disabled = !item; // not drawn
      if (item) tile.addEventListener("click", () => open(item, membersOf(item)));
    }
    addEventListener("keydown", (event) => {
      if (/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
      if (dialog.open && (event.key === "ArrowRight" || event.key === "ArrowLeft")) step(event.key === "ArrowRight" ? 1 : -1);
      else if (!dialog.open && event.key === "/") element("find").focus();
      else if (!dialog.open && event.key === "Escape") select([]);
      else return;
      event.preventDefault();
    });
    addEventListener("beforeunload", (event) => { if (!saved) event.preventDefault(); });
  }

  // The tree of clusters: the groups at a cut, and the height of the cut as a line
  const tree = report.tree;

  function groupsAt(count) {
    const groups = tree.leaves.map((leaf) => [leaf]);
    tree.merges.forEach(([left, right], i) => {
      groups.push(i < tree.leaves.length - count ? [...groups[left], ...groups[right]] : null);
      if (groups.at(-1)) groups[left] = groups[right] = null;
    });
    return groups.filter(Boolean);
  }

  function showCut() {
    const count = Number(element("tree-cut").value);
    element("tree-count").textContent = count;
    const items = groupsAt(count).map((group) => {
      const item = document.createElement("li");
      for (const { id, color, symbol } of group) {
        const link = document.createElement("a");
        link.href = `#cluster-${id}`;
        const swatch = document.createElement("i");
        swatch.className = `swatch ${symbol}`;
        swatch.style.setProperty("--c", color);
        link.append(swatch, ` ${id}`);
        item.append(link);
      }
      return item;
    });
    element("tree-groups").replaceChildren(...items);
    const done = tree.leaves.length - count;
    const [below, above] = [tree.heights[done - 1] ?? 0, tree.heights[done] ?? tree.heights.at(-1) * 1.08];
    const at = { type: "line", xref: "paper", x0: 0, x1: 1, y0: (below + above) / 2, y1: (below + above) / 2 };
    report.figures.tree.layout.shapes = [{ ...at, line: { color: "var(--accent)", width: 1, dash: "dot" } }];
    draw(element("plot-tree"), report.figures.tree);
  }

  if (tree) element("tree-cut").addEventListener("input", showCut);

  // plotly.js is a third of its size compressed.
  async function loadPlotly() {
    const bytes = Uint8Array.from(atob(element("plotly").textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(stream).text();
    document.head.append(script);
  }

  startSelection();
  loadPlotly().then(() => {
    startMap();
    drawFigures();
    if (tree) showCut();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { drawMap(); drawFigures(); });
    document.body.dataset.ready = "true";
  });
})();
