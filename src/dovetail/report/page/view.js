// View: the visible interval and rows, the alignment of timelines, and colours.

const RULER = 26, MAP_PAD = 6, SCROLLBAR = 6;
const view = {
  t0: 0, t1: 1, full: [0, 1], scroll: 0, width: 0, height: 0, gutter: 150, content: 0,
  align: "clock", grouping: "rank", hidden: new Set(), rows: [], marks: [], theme: null, hover: null, kept: null,
};

// Convert between seconds of the ruler and seconds of one timeline's own clock.
const toView = (t, own) => (own - t.shift) * t.scale;
const toOwn = (t, time) => time / t.scale + t.shift;
const perPixel = () => (view.t1 - view.t0) / (view.width - view.gutter);
const xOf = (time) => view.gutter + (time - view.t0) / perPixel();
const timeAt = (x) => view.t0 + (x - view.gutter) * perPixel();

function alignTimelines(timelines) {
  const shown = timelines.filter((t) => t.shown);
  const length = Math.max(...shown.map((t) => t.makespan - t.first), 0);
  for (const t of timelines) {
    t.shift = view.align === "clock" ? 0 : t.first;
    t.scale = view.align === "length" && t.makespan > t.first ? length / (t.makespan - t.first) : 1;
  }
  const end = Math.max(...shown.map((t) => toView(t, t.makespan)), 0) || 1;
  const start = Math.min(...shown.map((t) => toView(t, t.first)), 0);
  view.full = [start - 0.006 * (end - start), end + 0.02 * (end - start)];
}

// Strips top to bottom: rank, lane, then predicted above measured; or all of one timeline before the next.
function layout(timelines) {
  const strips = timelines.filter((t) => t.shown).flatMap((t, at) => t.tracks.map((track) => ({ track, at })));
  const byLane = ({ track, at }) => [track.rank, laneOrder(track), at, track.depth];
  const byTimeline = ({ track, at }) => [at, track.rank, laneOrder(track), track.depth];
  const key = view.grouping === "rank" ? byLane : byTimeline;
  const keyed = strips.map((s) => [key(s), s]).sort((a, b) => compareKeys(a[0], b[0]));
  const roomy = Math.floor((Math.min(innerHeight * 0.62, 620) - RULER) / Math.max(keyed.length, 1));
  const height = Math.max(14, Math.min(roomy - 6, 24));
  let y = 8, last = null;
  view.rows = keyed.map(([, { track }]) => {
    const fresh = { timeline: last?.timeline !== track.timeline, rank: last?.rank !== track.rank };
    const outer = view.grouping === "rank" ? fresh.rank : fresh.timeline || fresh.rank;
    const lane = outer || laneName(last) !== laneName(track);
    if (last) y += outer ? 16 : lane ? 8 : 2;
    if (view.grouping === "timeline" && fresh.timeline) y += 18;
    const row = { track, y, height, outer, lane, timeline: fresh.timeline };
    y += height;
    last = track;
    return row;
  });
  view.content = y + 10;
  view.height = RULER + Math.min(view.content, Math.max(240, Math.floor(innerHeight * 0.7)));
  view.scroll = Math.max(0, Math.min(view.scroll, view.content - (view.height - RULER)));
}

const laneName = (track) => track.timeline.lanes[track.lane];
const lanes = [];
function laneOrder(track) {
  const name = laneName(track);
  if (!lanes.includes(name)) lanes.push(name);
  return lanes.indexOf(name);
}
function compareKeys(a, b) {
  for (let i = 0; i < a.length; i++) if (a[i] !== b[i]) return a[i] - b[i];
  return 0;
}

// Set the visible interval, kept inside the full one and wider than a few nanoseconds.
function setWindow(t0, t1) {
  const [low, high] = view.full, most = high - low;
  const span = Math.min(Math.max(t1 - t0, most * 1e-8, 2e-9), most);
  const middle = (t0 + t1) / 2;
  view.t0 = Math.min(Math.max(middle - span / 2, low), high - span);
  view.t1 = view.t0 + span;
  requestDraw();
}
const zoomBy = (factor, at) => setWindow(at - (at - view.t0) * factor, at + (view.t1 - at) * factor);
const isWhole = () => view.t1 - view.t0 >= (view.full[1] - view.full[0]) * 0.999;

let flight = 0;
function flyTo(t0, t1) {
  cancelAnimationFrame(flight);
  if (matchMedia("(prefers-reduced-motion: reduce)").matches) return setWindow(t0, t1);
  const [a0, a1, began] = [view.t0, view.t1, performance.now()];
  const step = (now) => {
    const p = Math.min((now - began) / 180, 1), ease = 1 - (1 - p) ** 3;
    setWindow(a0 + (t0 - a0) * ease, a1 + (t1 - a1) * ease);
    if (p < 1) flight = requestAnimationFrame(step);
  };
  flight = requestAnimationFrame(step);
}

function scrollRows(pixels) {
  const most = Math.max(0, view.content - (view.height - RULER));
  view.scroll = Math.max(0, Math.min(view.scroll + pixels, most));
  requestDraw();
}

function rowAt(y) {
  const inside = y - RULER + view.scroll;
  return y < RULER ? null : view.rows.find((r) => inside >= r.y - 1 && inside < r.y + r.height + 1) ?? null;
}

// The span at a point, or the nearest within three pixels.
function hit(x, y) {
  const row = rowAt(y);
  if (!row || x < view.gutter) return null;
  const t = row.track.timeline, time = toOwn(t, timeAt(x)), reach = (3 * perPixel()) / t.scale;
  const i = firstEnd(t, row.track, time);
  const distance = (k) => (k < row.track.first || k >= row.track.end ? Infinity : Math.max(t.start[k] - time, time - t.start[k] - t.dur[k], 0));
  const best = distance(i) <= distance(i - 1) ? i : i - 1;
  return distance(best) <= reach ? { timeline: t, index: best } : null;
}

// Colours of every label, group and density (0 faint … 4 full), mixed with the background: predicted pale, measured full.
const DENSITY = [0.28, 0.46, 0.64, 0.82, 1], STRENGTH = { predicted: 0.42, emulated: 0.66, measured: 1 };
function readTheme(groups) {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches, style = getComputedStyle(document.documentElement);
  const css = (name) => style.getPropertyValue(name).trim();
  const ground = css("--panel"), full = groups.map((g) => (dark ? g[2] : g[1]));
  const tones = {};
  for (const label of LABELS) {
    tones[label] = full.map((c) => DENSITY.map((d) => mix(c, ground, d * STRENGTH[label])));
  }
  const names = ["ink", "muted", "faint", "line", "soft", "accent", "panel", "bg"];
  view.theme = { dark, full, tones, sans: css("--sans"), ...Object.fromEntries(names.map((n) => [n, css(`--${n}`)])) };
}
const channels = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
function mix(over, under, share) {
  const [a, b] = [channels(over), channels(under)];
  return "#" + a.map((c, i) => Math.round(c * share + b[i] * (1 - share)).toString(16).padStart(2, "0")).join("");
}
const isPale = (hex) => { const [r, g, b] = channels(hex); return 0.299 * r + 0.587 * g + 0.114 * b > 140; };
