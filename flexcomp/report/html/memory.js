// Canvases of one plan: who occupies which addresses, and lanes of computing and loading below.
const COLOURS = { activation: "activation", state: "state", weights: "weights", "pinned weights": "pinned", preload: "preload", scratch: "scratch" };

// Positions on the horizontal axis, in ms or in steps; `edges` are the ends of the steps, from 0.
function axisOf(plan, data, byStep) {
  const count = plan.steps.layer.length, timed = plan.steps.end !== null;
  const edges = [0, ...(timed ? plan.steps.end.map((end) => end / data.per_ms) : plan.steps.layer.map((_, i) => i + 1))];
  if (!byStep || !timed) return { edges, length: edges[count], at: (time) => time, timed };
  const at = (time) => {
    let low = 0, high = count;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (edges[middle] <= time) low = middle;
      else high = middle;
    }
    const span = edges[high] - edges[low];
    return low + (span > 0 ? Math.min(1, Math.max(0, (time - edges[low]) / span)) : 0);
  };
  return { edges: edges.map((_, index) => index), length: count, at, timed };
}

function prepared(canvas) {
  const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth, height = canvas.clientHeight;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = "11px system-ui, sans-serif";
  return { context, width, height };
}

function drawMemory(canvas, state) {
  const { context, width, height } = prepared(canvas);
  const { plan, data, view, axis, rung, marked } = state;
  const top = 16, bottom = 22, most = state.working ? rung.working_bytes : rung.budget_bytes;
  const y = (address) => height - bottom - (address / most) * (height - top - bottom);
  state.address = (at) => ((height - bottom - at) / (height - top - bottom)) * most;
  context.fillStyle = colour("faint");
  const filled = Math.min(most, rung.arena_bytes);
  context.fillRect(view.left, y(filled), width - view.left - view.right, y(0) - y(filled));
  context.save();
  context.beginPath();
  context.rect(view.left, top - 1, width - view.left - view.right, height - bottom - top + 2);
  context.clip();
  const boxes = plan.boxes, edge = colour("edge"), dense = boxes.kind.length > 1500 && view.high - view.low > view.length / 3;
  const fills = data.kinds.map((kind) => colour(COLOURS[kind]));
  for (let i = 0; i < boxes.kind.length; i++) {
    const x0 = view.x(axis.edges[boxes.start[i]]), x1 = view.x(axis.edges[boxes.end[i]]);
    if (x1 < view.left || x0 > width || boxes.address[i] >= most) continue;
    const y0 = y(boxes.address[i] + boxes.bytes[i]), y1 = y(boxes.address[i]);
    context.fillStyle = fills[boxes.kind[i]];
    context.fillRect(x0, y0, Math.max(0.5, x1 - x0), Math.max(0.5, y1 - y0));
    if (!dense && x1 - x0 > 3 && y1 - y0 > 3) {
      context.strokeStyle = edge;
      context.lineWidth = 0.7;
      context.strokeRect(x0, y0, x1 - x0, y1 - y0);
    }
    if (x1 - x0 > 70 && y1 - y0 > 14) label(context, data.names[boxes.name[i]], Math.max(x0, view.left), Math.min(x1, width), (y0 + y1) / 2, data.kinds[boxes.kind[i]]);
  }
  if (marked && marked.canvas === canvas) {
    const x0 = view.x(axis.edges[boxes.start[marked.index]]), x1 = view.x(axis.edges[boxes.end[marked.index]]);
    const y0 = y(boxes.address[marked.index] + boxes.bytes[marked.index]);
    context.strokeStyle = colour("ink");
    context.lineWidth = 2;
    context.strokeRect(x0, y0, Math.max(2, x1 - x0), Math.max(2, y(boxes.address[marked.index]) - y0));
  }
  context.restore();
  context.fillStyle = colour("quiet");
  context.textAlign = "right";
  const [unit, size] = SIZES.find(([, nbytes]) => most >= 2 * nbytes) || ["B", 1];
  for (const value of ticks(0, most / size, 5)) context.fillText(String(value), view.left - 6, y(value * size) + 4);
  context.textAlign = "left";
  context.fillText(`${unit} of the arena`, 2, 10);
  horizontal(context, view, axis, width, height - bottom, state.byStep);
  context.strokeStyle = colour("warn");
  context.setLineDash([5, 4]);
  context.lineWidth = 1;
  context.beginPath();
  context.moveTo(view.left, y(most));
  context.lineTo(width - view.right, y(most));
  context.stroke();
  context.setLineDash([]);
  context.fillStyle = colour("warn");
  context.textAlign = "right";
  context.fillText(`${state.working ? "working range" : "budget"} ${enough(most)}`, width - view.right, y(most) - 4);
}

function label(context, name, x0, x1, y, kind) {
  const room = x1 - x0 - 10, letters = Math.floor(room / 6);
  if (letters < 4) return;
  context.fillStyle = kind === "preload" ? colour("ink") : "#ffffff";
  context.textAlign = "left";
  context.fillText(name.length > letters ? `${name.slice(0, letters - 1)}…` : name, x0 + 5, y + 4);
}

function horizontal(context, view, axis, width, bottom, byStep) {
  context.strokeStyle = colour("line");
  context.beginPath();
  context.moveTo(view.left, bottom + 0.5);
  context.lineTo(width - view.right, bottom + 0.5);
  context.stroke();
  context.fillStyle = colour("quiet");
  context.textAlign = "center";
  const unit = byStep || !axis.timed ? " steps" : " ms";
  for (const value of ticks(view.low, view.high, Math.max(2, view.width / 110))) {
    const x = view.x(value);
    if (x < view.left - 1 || x > width - view.right - 20) continue;
    context.fillText(`${value}${unit}`, Math.max(x, view.left + 14), bottom + 15);
  }
}

// Loads that began in the inference before appear where that inference ends: the next one begins them there, too.
function loadSpans(plan, data) {
  const latency = plan.steps.end ? plan.steps.end[plan.steps.end.length - 1] / data.per_ms : 0, spans = [];
  plan.loads.name.forEach((_, index) => {
    const start = plan.loads.start[index] / data.per_ms, end = plan.loads.end[index] / data.per_ms;
    if (end > 0) spans.push({ index, start: Math.max(0, start), end: Math.min(end, latency) });
    if (start < 0) spans.push({ index, start: Math.max(0, start + latency), end: Math.min(latency, end + latency) });
  });
  return spans;
}

function drawLanes(canvas, state) {
  const { context, width, height } = prepared(canvas);
  const { plan, data, view, axis, marked } = state;
  if (!axis.timed) return;
  const lane = 38, gap = 8, computingTop = 6, loadingTop = computingTop + lane + gap;
  state.lanes = { computing: [computingTop, computingTop + lane], loading: [loadingTop, loadingTop + lane] };
  context.save();
  context.beginPath();
  context.rect(view.left, 0, width - view.left - view.right, height);
  context.clip();
  context.fillStyle = colour("waiting");
  context.fillRect(view.x(0), computingTop, view.x(axis.length) - view.x(0), lane);
  const bar = (from, to, top, fill, name, shade, on) => {
    const x0 = view.x(axis.at(from)), x1 = view.x(axis.at(to));
    if (x1 < view.left || x0 > width) return;
    context.globalAlpha = shade;
    context.fillStyle = fill;
    context.fillRect(x0, top, Math.max(0.4, x1 - x0), lane);
    context.globalAlpha = 1;
    if (on) {
      context.strokeStyle = colour("ink");
      context.lineWidth = 2;
      context.strokeRect(x0, top, Math.max(2, x1 - x0), lane);
    }
    if (x1 - x0 > 50) label(context, name, Math.max(x0, view.left), Math.min(x1, width), top + lane / 2, "computing");
  };
  const on = (kind, index) => marked && marked.kind === kind && marked.index === index;
  const computing = colour("computing");
  plan.steps.layer.forEach((layer, index) =>
    bar(plan.steps.start[index] / data.per_ms, plan.steps.end[index] / data.per_ms, computingTop, computing, data.names[layer],
      index % 2 ? 0.75 : 1, on("step", index)));
  for (const span of state.spans) {
    const fill = colour(plan.loads.prepared[span.index] ? "preparing" : "loading");
    bar(span.start, span.end, loadingTop, fill, data.names[plan.loads.name[span.index]], span.index % 2 ? 0.75 : 1, on("load", span.index));
  }
  context.restore();
  context.fillStyle = colour("quiet");
  context.textAlign = "right";
  context.fillText("compute", view.left - 6, computingTop + lane / 2 + 4);
  context.fillText("load", view.left - 6, loadingTop + lane / 2 + 4);
}
