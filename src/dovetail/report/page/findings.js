// Findings: each click shows the next of the calls that a finding is about, the longest first, and fades all other spans;
// the click after the last shows all spans again.

function listenFindings(buttons) {
  for (const button of buttons) {
    const t = data.timelines[Number(button.dataset.timeline)];
    const calls = JSON.parse(button.dataset.calls);
    let next = 0;
    button.onclick = () => {
      if (button.getAttribute("aria-pressed") !== "true") next = 0;
      const isOver = next === calls.length;
      for (const other of buttons) other.setAttribute("aria-pressed", String(other === button && !isOver));
      if (isOver) { next = 0; keep(null); return find("", canvas("found")); }
      if (!next) fadeOthers(t, calls);
      showCall(t, ...calls[next++]);
    };
  }
}

// Fades all spans but those of some calls, given as [op, start, end]; none if calls have no spans of their own.
function fadeOthers(t, calls) {
  const chosen = new Set(calls.map(([op]) => spanOf(t, op)).filter((i) => i >= 0));
  for (const each of data.timelines) {
    each.group = chosen.size ? each.kind.map((kind, i) => (each === t && chosen.has(i) ? kind : FADED)) : each.kind;
    sumGroups(each);
  }
  t.shown = true;
  paintShown();
  paintLegend();
  rebuild();
}

// Selects a call's span, and shows the call with three times its length on both sides.
function showCall(t, op, start, end) {
  const index = spanOf(t, op), room = Math.max(3 * (end - start), 1e-6);
  keep(index >= 0 ? { timeline: t, index } : null);
  flyTo(toView(t, start) - room, toView(t, end) + room);
  canvas("view").scrollIntoView({ block: "nearest" });
}
