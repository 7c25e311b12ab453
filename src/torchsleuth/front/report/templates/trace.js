// The part of a run's page that shows the capture.
if (document.getElementById("data")) (() => {
// Everything is put on the page as text, never as markup. A frame's tree is made when it is opened.
const frames = JSON.parse(document.getElementById("data").textContent);
const place = document.getElementById("frames");
const search = document.getElementById("search");
const name = path => String(path || "").split("/").pop();
const time = s => s >= 1 ? s.toFixed(2) + " s" : (1000 * (s || 0)).toFixed(1) + " ms";
let wanted = "";

function make(tag, text, style) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (style) made.className = style;
  if (wanted && text && text.toLowerCase().includes(wanted)) made.classList.add("found");
  return made;
}

function words(node) {
  if (node.kind === "call")
    return `${node.function}  ${name(node.file)}:${node.line}` + (node.called_from ? ` (called in line ${node.called_from})` : "") +
      `: ${node.instructions} instructions, ${time(node.seconds)}` + (node.how === "returned" ? "" : `, ${node.how}`);
  if (node.kind === "subgraph")
    return `${node.graph_break ? "graph break" : "graph"} at ${name(node.file)}:${node.line}: ${node.calls} calls, handed on in ${time(node.seconds)}; ${node.why}`;
  if (node.kind === "side effects")
    return "changes " + (node.effects || []).map(e => `${e.object} (${e.kind}) ${(e.lines || []).map(name).join(", ")}`).join("; ");
  return `line ${node.line}: ${node.op} ${node.argument || ""}`;
}

function holds(node) {
  return words(node).toLowerCase().includes(wanted) || (node.inside || []).some(holds);
}

// Made when it is opened; open from the start where something inside is what is searched for.
function folded(summary, fill, open) {
  const made = make("details");
  made.append(make("summary", summary));
  let filled = false;
  made.addEventListener("toggle", () => { if (made.open && !filled) { filled = true; fill(made); } });
  made.open = open;
  return made;
}

function tree(node) {
  if (node.kind !== "call")
    return make("div", words(node), "line" + (node.graph_break ? " break" : ""));
  const inside = node.inside || [];
  return folded(words(node), made => made.append(...inside.map(tree)), !wanted || inside.some(holds));
}

const guardWords = g => `${g.kind} ${g.name}: ${(g.conditions || []).join(" and ")}` + (g.line ? `  (${name(g.line)})` : "");

function opened(frame, made) {
  frame.attempts.forEach((attempt, number) => {
    const last = number === frame.attempts.length - 1;
    made.append(folded(`attempt ${number}: ${attempt.how}`, inner => inner.append(tree(attempt)), last));
  });
  const guards = frame.guards || [];
  if (frame.guard_count)
    made.append(folded(`${frame.guard_count} guards`, inner => inner.append(...guards.map(g => make("div", guardWords(g), "line"))),
      Boolean(wanted) && guards.some(g => guardWords(g).toLowerCase().includes(wanted))));
  for (const file of frame.artefacts || []) made.append(make("div", file, "line"));
}

function headline(frame) {
  return `${frame.graph}  ${frame.function}  ${name(frame.file)}:${frame.line}  ${time(frame.seconds)}  ${frame.outcome}` +
    (frame.recompiled ? ", compiled again" : "");
}

function matches(frame) {
  return headline(frame).toLowerCase().includes(wanted) || frame.attempts.some(holds) ||
    (frame.guards || []).some(g => guardWords(g).toLowerCase().includes(wanted));
}

function show() {
  wanted = search.value.trim().toLowerCase();
  const shown = wanted ? frames.filter(matches) : frames;
  place.replaceChildren(...shown.map(frame => folded(headline(frame), made => opened(frame, made), shown.length <= (wanted ? 20 : 3))));
  document.getElementById("found").textContent = `${shown.length} of ${frames.length} frames`;
  document.body.dataset.milliseconds = Math.round(performance.now());  // since the page was asked for
}

let waiting;
search.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(show, 150); });
show();
})();
