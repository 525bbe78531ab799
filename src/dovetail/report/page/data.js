// Data: decodes the page's payload into typed arrays, searches them, and formats numbers.

const LABELS = ["predicted", "emulated", "measured"];

async function decode(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const buffer = await new Response(stream).arrayBuffer();
  const headLength = new DataView(buffer).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, headLength)));
  const types = { f8: Float64Array, f4: Float32Array, i4: Int32Array, u1: Uint8Array };
  const array = (name) => {
    const [type, offset, length] = head.arrays[name];
    return new types[type](buffer, 4 + headLength + offset, length);
  };
  const programs = head.programs.map((p, i) => openProgram(p, (name) => array(`p${i}.${name}`)));
  const timelines = head.timelines.map((t, i) => openTimeline(t, (name) => array(`t${i}.${name}`), programs));
  return { groups: [...head.groups, ["not found", "#d9d9d4", "#3a3d41"]], timelines };
}

// The values that belong to each key from 0 to `count` - 1.
function grouped(count, keys, values) {
  const start = new Int32Array(count + 1), list = new Int32Array(keys.length);
  for (const key of keys) start[key + 1]++;
  for (let i = 0; i < count; i++) start[i + 1] += start[i];
  const at = start.slice();
  for (let i = 0; i < keys.length; i++) list[at[keys[i]]++] = values[i];
  return (key) => list.subarray(start[key], start[key + 1]);
}

function openProgram(head, array) {
  const sender = array("sender"), taker = array("taker"), count = head.num_ops;
  let texts = null;
  return {
    sender, taker, into: grouped(count, taker, sender), out: grouped(count, sender, taker),
    depStart: array("dep_start"), dep: array("dep"), count,
    text: (op) => (texts ??= new TextDecoder().decode(array("text")).split("\n"))[op] ?? "",
    line: (op) => head.lines[array("line")[op]] ?? "",
  };
}

function openTimeline(head, array, programs) {
  const t = {
    label: head.label, title: head.title, lanes: head.lanes, names: head.names, makespan: head.makespan_s,
    program: programs[head.program] ?? null, clockError: head.clock_error_s, shown: true, shift: 0, scale: 1,
    start: array("start"), dur: array("dur"), name: array("name"), op: array("op"), bytes: array("bytes"), group: array("group"),
  };
  t.kind = t.group; // groups without a search; a search changes `group`
  t.caption = t.title ? `${t.title} · ${t.label}` : t.label;
  t.tracks = head.tracks.map(([rank, lane, depth, first, count]) => ({ timeline: t, rank, lane, depth, first, end: first + count }));
  t.first = t.tracks.reduce((least, k) => Math.min(least, t.start[k.first]), Infinity);
  if (!Number.isFinite(t.first)) t.first = 0;
  sumGroups(t);
  return t;
}

// Running sums of busy seconds by group, so that a pixel column of a thousand spans costs nine subtractions.
function sumGroups(t) {
  const n = t.start.length;
  t.present = [...new Set(t.group)].sort((a, b) => a - b);
  t.sums = t.present.map(() => new Float64Array(n + 1));
  t.present.forEach((g, k) => {
    const sum = t.sums[k];
    for (let i = 0; i < n; i++) sum[i + 1] = sum[i] + (t.group[i] === g ? t.dur[i] : 0);
  });
}

// First index in [low, high) whose span starts at or after `time`.
function firstStart(t, low, high, time) {
  while (low < high) {
    const mid = (low + high) >>> 1;
    if (t.start[mid] < time) low = mid + 1; else high = mid;
  }
  return low;
}

// As firstStart, by doubling steps: fast if the answer is near `low`.
function gallop(t, low, high, time) {
  let step = 1;
  while (low + step < high && t.start[low + step] < time) step *= 2;
  return firstStart(t, low + (step >> 1), Math.min(low + step + 1, high), time);
}

// First span of a track that ends after `time` (spans of a track do not overlap, so ends are sorted, too).
function firstEnd(t, track, time) {
  const i = firstStart(t, track.first, track.end, time);
  return i > track.first && t.start[i - 1] + t.dur[i - 1] > time ? i - 1 : i;
}

// Index of an op's span in timeline `t`; -1 if it has none.
function spanOf(t, op) {
  if (op < 0) return -1;
  if (!t.byOp) {
    t.byOp = new Int32Array(t.op.reduce((most, o) => Math.max(most, o), -1) + 1).fill(-1);
    for (let i = 0; i < t.op.length; i++) if (t.op[i] >= 0) t.byOp[t.op[i]] = i;
  }
  return t.byOp[op] ?? -1;
}

function trackOf(t, index) {
  let low = 0, high = t.tracks.length - 1;
  while (low < high) {
    const mid = (low + high + 1) >>> 1;
    if (t.tracks[mid].first <= index) low = mid; else high = mid - 1;
  }
  return t.tracks[low];
}

function significant(value, digits = 3) {
  if (!value) return "0";
  const whole = Math.floor(Math.log10(Math.abs(Number(value.toPrecision(digits)))));
  return value.toFixed(Math.max(digits - 1 - whole, 0));
}

function inUnit(value, steps) {
  const [scale, unit] = steps.find(([s]) => Math.abs(value) >= s * 0.9995) ?? steps[steps.length - 1];
  return `${Number.isInteger(value / scale) && scale >= 1 ? value / scale : significant(value / scale)} ${unit}`;
}
const SECONDS = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]];
const BYTES = [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"], [1, "B"]];
const seconds = (s) => (s === 0 ? "0 s" : inUnit(s, SECONDS));
const numBytes = (b) => (b === 0 ? "0 B" : inUnit(b, BYTES));
const signedPercent = (x) => `${x >= 0 ? "+" : "−"}${significant(Math.abs(x) * 100, Math.abs(x) < 0.0995 ? 2 : 3)} %`;
