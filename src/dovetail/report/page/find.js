// Find: fades spans whose name or text does not contain the typed words; Enter goes to the next match.

let FADED = -1; // the last group: spans that do not match

function listenFind(field, summary, messages) {
  let waiting = 0;
  FADED = data.groups.length - 1;
  view.hidden.add(FADED);
  field.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(() => find(field.value, summary), 120); });
  field.addEventListener("keydown", (e) => {
    e.stopPropagation();
    if (e.key === "Escape") { field.value = ""; find("", summary); }
    if (e.key === "Enter") { clearTimeout(waiting); if (view.sought !== field.value) find(field.value, summary); nextFound(e.shiftKey ? -1 : 1); }
  });
  messages.hidden = !data.timelines.some((t) => t.program?.sender.length);
  messages.onclick = () => {
    view.messages = !view.messages;
    messages.setAttribute("aria-pressed", String(view.messages));
    drawOverlay();
  };
}

function find(text, summary) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  let count = 0, lasting = 0;
  view.sought = text;
  for (const t of data.timelines) {
    const fits = matcherOf(t, words);
    t.group = words.length ? t.kind.map((kind, i) => (fits(i) ? kind : FADED)) : t.kind;
    sumGroups(t);
    if (words.length) t.group.forEach((g, i) => { if (g !== FADED) { count++; lasting += t.dur[i]; } });
  }
  summary.textContent = words.length ? `${count} span${count === 1 ? "" : "s"}, ${seconds(lasting)}` : "";
  paintLegend();
  rebuild();
}

// Returns a predicate: whether a span's name, or its op's text, contains all words. Each name is checked once.
function matcherOf(t, words) {
  const holds = (text) => { const low = text.toLowerCase(); return words.every((word) => low.includes(word)); };
  const byName = t.names.map(holds);
  return (i) => byName[t.name[i]] || (t.op[i] >= 0 && t.program !== null && holds(t.program.text(t.op[i])));
}

// Selects the next match after (or before) the selected span, by start time.
function nextFound(by) {
  const from = view.kept ? toView(view.kept.timeline, view.kept.timeline.start[view.kept.index]) * by : -Infinity;
  let best = null, nearest = Infinity;
  for (const t of data.timelines.filter((t) => t.shown)) {
    for (let i = 0; i < t.start.length; i++) {
      const at = toView(t, t.start[i]) * by;
      if (t.group[i] !== FADED && at > from && at < nearest) { nearest = at; best = { timeline: t, index: i }; }
    }
  }
  if (!best) return;
  keep(best);
  const a = toView(best.timeline, best.timeline.start[best.index]), span = view.t1 - view.t0;
  if (a < view.t0 || a > view.t1) flyTo(a - span / 2, a + span / 2);
}
