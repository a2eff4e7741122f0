// The figures made in Python for plotly: an element names the one that it shows.
const touch = matchMedia("(pointer: coarse)").matches; // dragging scrolls the page; only a mouse zooms
// The look of every figure
const axis = {
  gridcolor: "var(--line)", linecolor: "var(--line)", zeroline: false, tickcolor: "var(--line)",
  ticks: "outside", ticklen: 4, automargin: true, title: { standoff: 10 },
};
const look = {
  font: { family: "var(--sans)", size: 12, color: "var(--soft)" },
  paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false,
  margin: { l: 8, r: 8, t: 28, b: 8 }, xaxis: axis, yaxis: axis,
  modebar: { bgcolor: "rgba(0,0,0,0)", color: "var(--faint)", activecolor: "var(--ink)" },
  hoverlabel: { bgcolor: "var(--paper)", bordercolor: "var(--faint)", font: { color: "var(--ink)" } },
};

function draw(target, { data, layout }) {
  // The buttons are listed because the default ones include an upload of the plot to a server.
  const config = {
    displaylogo: false, responsive: true, scrollZoom: false, showSendToCloud: false, plotlyServerURL: "",
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
  };
  // The zoom is kept when the theme changes, but not for another figure in the same place.
  const full = { template: { layout: look }, dragmode: touch ? false : "zoom", uirevision: target.dataset.figure, autosize: true, ...layout };
  return Plotly.react(target, themed(data), themed(full), config);
}

function drawFigures() {
  for (const target of document.querySelectorAll("[data-figure]")) draw(target, report.figures[target.dataset.figure]);
}

for (const select of document.querySelectorAll("select[data-plot]")) {
  const target = element(select.dataset.plot);
  const follow = () => { target.dataset.figure = select.value; };
  follow(); // a reloaded page may keep an earlier selection
  select.addEventListener("change", () => { follow(); draw(target, report.figures[select.value]); });
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
    for (const cluster of group) {
      const link = document.createElement("a");
      link.href = `#cluster-${cluster.id}`;
      const swatch = document.createElement("i");
      swatch.className = `swatch ${cluster.symbol}`;
      swatch.style.setProperty("--c", cluster.color);
      link.append(swatch, ` ${titled(cluster)}`);
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

async function loadPlotly() {
  const script = document.createElement("script");
  script.textContent = await unzip("plotly");
  document.head.append(script);
}

startSelection();
startMap();
if (map.sprite) sheet.src = map.sprite.uri;
Promise.all([loadPlotly(), map.sprite && sheet.decode()]).then(() => {
  drawFigures();
  if (tree) showCut();
  document.body.dataset.ready = "true";
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  markers.clear();
  redraw();
  if (window.Plotly) drawFigures();
});
