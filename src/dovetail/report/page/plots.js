// Plots: draws each figure into its place, in the colours of the reader's theme.
(() => {
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const themed = (layout) => {
    const grid = { gridcolor: css("--line"), linecolor: css("--line"), zerolinecolor: css("--faint"), tickcolor: css("--line") };
    const axes = Object.fromEntries(Object.keys(layout).filter((key) => /^[xy]axis/.test(key)).flatMap((axis) => Object.entries(grid).map(([k, v]) => [`${axis}.${k}`, v])));
    return { paper_bgcolor: css("--bg"), plot_bgcolor: css("--panel"), "font.color": css("--muted"), "font.family": css("--sans"), "hoverlabel.bgcolor": css("--panel"), ...axes };
  };
  const config = { displaylogo: false, responsive: true, modeBarButtons: [["zoom2d", "pan2d", "resetScale2d", "toImage"]] };
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const places = [...document.querySelectorAll(".plot")];
  places.forEach((place, i) => Plotly.newPlot(place, figures[i].data, figures[i].layout, config).then(() => Plotly.relayout(place, themed(figures[i].layout))));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => places.forEach((place, i) => Plotly.relayout(place, themed(figures[i].layout))));
  document.documentElement.dataset.ready = "true";
})();
