// Over: the minimap, and the overlay: outlines of the hovered and the selected span, messages, the pointer's time.

const MAP_STRIP = 18, MOST_MESSAGES = 400;

// Paints, for each shown timeline, the share of lanes that are busy with each group, by pixel column.
function paintMinimap(timelines) {
  const shown = timelines.filter((t) => t.shown);
  view.mapHeight = MAP_PAD * 2 + Math.max(shown.length, 1) * (MAP_STRIP + 3) - 3;
  sizeCanvas("minimap", view.width, view.mapHeight);
  view.map = document.createElement("canvas");
  view.map.width = canvas("minimap").width;
  view.map.height = canvas("minimap").height;
  const g = view.map.getContext("2d");
  g.setTransform(layers.minimap.getTransform());
  g.textBaseline = "middle";
  g.font = `11px ${view.theme.sans}`;
  shown.forEach((t, row) => {
    const y = MAP_PAD + row * (MAP_STRIP + 3);
    paintShares(g, t, y);
    g.fillStyle = view.theme.muted;
    g.textAlign = "right";
    g.fillText(t.badge, view.gutter - 9, y + MAP_STRIP / 2);
    g.textAlign = "left";
  });
}

function paintShares(g, t, y) {
  const columns = Math.max(1, Math.floor(view.width - view.gutter)), [low, high] = view.full, own = (high - low) / columns;
  const shares = view.theme.full.map(() => new Float32Array(columns));
  const lanesInAll = Math.max(t.tracks.filter((k) => k.depth === 0).length, 1);
  for (let i = 0; i < t.start.length; i++) {
    const a = (toView(t, t.start[i]) - low) / own, b = a + (t.dur[i] * t.scale) / own, share = shares[t.group[i]];
    for (let c = Math.max(0, Math.floor(a)); c < columns && c < b; c++) share[c] += (Math.min(b, c + 1) - Math.max(a, c)) / lanesInAll;
  }
  const batch = new Batch();
  for (let c = 0; c < columns; c++) {
    let base = y + MAP_STRIP;
    shares.forEach((share, group) => {
      const h = Math.min(share[c], 1) * MAP_STRIP;
      if (h <= 0.05 || view.hidden.has(group)) return;
      batch.add(view.theme.tones[t.label][group][4], view.gutter + c, base - h, 1, h);
      base -= h;
    });
  }
  g.fillStyle = view.theme.soft;
  g.fillRect(view.gutter, y, columns, MAP_STRIP);
  batch.flush(g);
}

const mapX = (time) => view.gutter + ((time - view.full[0]) / (view.full[1] - view.full[0])) * (view.width - view.gutter);
const mapTime = (x) => view.full[0] + ((x - view.gutter) / (view.width - view.gutter)) * (view.full[1] - view.full[0]);

function drawMinimapWindow() {
  const g = layers.minimap, { theme, width, mapHeight, gutter } = view;
  g.fillStyle = theme.panel;
  g.fillRect(0, 0, width, mapHeight);
  g.drawImage(view.map, 0, 0, width, mapHeight);
  if (isWhole()) return;
  const a = mapX(view.t0), b = mapX(view.t1), w = Math.max(b - a, 2);
  g.globalAlpha = 0.62;
  g.fillStyle = theme.panel;
  g.fillRect(gutter, 0, a - gutter, mapHeight);
  g.fillRect(a + w, 0, width - a - w, mapHeight);
  g.globalAlpha = 1;
  g.strokeStyle = theme.accent;
  g.lineWidth = 1.5;
  g.strokeRect(a, 1, w, mapHeight - 2);
}

function drawOverlay() {
  const g = layers.overlay, { width, height, gutter, theme } = view;
  g.clearRect(0, 0, width, height);
  g.save();
  g.beginPath();
  g.rect(gutter, RULER, width - gutter, height - RULER);
  g.clip();
  if (view.messages) drawMessages(g);
  for (const span of [view.kept, view.hover]) if (span?.timeline.shown) drawRelations(g, span);
  if (view.cursor) {
    g.fillStyle = theme.faint;
    g.fillRect(Math.round(view.cursor), RULER, 1, height - RULER);
  }
  if (view.selection) drawSelection(g);
  g.restore();
  if (view.cursor) drawCursorTime(g);
}

// Draws a span's outline, its counterparts in other timelines, its messages, and what it waited for.
function drawRelations(g, { timeline: t, index }) {
  const { theme } = view, op = t.op[index], p = t.program;
  outlineSpan(g, t, index, theme.ink, 2);
  if (op < 0) return;
  for (const other of data.timelines) if (other !== t && other.shown && sameProgram(other, t)) outlineSpan(g, other, spanOf(other, op), theme.muted, 1.25);
  if (!p) return;
  for (let d = p.depStart[op]; d < p.depStart[op + 1]; d++) drawLink(g, t, spanOf(t, p.dep[d]), index, theme.muted, [3, 3]);
  for (const to of p.out(op)) drawLink(g, t, index, spanOf(t, to), theme.ink, []);
  for (const from of p.into(op)) drawLink(g, t, spanOf(t, from), index, theme.ink, []);
}

// Draws all messages of the visible window, unless there are too many.
function drawMessages(g) {
  const found = [];
  for (const t of data.timelines) {
    if (!t.shown || !t.program) continue;
    const low = toOwn(t, view.t0), high = toOwn(t, view.t1), { sender, taker } = t.program;
    for (let i = 0; i < sender.length; i++) {
      const a = spanOf(t, sender[i]), b = spanOf(t, taker[i]);
      if (a < 0 || b < 0 || t.start[b] + t.dur[b] < low || t.start[a] > high) continue;
      if (found.push([t, a, b]) > MOST_MESSAGES) return;
    }
  }
  g.globalAlpha = 0.55;
  for (const [t, a, b] of found) drawLink(g, t, a, b, view.theme.muted, []);
  g.globalAlpha = 1;
}

const sameProgram = (a, b) => a.program === b.program;

function boxOf(t, index) {
  const track = trackOf(t, index), row = view.rows.find((r) => r.track === track);
  if (!row) return null;
  const x = xOf(toView(t, t.start[index])), end = xOf(toView(t, t.start[index] + t.dur[index]));
  return { x, end, y: RULER + row.y - view.scroll, h: row.height };
}

function outlineSpan(g, t, index, colour, width) {
  const box = index >= 0 ? boxOf(t, index) : null;
  if (!box) return;
  g.strokeStyle = colour;
  g.lineWidth = width;
  const left = Math.max(box.x, view.gutter - 4), right = Math.min(box.end, view.width + 4);
  if (right > left - 1) g.strokeRect(left - 1, box.y - 1, Math.max(right - left, 1) + 1.5, box.h + 2);
}

// Draws a curve from a span's end to the end of the span that received its message (dashed: to the start of one that waited).
function drawLink(g, t, from, to, colour, dash) {
  const a = from >= 0 ? boxOf(t, from) : null, b = to >= 0 ? boxOf(t, to) : null;
  if (!a || !b) return;
  const x0 = a.end, x1 = dash.length ? b.x : b.end, down = b.y > a.y;
  const y0 = down ? a.y + a.h : a.y, y1 = down ? b.y : b.y + b.h, bend = Math.max(Math.abs(y1 - y0) * 0.5, 8) * (down ? 1 : -1);
  g.beginPath();
  g.moveTo(x0, y0);
  g.bezierCurveTo(x0, y0 + bend, x1, y1 - bend, x1, y1);
  g.strokeStyle = view.theme.panel;
  g.lineWidth = 4;
  g.stroke();
  g.strokeStyle = colour;
  g.lineWidth = 1.5;
  g.setLineDash(dash);
  g.stroke();
  g.setLineDash([]);
  g.fillStyle = colour;
  g.beginPath();
  g.arc(x1, y1, 2.6, 0, 2 * Math.PI);
  g.fill();
}

function drawSelection(g) {
  const [a, b] = [Math.min(...view.selection), Math.max(...view.selection)];
  g.globalAlpha = 0.16;
  g.fillStyle = view.theme.accent;
  g.fillRect(a, RULER, b - a, view.height);
  g.globalAlpha = 1;
}

function drawCursorTime(g) {
  const { theme, width, height } = view;
  const text = view.selection ? seconds(Math.abs(timeAt(view.selection[1]) - timeAt(view.selection[0]))) : fineSeconds(timeAt(view.cursor));
  g.font = `600 11px ${theme.sans}`;
  const wide = g.measureText(text).width + 12, x = Math.max(view.gutter, Math.min(view.cursor - wide / 2, width - wide - 2));
  g.fillStyle = theme.ink;
  g.beginPath();
  g.roundRect(x, 3, wide, RULER - 8, 4);
  g.fill();
  g.fillStyle = theme.panel;
  g.fillText(text, x + 6, RULER / 2 - 0.5);
}

// Formats a time to the precision of one pixel.
function fineSeconds(time) {
  const [scale, unit] = SECONDS.find(([s]) => Math.abs(time) >= s) ?? SECONDS[3];
  const places = Math.max(0, Math.min(9, Math.ceil(-Math.log10(perPixel() / scale))));
  return `${(time / scale).toFixed(places)} ${unit}`;
}
