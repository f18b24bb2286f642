// Latency over budget: one dot for each plan, and the bound below which no plan of its kernels gets.
function drawLadder(box, ladder, chosen, choose) {
  const width = box.clientWidth, height = box.clientHeight;
  const left = 46, right = 14, top = 12, bottom = 34;
  const low = Math.log(ladder[0].budget_bytes), high = Math.log(ladder[ladder.length - 1].budget_bytes);
  const most = 1.05 * Math.max(...ladder.map((rung) => rung.predicted_ms));
  const x = (nbytes) => left + ((Math.log(nbytes) - low) / (high - low || 1)) * (width - left - right);
  const y = (value) => height - bottom - (value / (most || 1)) * (height - top - bottom);
  const drawing = svg("svg", { role: "img", "aria-label": "predicted latency over budget" });
  for (const value of ticks(0, most, 5)) {
    drawing.append(svg("line", { class: "axis", x1: left, x2: width - right, y1: y(value), y2: y(value) }),
      svg("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, String(value)));
  }
  drawing.append(svg("text", { x: 4, y: top + 2 }, "ms"));
  let free = -Infinity;
  for (const nbytes of budgetTicks(Math.exp(low), Math.exp(high))) {
    const at = x(nbytes), text = bytes(nbytes).replace(".00", "");
    drawing.append(svg("line", { class: "axis", x1: at, x2: at, y1: height - bottom, y2: height - bottom + 4 }));
    if (at - free < 8 * text.length) continue;
    drawing.append(svg("text", { x: Math.min(at, width - right - 3 * text.length), y: height - bottom + 18, "text-anchor": "middle" }, text));
    free = at;
  }
  const path = (field) => ladder.filter((rung) => rung[field] !== null)
    .map((rung, i) => `${i ? "L" : "M"}${x(rung.budget_bytes).toFixed(1)} ${y(rung[field]).toFixed(1)}`).join("");
  drawing.append(svg("path", { class: "bound", d: path("bound_ms") }), svg("path", { class: "line", d: path("predicted_ms") }));
  const on = ladder[chosen];
  drawing.append(svg("line", { class: "mark", x1: x(on.budget_bytes), x2: x(on.budget_bytes), y1: y(on.predicted_ms), y2: height - bottom }));
  ladder.forEach((rung, index) => {
    const at = { cx: x(rung.budget_bytes).toFixed(1), cy: y(rung.predicted_ms).toFixed(1) };
    const target = svg("circle", { class: "target", r: 11, ...at },
      svg("title", {}, `${enough(rung.budget_bytes)}: ${ms(rung.predicted_ms)}`));
    target.addEventListener("click", () => choose(index));
    drawing.append(target, svg("circle", { class: index === chosen ? "dot on" : "dot", r: index === chosen ? 5.5 : 3, "pointer-events": "none", ...at }));
  });
  box.replaceChildren(drawing);
}

// Powers of two between two budgets; every byte count where there is none.
function budgetTicks(low, high) {
  const result = [];
  for (let power = Math.ceil(Math.log2(low)); 2 ** power <= high; power++) result.push(2 ** power);
  return result.length > 1 ? result : [low, high];
}
