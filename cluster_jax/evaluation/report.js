"use strict";
(() => {
  const report = JSON.parse(document.getElementById("report-data").textContent);
  const element = (id) => document.getElementById(id);
  const hidden = new Set(); // groups switched off in the map's legend
  let view = "2";

  // A copy of a figure in which "var(--name)" has become the color of the current theme.
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
  const axis = {
    gridcolor: "var(--line)", linecolor: "var(--line)", zeroline: false, tickcolor: "var(--line)",
    ticks: "outside", ticklen: 4, automargin: true, title: { standoff: 10 },
  };

  function draw(target, data, layout) {
    const full = {
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: "var(--soft)" },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, autosize: true,
      margin: { l: 8, r: 8, t: 28, b: 8 }, dragmode: touch ? false : "zoom", uirevision: "kept",
      modebar: { bgcolor: "rgba(0,0,0,0)", color: "var(--faint)", activecolor: "var(--ink)" },
      hoverlabel: { bgcolor: "var(--paper)", bordercolor: "var(--faint)", font: { color: "var(--ink)" } },
      ...layout,
    };
    for (const key of Object.keys(full)) {
      if (/^[xy]axis\d*$/.test(key)) full[key] = { ...axis, ...full[key], title: { ...axis.title, ...full[key].title } };
    }
    // The buttons are listed because the default ones include an upload of the plot to a server.
    const config = {
      displaylogo: false, responsive: true, scrollZoom: false, showSendToCloud: false, plotlyServerURL: "",
      modeBarButtons: full.scene ? [["toImage", "resetCameraDefault3d"]] : [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
    };
    return Plotly.react(target, themed(data), themed(full), config);
  }

  // plotly reads markup in the texts of a plot.
  const plain = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
  const capital = (text) => text[0].toUpperCase() + text.slice(1);
  const short = (text) => plain(text.length > 28 ? `${text.slice(0, 27)}…` : text);

  function fillSelect() {
    const names = Object.entries(report.history);
    element("scalar")?.append(...names.map(([name, { title }]) => new Option(title, name)));
    if (names.length === 1) element("scalar").parentElement.hidden = true;
  }

  function drawHistory() {
    const name = element("scalar").value;
    const { step, value, title } = report.history[name];
    const alone = value.map((v, i) => v !== null && value[i - 1] == null && value[i + 1] == null);
    const trace = {
      type: "scatter", x: step, y: value, mode: "lines+markers", connectgaps: false,
      line: { color: "var(--accent)", width: 1.75 },
      marker: { color: "var(--accent)", size: alone.map((single) => (single ? 5 : 0)) },
      hovertemplate: "step %{x:,}: %{y:.4g}<extra></extra>",
    };
    draw(element("plot-history"), [trace], {
      xaxis: { title: { text: "step" }, tickformat: "," }, yaxis: { title: { text: plain(title) } }, uirevision: name,
    });
  }

  const webgl = (() => {
    try { return Boolean(document.createElement("canvas").getContext("webgl")); } catch { return false; }
  })();

  function drawMap() {
    const solid = view === "3";
    const count = report.map.count;
    const size = (count > 5000 ? 3 : count > 800 ? 5 : 7) - (solid ? 2 : 0);
    const points = report.map.traces.map((group) => ({
      type: solid ? "scatter3d" : report.map.webgl && webgl ? "scattergl" : "scatter",
      mode: "markers", x: group.x, y: group.y, ...(solid ? { z: group.z } : {}), hoverinfo: "none",
      visible: !hidden.has(group.group),
      marker: {
        color: group.color, size, opacity: 0.8, line: { width: 0 },
        symbol: group.outlier ? group.outlier.map((lone) => group.symbol + (lone ? "-open" : "")) : group.symbol,
      },
    }));
    // In the plane the names are annotations, which lie above points drawn by WebGL.
    const named = report.map.traces.filter((group) => group.tag && !hidden.has(group.group));
    const font = { size: named.length > 30 ? 12 : 15, weight: 700, color: "var(--ink)" };
    const names = named.map(({ tag, tag_at: at }) => (solid
      ? { type: "scatter3d", mode: "text", text: [tag], x: [at[0]], y: [at[1]], z: [at[2]], textposition: "top center", textfont: font, hoverinfo: "skip" }
      : { text: tag, x: at[0], y: at[1], yanchor: "bottom", showarrow: false, font: { ...font, shadow: halo() } }));
    const bare = { showgrid: false, showline: false, showticklabels: false, ticks: "", title: { text: "" } };
    const side = { ...bare, showgrid: true, gridcolor: "var(--line)", showbackground: false, zeroline: false, showspikes: false };
    draw(element("plot-map"), solid ? [...points, ...names] : points, {
      margin: { l: 6, r: 6, t: 6, b: 6 }, hovermode: "closest",
      ...(solid
        ? { scene: { xaxis: side, yaxis: side, zaxis: side, aspectmode: "data" }, dragmode: "orbit" }
        : { xaxis: bare, yaxis: { ...bare, scaleanchor: "x" }, annotations: names }),
    });
  }

  function halo() {
    const paper = themed("var(--paper)");
    return [[1, 0], [-1, 0], [0, 1], [0, -1], [1, 1], [-1, -1], [1, -1], [-1, 1]]
      .map(([x, y]) => `${x}px ${y}px 1px ${paper}`).join(", ");
  }

  const card = element("card");
  const sheet = new Image();
  const mouse = { x: 0, y: 0 };

  function showCard(event) {
    const point = event.points[0];
    const group = report.map.traces[point.curveNumber];
    if (!group) return;
    const at = point.pointNumber;
    const text = card.querySelector("div");
    const line = (tag, words) => {
      const item = document.createElement(tag);
      item.textContent = words;
      text.append(item);
    };
    text.replaceChildren();
    line("strong", `Cluster ${group.cluster[at]}`);
    if (group.label) line("div", `Label: ${group.label[at]}`);
    line("div", group.source ? group.source[at] : `${capital(report.nouns.thing)} ${group.point[at]}`);
    line("div", `Distance ${group.distance[at]}${group.outlier?.[at] ? ", outlier" : ""}`);
    drawPicture(group.thumb[at]);
    card.hidden = false;
    const box = card.getBoundingClientRect();
    const right = mouse.x + 18 + box.width > document.documentElement.clientWidth;
    card.style.left = `${Math.max(8, right ? mouse.x - 18 - box.width : mouse.x + 18)}px`;
    card.style.top = `${Math.min(Math.max(8, mouse.y - box.height / 2), innerHeight - box.height - 8)}px`;
  }

  function drawPicture(thumb) {
    const canvas = card.querySelector("canvas");
    canvas.hidden = thumb < 0 || !sheet.complete;
    if (canvas.hidden) return;
    const { columns, width, height } = report.map.sprite;
    const pen = canvas.getContext("2d");
    const scale = Math.min(canvas.width / width, canvas.height / height);
    const [w, h] = [width * scale, height * scale];
    pen.clearRect(0, 0, canvas.width, canvas.height);
    pen.imageSmoothingEnabled = Math.max(width, height) > 40;
    pen.drawImage(sheet, (thumb % columns) * width, Math.floor(thumb / columns) * height, width, height,
      (canvas.width - w) / 2, (canvas.height - h) / 2, w, h);
  }

  function hideCard() { card.hidden = true; }

  function startMap() {
    if (report.map.sprite) sheet.src = report.map.sprite.uri;
    const plot = element("plot-map");
    const follow = (event) => { mouse.x = event.clientX; mouse.y = event.clientY; };
    for (const kind of ["pointermove", "pointerdown"]) plot.addEventListener(kind, follow, { capture: true, passive: true });
    plot.addEventListener("pointerleave", hideCard);
    addEventListener("scroll", hideCard, { passive: true });
    const listen = () => { plot.on("plotly_hover", showCard); plot.on("plotly_unhover", hideCard); };
    drawMap();
    listen();
    const buttons = report.map.traces.map((group) => {
      const button = document.createElement("button");
      const swatch = document.createElement("i");
      const count = document.createElement("span");
      swatch.className = `swatch ${group.symbol}`;
      swatch.style.setProperty("--c", group.color);
      count.textContent = group.tag ? group.size.toLocaleString("en") : `${group.size.toLocaleString("en")} smaller`;
      button.type = "button";
      button.dataset.group = group.group;
      button.setAttribute("aria-pressed", "true");
      button.append(swatch, group.tag, count);
      const item = document.createElement("li");
      item.append(button);
      element("legend").append(item);
      return button;
    });
    const show = (button, on) => {
      button.setAttribute("aria-pressed", String(on));
      hidden[on ? "delete" : "add"](Number(button.dataset.group));
    };
    for (const button of buttons) {
      button.addEventListener("click", () => { show(button, button.getAttribute("aria-pressed") === "false"); drawMap(); });
    }
    for (const [id, on] of [["show-all", true], ["hide-all", false]]) {
      element(id)?.addEventListener("click", () => { buttons.forEach((button) => show(button, on)); drawMap(); });
    }
    for (const radio of document.querySelectorAll("input[name=view]")) {
      radio.disabled = radio.value === "3" && !webgl;
      radio.addEventListener("change", () => { view = radio.value; hideCard(); Plotly.purge(plot); drawMap(); listen(); });
    }
  }

  function drawSizes() {
    const { id, count, color } = report.sizes;
    const bars = {
      type: "bar", x: id.map(String), y: count, marker: { color }, hovertemplate: `Cluster %{x}: %{y:,} ${report.nouns.things}<extra></extra>`,
      ...(id.length > 20 ? {} : { texttemplate: "%{y:,}", textposition: "outside", cliponaxis: false }),
    };
    draw(element("plot-sizes"), [bars], {
      // At least eight places, so that one or two clusters are not drawn as walls.
      xaxis: { title: { text: "cluster" }, type: "category", range: [-0.5, Math.max(id.length, 8) - 0.5], showgrid: false },
      yaxis: { title: { text: report.nouns.things }, tickformat: "," }, bargap: 0.28,
    });
  }

  // A logarithmic axis whose ticks are written out: 1, 2, 5 a decade over few decades, else 1.
  function logarithmic(values, few) {
    const low = Math.floor(Math.log10(Math.min(...values)));
    const high = Math.ceil(Math.log10(Math.max(...values)));
    const steps = high - low <= few ? [1, 2, 5] : [1];
    const tickvals = [];
    for (let power = low; power <= high; power += 1) tickvals.push(...steps.map((step) => Number(`${step}e${power}`)));
    return { type: "log", tickvals, ticktext: tickvals.map((value) => value.toLocaleString("en", { maximumSignificantDigits: 1 })) };
  }

  function drawCurve() {
    const { bandwidths: x, n_clusters: counts, scores, chosen } = report.curve;
    const line = (y, color, rest) => ({
      type: "scatter", mode: "lines+markers", x, y, line: { color, width: 1.75 }, marker: { color, size: 5 }, ...rest,
    });
    const wide = Math.max(...counts) > 20 * Math.max(1, Math.min(...counts));
    const at = x[chosen];
    draw(element("plot-curve"), [
      line(counts, "var(--accent)", { hovertemplate: "bandwidth %{x:.4g}: %{y:,} clusters<extra></extra>" }),
      line(scores, "var(--second)", { yaxis: "y2", hovertemplate: "bandwidth %{x:.4g}: score %{y:.4g}<extra></extra>" }),
    ], {
      xaxis: { title: { text: "bandwidth" }, anchor: "y2", ...logarithmic(x, 3) },
      yaxis: { title: { text: "clusters" }, domain: [0.54, 1], ...(wide ? logarithmic(counts.filter(Boolean), 1) : { rangemode: "tozero" }) },
      yaxis2: { title: { text: "score" }, domain: [0, 0.44] },
      margin: { l: 8, r: 8, t: 44, b: 8 },
      shapes: [{ x0: at, x1: at, y0: 0, y1: 1, yref: "paper", line: { color: "var(--ink)", width: 1, dash: "dot" } }],
      annotations: [{
        text: `chosen: ${Number(at.toPrecision(3))}`, x: Math.log10(at), y: 1, yref: "paper", yanchor: "bottom",
        showarrow: false, font: { color: "var(--ink)" },
      }],
    });
  }

  function drawConfusion() {
    const { labels, clusters, counts, shares } = report.confusion;
    const plot = element("plot-confusion");
    plot.style.height = `${110 + Math.min(30, Math.max(14, 900 / labels.length)) * labels.length}px`;
    draw(plot, [{
      type: "heatmap", x: clusters.map(String), y: labels.map((_, row) => row), z: shares, customdata: counts, zmin: 0, zmax: 1,
      xgap: 1, ygap: 1, showscale: false, colorscale: [[0, "var(--surface)"], [1, "var(--accent)"]],
      text: counts.map((row) => row.map((count) => (count ? count.toLocaleString("en") : ""))),
      hovertemplate: `cluster %{x}: %{customdata:,} ${report.nouns.things}, %{z:.1%} of the label<extra></extra>`,
      ...(clusters.length > 20 ? {} : { texttemplate: "%{text}" }),
    }], {
      xaxis: { title: { text: "cluster" }, type: "category", showgrid: false },
      yaxis: { autorange: "reversed", showgrid: false, tickvals: labels.map((_, row) => row), ticktext: labels.map(short) },
    });
  }

  function drawRest() {
    if (element("plot-history")) drawHistory();
    drawSizes();
    if (report.curve) drawCurve();
    if (report.confusion) drawConfusion();
  }

  fillSelect();
  startMap();
  drawRest();
  element("scalar")?.addEventListener("change", drawHistory);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { drawMap(); drawRest(); });
})();
