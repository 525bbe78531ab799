// Main: decodes the data, lays out and paints the page, and listens to the user.

function rebuild(keepWindow = true) {
  const before = [view.t0, view.t1], whole = isWhole();
  alignTimelines(data.timelines);
  view.width = canvas("view").clientWidth;
  layout(data.timelines);
  const g = document.createElement("canvas").getContext("2d");
  g.font = `11px ${view.theme.sans}`;
  const badges = Math.max(...data.timelines.map((t) => g.measureText(t.badge).width), 0);
  const names = Math.max(...data.timelines.flatMap((t) => t.lanes.map((l) => g.measureText(l).width)), 0);
  view.badge = badges;
  view.gutter = Math.round(Math.min(62 + Math.min(names, 130) + 14 + badges + 10, view.width * 0.4));
  Object.assign(canvas("view").dataset, { gutter: view.gutter, rows: view.rows.map((r) => RULER + r.y + r.height / 2).join(" ") });
  sizeCanvas("main", view.width, view.height);
  sizeCanvas("overlay", view.width, view.height);
  paintMinimap(data.timelines);
  setWindow(...(keepWindow && !whole ? before : view.full));
  drawAll();
}

function chip(label, title) {
  const made = element("button", element("i"), label);
  made.type = "button";
  made.title = title;
  made.setAttribute("aria-pressed", "true");
  return made;
}

// Paints the buttons that show or hide timelines: pale with an outline if predicted, solid if measured.
function paintShown() {
  const tone = view.theme.full[0], root = canvas("shown");
  root.replaceChildren(...data.timelines.map((t) => {
    const made = chip("", `Show or hide: ${t.caption}`);
    made.querySelector("i").style.cssText = `background:${view.theme.tones[t.label][0][4]};box-shadow:inset 0 0 0 1px ${tone}`;
    made.append(t.caption, Object.assign(element("span", seconds(t.makespan)), { className: "sum" }));
    made.setAttribute("aria-pressed", String(t.shown));
    made.onclick = () => { t.shown = !t.shown; paintShown(); rebuild(); };
    return made;
  }));
}

function paintLegend() {
  const present = data.groups.map((_, g) => g < data.groups.length - 1 && data.timelines.some((t) => t.present.includes(g)));
  canvas("legend").replaceChildren(...data.groups.flatMap(([name], g) => {
    if (!present[g]) return [];
    const made = chip(name, `Show or fade: ${name}`);
    made.querySelector("i").style.cssText = `background:${view.theme.full[g]}`;
    made.setAttribute("aria-pressed", String(!view.hidden.has(g)));
    made.onclick = () => { view.hidden.has(g) ? view.hidden.delete(g) : view.hidden.add(g); paintLegend(); rebuild(); };
    return [made];
  }));
}

function radios(id, key, choose) {
  const buttons = [...canvas(id).querySelectorAll("button")];
  for (const button of buttons) button.onclick = () => {
    for (const other of buttons) other.setAttribute("aria-checked", String(other === button));
    choose(button.dataset[key]);
  };
}

function paint() {
  readTheme(data.groups);
  paintShown();
  paintLegend();
  rebuild();
}

const holder = document.getElementById("data");
const data = await decode(holder.textContent.trim());
holder.remove();
const several = new Set(data.timelines.map((t) => t.label)).size < data.timelines.length;
for (const t of data.timelines) t.badge = several ? t.caption : t.label;
radios("align", "align", (value) => { view.align = value; rebuild(false); });
radios("group", "group", (value) => { view.grouping = value; rebuild(); });
canvas("align").hidden = canvas("group").hidden = data.timelines.length < 2;
listenFind(canvas("find"), canvas("found"), canvas("messages"));
listenFindings(document.querySelectorAll("button.finding"));
listen(canvas("view"), canvas("overlay"), canvas("minimap"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
new ResizeObserver(() => { if (canvas("view").clientWidth !== view.width) rebuild(); }).observe(canvas("view"));
paint();
document.documentElement.dataset.ready = "true";
