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
      modeBarButtons: layout.scene ? [["toImage", "resetCameraDefault3d"]] : [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
    };
    // The zoom is kept when the theme changes, but not for another figure in the same place.
    const full = { dragmode: touch ? false : "zoom", uirevision: target.dataset.figure ?? "map", autosize: true, ...layout };
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
  const sheet = new Image();
  const mouse = { x: 0, y: 0 };

  function showCard(event) {
    const trace = map.traces[event.points[0].curveNumber];
    if (!trace) return; // a name in 3-D
    const at = event.points[0].pointNumber;
    const text = card.querySelector("div");
    const line = (tag, words) => {
      const item = document.createElement(tag);
      item.textContent = words;
      text.append(item);
    };
    text.replaceChildren();
    line("strong", `Cluster ${trace.cluster_labels[at]}`);
    if (trace.label_names) line("div", `Label: ${trace.label_names[at]}`);
    line("div", trace.sources ? trace.sources[at] : `${map.noun[0].toUpperCase()}${map.noun.slice(1)} ${trace.points[at]}`);
    line("div", `Distance ${trace.distances[at]}${trace.outliers?.[at] ? ", outlier" : ""}`);
    if (trace.probabilities) {
      const second = trace.runners_up[at];
      line("div", `Probability ${trace.probabilities[at]}${second ? `, of cluster ${second[0]} ${second[1]}` : ""}`);
    }
    drawThumbnail(trace.thumbnails[at]);
    card.hidden = false;
    const box = card.getBoundingClientRect();
    const right = mouse.x + 18 + box.width > document.documentElement.clientWidth;
    card.style.left = `${Math.max(8, right ? mouse.x - 18 - box.width : mouse.x + 18)}px`;
    card.style.top = `${Math.min(Math.max(8, mouse.y - box.height / 2), innerHeight - box.height - 8)}px`;
  }

  function drawThumbnail(place) {
    const canvas = card.querySelector("canvas");
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
    const listen = () => { plot.on("plotly_hover", showCard); plot.on("plotly_unhover", hideCard); };
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

  startMap();
  drawFigures();
  if (tree) showCut();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { drawMap(); drawFigures(); });
})();
