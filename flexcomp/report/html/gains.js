// What would help: for each change the latency in a few budgets and the smallest budget, as the planner predicts them.
function showGains(data) {
  const gains = data.gains, facts = data.facts;
  if (!gains || !gains.length) {
    byId("gains-words").textContent = "The library does not hold the times that its plans assume: build it again to see predictions.";
    return;
  }
  byId("gains-words").textContent = "Each change alone, in some of the budgets. The planner plans the kernels of the present plan anew, with and " +
    "without the change; the gain is the ratio. Narrower weights are taken to compute as fast as now, a smaller image to cost in proportion to " +
    "its pixels. Latency in ms, best first.";
  const budgets = gains[0].at.map((one) => one.budget_bytes);
  const saved = (gain) => gain.at.reduce((sum, one) => sum + 1 - one.after_ms / one.before_ms, 0);
  const helps = (gain) => [[facts.min_budget_bytes, gain.min_budget_bytes], ...gain.at.map((one) => [one.before_ms, one.after_ms])]
    .some(([before, after]) => lessBy(before, after) > 0);
  const rows = gains.filter(helps).sort((a, b) => saved(b) - saved(a)), idle = gains.filter((gain) => !helps(gain));
  byId("gains-idle").textContent = idle.length ? `These would gain less than 1 %: ${idle.map((gain) => changeWords(gain)[0]).join(", ")}.` : "";
  const now = element("tr", { class: "own" }, cell("as built", "text"), cell(enough(facts.min_budget_bytes)),
    ...gains[0].at.map((one) => cell(one.before_ms.toFixed(2))));
  byId("gains").replaceChildren(head([["change", "text"], ["smallest budget", ""], ...budgets.map((nbytes) => [`in ${enough(nbytes)}`, ""])]),
    element("tbody", {}, now, ...rows.map((gain) => element("tr", {}, cell(twice(...changeWords(gain)), "text"),
      cell(change(enough(gain.min_budget_bytes), facts.min_budget_bytes, gain.min_budget_bytes)),
      ...gain.at.map((one) => cell(change(one.after_ms.toFixed(2), one.before_ms, one.after_ms)))))));
}

function lessBy(before, after) {
  return Math.round(100 * (1 - after / before));
}

// The new figure, and by how many percent it is less.
function change(text, before, after) {
  const part = lessBy(before, after);
  return part > 0 ? [text, element("small", { class: "gain" }, `−${part} %`)] : [text];
}

function changeWords(gain) {
  if (gain.change === "storage") return [`storage ${gain.times} times as fast`, rate(gain.bytes_per_s)];
  if (gain.change === "input") return [`smaller input ${gain.name}`, gain.shape.join("×")];
  return gain.layer ? [`${gain.dtype} weights for ${gain.layer}`, gain.node] : [`${gain.dtype} weights for all layers`, null];
}
