// Keyboard shortcuts, the choice of the theme, and charts. Pages work without it.
(() => {
  "use strict";
  const root = document.documentElement;

  function isDark() {
    const chosen = root.dataset.theme;
    return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  }

  function changeTheme() {
    root.dataset.theme = isDark() ? "light" : "dark";
    localStorage.setItem("theme", root.dataset.theme);
    drawCharts();
  }

  function drawCharts() {
    const style = getComputedStyle(root);
    const ink = style.getPropertyValue("--ink").trim();
    const line = style.getPropertyValue("--accent").trim();
    const grid = style.getPropertyValue("--line").trim();
    for (const place of document.querySelectorAll("[data-chart]")) {
      const chart = JSON.parse(place.dataset.chart);
      if (chart.times.length !== chart.values.length) continue;
      place.replaceChildren();
      const axis = { stroke: ink, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1 } };
      new uPlot(
        {
          width: Math.max(place.clientWidth, 200), height: 180, legend: { show: false }, cursor: { show: false },
          scales: { y: { range: (_chart, _least, most) => [0, most || 1] } },
          series: [{}, { label: chart.unit, stroke: line, width: 2 }], axes: [axis, { ...axis, size: 70 }],
        },
        [chart.times, chart.values], place,
      );
    }
  }

  function moveRow(step) {
    const rows = [...document.querySelectorAll("a.row")];
    if (!rows.length) return;
    const at = rows.indexOf(document.activeElement);
    rows[Math.min(Math.max(at + step, 0), rows.length - 1)].focus();
  }

  let pending = "";
  const places = { o: "", t: "/topics", g: "/groups", b: "/brokers" };

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (/^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) return;
    const base = document.body.dataset.base;
    if (pending === "g" && event.key in places && base) {
      pending = "";
      location.href = base + places[event.key];
      return;
    }
    pending = event.key === "g" ? "g" : "";
    if (event.key === "/") {
      const filter = document.querySelector("input[type=search]");
      if (filter) { event.preventDefault(); filter.focus(); filter.select(); }
    } else if (event.key === "?") document.getElementById("shortcuts").showModal();
    else if (event.key === "j") moveRow(1);
    else if (event.key === "k") moveRow(-1);
    else if (event.key === "d") changeTheme();
  });

  document.addEventListener("click", (event) => {
    const copied = event.target.closest("[data-copy]");
    if (copied) navigator.clipboard.writeText(copied.dataset.copy);
  });
  document.getElementById("theme").addEventListener("click", changeTheme);
  document.getElementById("help").addEventListener("click", () => document.getElementById("shortcuts").showModal());
  document.addEventListener("htmx:afterSettle", drawCharts);
  document.addEventListener("htmx:sseMessage", (event) => {
    const most = Number(event.target.dataset && event.target.dataset.most);
    while (most && event.target.rows.length > most) event.target.deleteRow(-1);
  });
  let resizing = 0;
  addEventListener("resize", () => { clearTimeout(resizing); resizing = setTimeout(drawCharts, 100); });
  drawCharts();
})();
