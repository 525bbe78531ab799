// Draw: ruler, rows (short spans are merged into pixel columns), and gutter.

const canvas = (id) => document.getElementById(id);
const layers = {};
function sizeCanvas(id, width, height) {
  const ratio = devicePixelRatio || 1, element = canvas(id);
  element.width = Math.round(width * ratio);
  element.height = Math.round(height * ratio);
  element.style.height = `${height}px`;
  layers[id] = element.getContext("2d");
  layers[id].setTransform(ratio, 0, 0, ratio, 0, 0);
  layers[id].textBaseline = "middle";
}

let pending = false;
function requestDraw() {
  if (pending) return;
  pending = true;
  requestAnimationFrame(() => { pending = false; drawAll(); });
}
function drawAll() {
  const began = performance.now();
  drawMain();
  drawMinimapWindow();
  drawOverlay();
  canvas("view").dataset.window = `${view.t0} ${view.t1}`;
  document.documentElement.dataset.drawMs = (performance.now() - began).toFixed(2);
}

// Rectangles grouped by colour: one change of fillStyle per colour, not per span.
class Batch {
  constructor() { this.byColour = new Map(); }
  add(colour, x, y, w, h) {
    let list = this.byColour.get(colour);
    if (!list) this.byColour.set(colour, (list = []));
    list.push(x, y, w, h);
  }
  flush(g) {
    for (const [colour, list] of this.byColour) {
      g.fillStyle = colour;
      for (let i = 0; i < list.length; i += 4) g.fillRect(list[i], list[i + 1], list[i + 2], list[i + 3]);
    }
  }
}

function drawMain() {
  const g = layers.main, { theme, width, height, gutter } = view;
  g.fillStyle = theme.panel;
  g.fillRect(0, 0, width, height);
  const ticks = ticksOf(view.t0, view.t1, width - gutter);
  g.fillStyle = theme.soft;
  for (const { x } of ticks) if (x >= gutter) g.fillRect(Math.round(x), RULER, 1, height - RULER);
  g.save();
  g.beginPath();
  g.rect(0, RULER, width, height - RULER);
  g.clip();
  const seen = view.rows.filter((r) => r.y + r.height >= view.scroll && r.y <= view.scroll + height - RULER);
  const batch = new Batch(), rims = new Batch(), texts = [];
  for (const row of seen) drawRow(batch, rims, texts, row, RULER + row.y - view.scroll);
  rims.flush(g);
  batch.flush(g);
  drawTexts(g, texts);
  drawGutter(g, seen);
  g.restore();
  drawRuler(g, ticks);
  drawScrollbar(g);
}

// Draws spans wider than two pixels one by one, others by pixel column in the colour of the column's busiest group.
function drawRow(batch, rims, texts, row, y) {
  const { track, height } = row, t = track.timeline, { gutter, width, theme } = view;
  const own = perPixel() / t.scale, t0 = toOwn(t, view.t0), end = toOwn(t, view.t1);
  const tones = theme.tones[t.label], outline = t.label !== "measured";
  const run = { colour: null, x: 0, w: 0 };
  const flush = () => { if (run.colour) batch.add(run.colour, run.x, y, Math.min(run.w, width - run.x), height); run.colour = null; };
  let i = firstEnd(t, track, t0), column = null;
  for (;;) {
    const carried = column && column.over > 0;
    if (!carried && (i >= track.end || t.start[i] >= end)) break;
    if (!carried && t.dur[i] >= 2 * own) {
      flush();
      drawSpan(batch, outline ? rims : null, texts, t, i, gutter + (t.start[i] - t0) / own, t.dur[i] / own, y, height);
      i++;
      column = null;
      continue;
    }
    const pixel = carried ? column.pixel + 1 : Math.max(Math.floor((t.start[i] - t0) / own), 0);
    if (gutter + pixel > width) break;
    const edge = t0 + (pixel + 1) * own;
    let stop = i < track.end && t.start[i] < edge ? gallop(t, i, track.end, edge) : i;
    if (stop > i && t.dur[stop - 1] >= 2 * own) stop--;
    column = columnOf(t, i, stop, edge, own, carried ? column : null, pixel);
    i = stop;
    const colour = view.hidden.has(column.group) ? theme.soft : tones[column.group][column.level];
    if (run.colour !== colour || run.x + run.w !== gutter + pixel) { flush(); Object.assign(run, { colour, x: gutter + pixel, w: 0 }); }
    run.w++;
  }
  flush();
}

// Returns a pixel column's busiest group and fill level. Spans [low, high) begin in it; `before` extends into it.
function columnOf(t, low, high, edge, own, before, pixel) {
  const last = high > low ? high - 1 : -1, over = last >= 0 ? t.start[last] + t.dur[last] - edge : before.over - own;
  let group = before?.group ?? t.group[low], most = -1, busy = 0, seen = false;
  for (let k = 0; k < t.present.length; k++) {
    const g = t.present[k];
    let sum = t.sums[k][high] - t.sums[k][low];
    if (last >= 0 && g === t.group[last]) sum -= Math.max(over, 0);
    if (before && g === before.tail) sum += Math.min(before.over, own);
    busy += sum;
    if (!sum && most >= 0) continue;
    const shown = !view.hidden.has(g); // shown groups have priority over hidden ones
    if (shown > seen || (shown === seen && sum > most)) { most = sum; group = g; seen = shown && sum > 0; }
  }
  return { pixel, over, group, tail: last >= 0 ? t.group[last] : before.tail, level: Math.max(0, Math.min(4, Math.floor((busy / own) * 5 + 0.25))) };
}

function drawSpan(batch, rims, texts, t, i, x, w, y, height) {
  const group = t.group[i], { theme, gutter, width, hidden } = view;
  const left = Math.max(x, gutter - 2), right = Math.min(x + w, width + 2), wide = right - left;
  const fill = hidden.has(group) ? theme.soft : theme.tones[t.label][group][4];
  const gap = w > 4 ? 0.75 : 0;
  if (rims && wide > 4 && !hidden.has(group)) {
    rims.add(theme.full[group], left, y, wide - gap, height);
    batch.add(fill, left + 1, y + 1, wide - gap - 2, height - 2);
  } else batch.add(fill, left, y, Math.max(wide - gap, 0.6), height);
  if (wide > 30 && height >= 13 && !hidden.has(group)) texts.push({ t, i, x: Math.max(left, gutter) + 5, room: right - Math.max(left, gutter) - 9, y: y + height / 2 + 0.5, fill });
}

function drawTexts(g, texts) {
  g.font = `11px ${view.theme.sans}`;
  const em = g.measureText("matmul recv_reduce 0123").width / 23;
  const shown = texts.length > 1500 ? texts.filter((text) => text.room > 90).slice(0, 1500) : texts; // if there are many, only wide ones
  for (const { t, i, x, room, y, fill } of shown) {
    const name = t.names[t.name[i]] ?? "", most = Math.floor(room / em);
    const full = most > name.length + 6 && t.program && t.op[i] >= 0 ? t.program.text(t.op[i]) : "";
    const text = full && full.length <= most ? full : name.length <= most ? name : most > 8 ? `${name.slice(0, most - 1)}…` : "";
    if (!text) continue;
    g.fillStyle = isPale(fill) ? "#22262b" : "#ffffff";
    g.fillText(text, x, y);
  }
}

function drawGutter(g, rows) {
  const { theme, gutter, height } = view;
  g.fillStyle = theme.panel;
  g.fillRect(0, RULER, gutter, height - RULER);
  for (const row of rows) {
    const t = row.track.timeline, y = RULER + row.y - view.scroll + row.height / 2 + 0.5, byRank = view.grouping === "rank";
    if (row.outer) {
      g.font = `600 12px ${theme.sans}`;
      g.fillStyle = theme.ink;
      g.fillText(`rank ${row.track.rank}`, 12, y);
      const above = 9 + (!byRank && row.timeline ? 18 : 0);
      if (row !== view.rows[0]) { g.fillStyle = theme.line; g.fillRect(0, Math.round(y - row.height / 2 - above), view.width, 1); }
    }
    g.font = `11px ${theme.sans}`;
    if (row.lane) {
      g.fillStyle = theme.ink;
      fitText(g, laneName(row.track), 62, y, gutter - 62 - (byRank ? view.badge + 18 : 8));
    }
    if (row.track.depth === 0 && byRank) {
      g.fillStyle = t.label === "measured" ? theme.ink : theme.muted;
      g.textAlign = "right";
      g.fillText(t.badge, gutter - 9, y);
      g.textAlign = "left";
    }
    if (!byRank && row.timeline) {
      g.fillStyle = theme.muted;
      g.font = `600 11px ${theme.sans}`;
      g.fillText(t.caption, 12, y - row.height / 2 - 12);
    }
  }
}

function fitText(g, text, x, y, room) {
  let shown = text;
  while (shown.length > 2 && g.measureText(shown).width > room) shown = `${shown.slice(0, -2)}…`;
  g.fillText(shown, x, y);
}

// Ticks at 1, 2, 5 times a power of ten, as many as their labels leave room for.
function ticksOf(t0, t1, width) {
  const unit = SECONDS.find(([s]) => Math.max(Math.abs(t0), Math.abs(t1)) >= s) ?? SECONDS[3];
  let step = 10 ** Math.floor(Math.log10((t1 - t0) / Math.max(width / 80, 1)));
  for (const factor of [1, 2, 5, 10, 20, 50]) {
    const decimals = Math.max(0, -Math.floor(Math.log10((step * factor) / unit[0] + 1e-12)));
    const label = ((t1 / unit[0]).toFixed(decimals) + unit[1]).length * 6.4 + 26;
    if ((step * factor * width) / (t1 - t0) >= label) { step *= factor; break; }
  }
  const places = Math.max(0, -Math.floor(Math.log10(step / unit[0]) + 1e-9)), ticks = [];
  for (let k = Math.ceil(t0 / step); k * step <= t1; k++) {
    const value = (k * step) / unit[0];
    ticks.push({ x: xOf(k * step), text: k === 0 ? "0" : `${value.toFixed(places)} ${unit[1]}` });
  }
  return ticks;
}

function drawRuler(g, ticks) {
  const { theme, gutter, width } = view;
  g.fillStyle = theme.panel;
  g.fillRect(0, 0, width, RULER);
  g.fillStyle = theme.line;
  g.fillRect(0, RULER - 1, width, 1);
  const flags = drawEnds(g);
  g.font = `11px ${theme.sans}`;
  for (const { x, text } of ticks) {
    if (x < gutter - 1) continue;
    g.fillStyle = theme.faint;
    g.fillRect(Math.round(x), RULER - 6, 1, 5);
    const end = x + 6 + g.measureText(text).width;
    if (end > width || flags.some((flag) => x + 5 < flag.end && end > flag.left)) continue;
    g.fillStyle = theme.muted;
    g.fillText(text, Math.round(x) + 5, RULER / 2);
  }
}

// Marks the end of each timeline by a labelled flag; returns the parts of the ruler that flags occupy.
function drawEnds(g) {
  const { theme, gutter, width, height } = view;
  g.font = `600 11px ${theme.sans}`;
  const flags = [];
  let taken = Infinity;
  for (const t of [...data.timelines].filter((t) => t.shown).sort((a, b) => toView(b, b.makespan) - toView(a, a.makespan))) {
    const x = xOf(toView(t, t.makespan));
    if (x < gutter || x > width + 2) continue;
    const text = `${t.caption} ${seconds(t.makespan)}`, wide = g.measureText(text).width;
    g.fillStyle = t.label === "measured" ? theme.ink : theme.muted;
    for (let y = RULER; y < height; y += t.label === "measured" ? height : 6) g.fillRect(Math.round(x), y, 1, t.label === "measured" ? height : 3);
    const left = Math.min(x - wide - 6, taken - wide - 16);
    if (left < gutter) continue;
    g.fillText(text, left, RULER / 2);
    flags.push({ left: left - 8, end: left + wide + 8 });
    taken = left;
  }
  return flags;
}

function drawScrollbar(g) {
  const { theme, width, height, content, scroll } = view, room = height - RULER;
  if (content <= room + 1) return;
  g.fillStyle = theme.line;
  g.fillRect(width - SCROLLBAR, RULER, SCROLLBAR, room);
  g.fillStyle = theme.faint;
  g.fillRect(width - SCROLLBAR + 1, RULER + (scroll / content) * room, SCROLLBAR - 2, (room / content) * room);
}
