// Live pages and charts. Every table is complete without this file.
"use strict";
(() => {
  const root = document.documentElement;
  root.classList.add("js");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const color = (name) => getComputedStyle(root).getPropertyValue(name).trim();

  // ---- charts: the library's JSON from /api/charts/, coloured by the style sheet

  const shown = new Map(); // element -> {text, chart}
  const hues = {
    accepted: "--good", finished: "--calm", rejected: "--warn", failed: "--bad", cancelled: "--line-strong",
    champion: "--accent", base: "--line-strong", candidate: "--accent", link: "--line",
    dominated: "--soft", ensemble: "--series-2", front: "--ink", star: "--accent",
    "check-passed": "--good", "check-luck": "--bad",
    "series-0": "--series-0", "series-1": "--series-1", "series-2": "--series-2", "series-3": "--series-3",
  };

  const sizes = { champion: 8, star: 16, front: 10, "check-passed": 9, "check-luck": 9 };
  const symbols = {
    rejected: "x-thin-open", failed: "triangle-down-open", base: "circle-open", ensemble: "triangle-up", front: "circle-open",
    star: "star", "check-passed": "diamond", "check-luck": "x",
  };

  function dressed(chart, element) {
    const ink = color("--soft"), line = color("--line"), small = element.clientWidth < 520;
    const data = chart.data.map((trace) => {
      const hue = color(hues[trace.meta] || "--series-0");
      const made = { ...trace };
      if (trace.type === "bar") made.marker = { color: hue };
      else {
        made.cliponaxis = false; // a mark on the axis is seen whole
        made.line = { width: trace.meta === "link" ? 2 : 1.8, ...(trace.line || {}), color: hue };
        made.marker = { size: sizes[trace.meta] || 7, color: hue, opacity: trace.meta in sizes ? 1 : 0.75,
          symbol: symbols[trace.meta] || "circle", line: { color: hue, width: trace.meta === "star" ? 0 : 1.6 } };
      }
      return made;
    });
    const axis = (given) => ({
      gridcolor: line, zerolinecolor: line, linecolor: line, tickfont: { color: ink, size: 11 }, automargin: true,
      nticks: small ? 5 : undefined, ...given, title: { font: { color: ink, size: 12 }, standoff: 8, ...((given || {}).title || {}) },
    });
    const layout = {
      ...chart.layout, autosize: true, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, color: ink, size: 12 },
      margin: { l: 52, r: 12, t: 8, b: 36 }, showlegend: data.filter((t) => t.showlegend !== false).length > 1,
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, font: { color: ink, size: 11 } },
      hoverlabel: { bgcolor: color("--paper"), bordercolor: color("--line-strong"), font: { color: color("--ink"), size: 12 } },
    };
    for (const name of new Set(["xaxis", "yaxis", ...Object.keys(chart.layout).filter((key) => /^[xy]axis\d*$/.test(key))]))
      layout[name] = axis(chart.layout[name]);
    layout.shapes = (chart.layout.shapes || []).map((shape) => ({ ...shape, line: { ...(shape.line || {}), color: color("--line-strong") } }));
    layout.annotations = (chart.layout.annotations || []).map((note) => ({ ...note, font: { color: ink, size: 11 } }));
    return { data, layout };
  }

  function draw(element, chart) {
    if (!window.Plotly) return;
    const { data, layout } = dressed(chart, element);
    window.Plotly.react(element, data, layout, { displayModeBar: false, responsive: true, scrollZoom: false });
  }

  async function fill(element) {
    let text;
    try {
      const answer = await fetch(element.dataset.chart, { headers: { accept: "application/json" } });
      if (!answer.ok) return;
      text = await answer.text();
    } catch { return; }
    const before = shown.get(element);
    if (before && before.text === text) return;
    const chart = JSON.parse(text);
    shown.set(element, { text, chart });
    draw(element, chart);
  }

  const charts = () => [...document.querySelectorAll("[data-chart]")];
  dark.addEventListener("change", () => shown.forEach(({ chart }, element) => draw(element, chart)));

  // ---- live: the page is asked for again, and regions that changed are put in place

  const pulse = document.querySelector(".pulse");
  const seconds = Number(document.body.dataset.live || 0);
  let asking = false, timer = 0;
  const isLive = () => Number(document.body.dataset.live || 0) > 0;
  const later = () => { clearTimeout(timer); timer = setTimeout(again, seconds * 1000); };

  function place(now, fresh) {
    if (now.innerHTML === fresh.innerHTML) return;
    const open = new Set([...now.querySelectorAll("details[open][id]")].map((e) => e.id));
    const focus = document.activeElement && now.contains(document.activeElement) ? document.activeElement : null;
    const mark = focus && (focus.id ? `#${CSS.escape(focus.id)}` : focus.getAttribute("href") ? `a[href="${CSS.escape(focus.getAttribute("href"))}"]` : null);
    const ends = new Map([...now.querySelectorAll("pre[id]")].map((e) => [e.id, [e.scrollTop, e.scrollHeight - e.scrollTop - e.clientHeight < 8]]));
    now.replaceChildren(...[...fresh.childNodes].map((node) => document.importNode(node, true)));
    open.forEach((id) => { const e = document.getElementById(id); if (e) e.open = true; });
    ends.forEach(([top, atEnd], id) => { const e = document.getElementById(id); if (e) e.scrollTop = atEnd ? e.scrollHeight : top; });
    if (mark) { const e = now.querySelector(mark); if (e) e.focus({ preventScroll: true }); }
  }

  async function again() {
    if (asking || document.hidden) return; // the end of the other call, or being seen again, goes on
    const selection = getSelection();
    if (selection && !selection.isCollapsed) { later(); return; } // somebody is about to copy
    asking = true;
    try {
      const answer = await fetch(location.href, { headers: { accept: "text/html" } });
      if (!answer.ok) throw new Error(String(answer.status));
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      for (const fresh of page.querySelectorAll("[data-region]")) {
        const now = document.querySelector(`[data-region="${CSS.escape(fresh.dataset.region)}"]`);
        if (now) place(now, fresh);
      }
      document.body.dataset.live = page.body.dataset.live || "0";
      pulse.classList.remove("away");
      pulse.querySelector("span").textContent = "live";
      await Promise.all(charts().map(fill));
    } catch {
      pulse.classList.add("away");
      pulse.querySelector("span").textContent = "no answer";
    } finally {
      asking = false;
      if (isLive()) later();
      else pulse.classList.remove("on");
    }
  }

  addEventListener("DOMContentLoaded", () => {
    charts().forEach(fill);
    document.querySelectorAll("pre[data-end]").forEach((e) => { e.scrollTop = e.scrollHeight; });
    if (seconds > 0) {
      pulse.classList.add("on");
      later();
      document.addEventListener("visibilitychange", () => { if (!document.hidden && isLive()) again(); });
    }
  });
  addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
    if (/^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName)) return;
    const field = document.querySelector("input[type=search]");
    if (field) { event.preventDefault(); field.focus(); field.select(); }
  });
})();
