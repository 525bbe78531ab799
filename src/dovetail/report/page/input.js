// Input: wheel, drag, keyboard; the tooltip and the selected ("kept") span.

const pointer = { down: null, moved: false };
let wheel = { time: -Infinity, inside: false };

function listen(root, overlay, minimap) {
  // A wheel gesture that began outside keeps scrolling the page when the timeline passes under the pointer.
  addEventListener("wheel", (e) => {
    const now = performance.now();
    if (now - wheel.time > 220) wheel.inside = root.contains(e.target);
    wheel.time = now;
  }, { capture: true, passive: true });
  overlay.addEventListener("wheel", onWheel, { passive: false });
  overlay.addEventListener("pointerdown", onDown);
  overlay.addEventListener("pointermove", onMove);
  overlay.addEventListener("pointerup", onUp);
  overlay.addEventListener("pointercancel", onUp);
  overlay.addEventListener("pointerleave", () => { if (!pointer.down) { view.cursor = null; setHover(null); drawOverlay(); } });
  overlay.addEventListener("dblclick", onDouble);
  listenMinimap(minimap);
  root.addEventListener("keydown", onKey);
}

const at = (e) => { const box = canvas("overlay").getBoundingClientRect(); return [e.clientX - box.left, e.clientY - box.top]; };

function onWheel(e) {
  const [x] = at(e), unit = e.deltaMode === 1 ? 16 : e.deltaMode === 2 ? 400 : 1, dx = e.deltaX * unit, dy = e.deltaY * unit;
  if (!wheel.inside && !e.ctrlKey) return;
  if (x < view.gutter || e.altKey) {
    if (view.content <= view.height - RULER + 1) return;
    scrollRows(dy);
  } else if (!e.ctrlKey && (e.shiftKey || Math.abs(dx) > Math.abs(dy))) {
    const shift = (dx || dy) * perPixel();
    setWindow(view.t0 + shift, view.t1 + shift);
  } else {
    if (dy > 0 && isWhole()) return;
    zoomBy(Math.exp(Math.max(-240, Math.min(dy, 240)) * (e.ctrlKey ? 0.01 : 0.0022)), timeAt(x));
  }
  e.preventDefault();
  hoverAt(...at(e));
}

function onDown(e) {
  if (e.button) return;
  const [x, y] = at(e);
  canvas("overlay").setPointerCapture(e.pointerId);
  const bar = x > view.width - SCROLLBAR - 4 && view.content > view.height - RULER;
  const mode = bar ? "scroll" : x > view.gutter && (y < RULER || e.shiftKey) ? "select" : "pan";
  Object.assign(pointer, { down: mode, x, y, t0: view.t0, t1: view.t1, scroll: view.scroll, moved: false });
}

function onMove(e) {
  const [x, y] = at(e);
  if (!pointer.down) return hoverAt(x, y);
  if (Math.abs(x - pointer.x) + Math.abs(y - pointer.y) > 3) pointer.moved = true;
  if (!pointer.moved) return;
  setHover(null);
  view.cursor = x > view.gutter ? x : null;
  if (pointer.down === "scroll") scrollRows(((y - pointer.y) / (view.height - RULER)) * view.content + pointer.scroll - view.scroll);
  else if (pointer.down === "select") { view.selection = [pointer.x, Math.max(x, view.gutter)]; drawOverlay(); }
  else {
    canvas("overlay").style.cursor = "grabbing";
    const shift = (pointer.x - x) * perPixel();
    scrollRows(pointer.scroll + pointer.y - y - view.scroll);
    setWindow(pointer.t0 + shift, pointer.t1 + shift);
  }
}

function onUp(e) {
  const mode = pointer.down;
  pointer.down = null;
  canvas("overlay").style.cursor = "";
  if (mode === "select" && view.selection) {
    const [a, b] = view.selection.map(timeAt).sort((p, q) => p - q);
    view.selection = null;
    if (b - a > 2 * perPixel()) flyTo(a, b);
    drawOverlay();
  } else if (mode === "pan" && !pointer.moved && e.type === "pointerup") keep(hit(...at(e)));
}

function onDouble(e) {
  const span = hit(...at(e));
  if (span) fit(span); else flyTo(...view.full);
}

function fit({ timeline: t, index }) {
  const a = toView(t, t.start[index]), b = toView(t, t.start[index] + t.dur[index]), room = Math.max((b - a) * 0.15, 2e-9);
  flyTo(a - room, b + room);
}

function listenMinimap(minimap) {
  let grip = null;
  const move = (e) => {
    const time = mapTime(e.clientX - minimap.getBoundingClientRect().left), span = view.t1 - view.t0;
    if (grip === "left") setWindow(Math.min(time, view.t1 - span * 0.01), view.t1);
    else if (grip === "right") setWindow(view.t0, Math.max(time, view.t0 + span * 0.01));
    else if (grip !== null) setWindow(time - grip, time - grip + span);
  };
  const gripAt = (x) => (isWhole() ? "right" : Math.abs(x - mapX(view.t0)) < 6 ? "left" : Math.abs(x - mapX(view.t1)) < 6 ? "right" : null);
  minimap.addEventListener("pointerdown", (e) => {
    const x = e.clientX - minimap.getBoundingClientRect().left, time = mapTime(x), span = view.t1 - view.t0;
    minimap.setPointerCapture(e.pointerId);
    if (isWhole()) setWindow(time, time + span * 1e-3);
    grip = gripAt(x) ?? (time > view.t0 && time < view.t1 ? time - view.t0 : span / 2);
    move(e);
  });
  minimap.addEventListener("pointermove", (e) => {
    if (grip !== null) return move(e);
    minimap.style.cursor = gripAt(e.clientX - minimap.getBoundingClientRect().left) ? "ew-resize" : "grab";
  });
  for (const end of ["pointerup", "pointercancel"]) minimap.addEventListener(end, () => { grip = null; });
}

function onKey(e) {
  if (e.ctrlKey || e.metaKey || e.altKey) return;
  const span = view.t1 - view.t0, middle = view.cursor ? timeAt(view.cursor) : (view.t0 + view.t1) / 2;
  const pan = (share) => flyTo(view.t0 + span * share, view.t1 + span * share);
  const zoom = (factor) => flyTo(middle - (middle - view.t0) * factor, middle + (view.t1 - middle) * factor);
  const keys = {
    ArrowLeft: () => pan(-0.2), a: () => pan(-0.2), ArrowRight: () => pan(0.2), d: () => pan(0.2),
    ArrowUp: () => scrollRows(-40), ArrowDown: () => scrollRows(40), "+": () => zoom(0.6), "=": () => zoom(0.6), w: () => zoom(0.6),
    "-": () => zoom(1 / 0.6), s: () => zoom(1 / 0.6), 0: () => flyTo(...view.full), Home: () => flyTo(...view.full),
    Escape: () => keep(null), ",": () => step(-1), ".": () => step(1), Enter: () => view.kept && fit(view.kept),
  };
  if (!keys[e.key]) return;
  keys[e.key]();
  e.preventDefault();
}

// Selects the neighbour of the selected span on the same track, and scrolls it into view.
function step(by) {
  if (!view.kept) return view.rows.length ? keep({ timeline: view.rows[0].track.timeline, index: view.rows[0].track.first }) : undefined;
  const { timeline: t, index } = view.kept, track = trackOf(t, index), next = index + by;
  if (next < track.first || next >= track.end) return;
  keep({ timeline: t, index: next });
  const a = toView(t, t.start[next]), b = toView(t, t.start[next] + t.dur[next]), span = view.t1 - view.t0;
  if (a < view.t0 || b > view.t1) flyTo((a + b) / 2 - span / 2, (a + b) / 2 + span / 2);
}

function hoverAt(x, y) {
  view.cursor = x > view.gutter ? x : null;
  setHover(hit(x, y), x, y);
  drawOverlay();
}

function setHover(span, x, y) {
  view.hover = span;
  const tip = canvas("tip");
  tip.hidden = !span;
  if (!span) return;
  if (tip.dataset.span !== `${data.timelines.indexOf(span.timeline)}.${span.index}`) {
    tip.dataset.span = `${data.timelines.indexOf(span.timeline)}.${span.index}`;
    const [text, ...rows] = describe(span);
    tip.replaceChildren(element("b", text[1]), ...rows.map(([k, v]) => element("div", element("span", k), element("span", v))));
  }
  const box = tip.getBoundingClientRect();
  const left = x + 16 + box.width > view.width ? Math.max(x - 16 - box.width, 4) : x + 16;
  const top = y + 18 + box.height > view.height ? Math.max(y - 14 - box.height, 4) : y + 18;
  tip.style.transform = `translate(${Math.round(left)}px, ${Math.round(top)}px)`;
}

function keep(span) {
  view.kept = span;
  const detail = canvas("detail");
  detail.hidden = !span;
  if (span) detail.replaceChildren(...describe(span).map(([k, v], i) => element("div", element("dt", k), Object.assign(element("dd", v), { className: i ? "" : "op" }))));
  drawOverlay();
}

// Returns a span's properties as (name, text), the op first.
function describe({ timeline: t, index }) {
  const op = t.op[index], track = trackOf(t, index), p = t.program;
  const rows = [["op", op >= 0 && p ? p.text(op) : t.names[t.name[index]] ?? ""], ["label", t.caption]];
  rows.push(["rank", String(track.rank)], ["lane", laneName(track)], ["start", fineSeconds(t.start[index])], ["lasts", seconds(t.dur[index])]);
  if (t.bytes[index]) rows.push(["bytes", `${numBytes(t.bytes[index])}${t.dur[index] ? `, ${numBytes(t.bytes[index] / t.dur[index])}/s` : ""}`]);
  for (const other of data.timelines) {
    const i = other === t || !sameProgram(other, t) ? -1 : spanOf(other, op);
    if (i >= 0) rows.push([other.caption, `${seconds(other.dur[i])}${t.dur[index] && other.dur[i] ? ` (${signedPercent(other.dur[i] / t.dur[index] - 1)})` : ""}`]);
  }
  if (op >= 0 && p?.line(op)) rows.push(["written at", p.line(op)]);
  return rows;
}

function element(tag, ...children) {
  const made = document.createElement(tag);
  made.append(...children);
  return made;
}
