// Joins the sections: one plan is chosen, and all of them show it.
const data = decoded(JSON.parse(byId("data").textContent));
const facts = data.facts, ladder = facts.ladder;
byId("model").textContent = facts.model;
byId("ports").textContent = [...facts.inputs.map((port) => `input ${shape(port)}`), ...facts.outputs.map((port) => `output ${shape(port)}`),
  ...facts.states.map((state) => `state ${shape(state)}`)].join(", ");
const latencyOf = (nbytes) => ms(ladder.filter((rung) => rung.budget_bytes <= nbytes).at(-1).predicted_ms);
tiles(byId("sizes"), [
  ["smallest budget", enough(facts.min_budget_bytes), latencyOf(facts.min_budget_bytes)],
  ["default budget", enough(facts.default_budget_bytes), latencyOf(facts.default_budget_bytes)],
  ["everything in memory", enough(facts.resident_bytes), latencyOf(facts.resident_bytes)],
  ["weights file", bytes(facts.weights_bytes), facts.second_forms_bytes ? `${bytes(facts.second_forms_bytes)} of it second forms` : ""],
  ...(facts.error === null ? [] : [["error of the outputs", facts.error.toExponential(1), "by narrow weights"]]),
]);
key(byId("ladder-key"), [["predicted", "var(--accent)", "solid"],
  ...(ladder.some((rung) => rung.bound_ms !== null) ? [["bound: no plan of these kernels is faster", "var(--bound)", "dashed"]] : [])]);
byId("footer").textContent = `flexcomp ${data.version}. Target: ${facts.target}; ${plural(facts.threads, "thread")}. ` +
  (data.storage ? `All times are predicted, for storage of ${rate(data.storage.bytes_per_s)}.` : "All times are predicted.");

const planSection = new PlanSection(data), layerSection = new LayerSection(data);
let chosen = data.shown;

function choose(index) {
  chosen = Math.min(ladder.length - 1, Math.max(0, index));
  const rung = ladder[chosen], input = byId("rung");
  input.value = chosen;
  input.setAttribute("aria-valuetext", `${enough(rung.budget_bytes)}, ${ms(rung.predicted_ms)}`);
  byId("smaller").disabled = chosen === 0;
  byId("larger").disabled = chosen === ladder.length - 1;
  drawLadder(byId("ladder"), ladder, chosen, choose);
  tiles(byId("chosen"), [
    ["budget", enough(rung.budget_bytes), chosen === 0 ? "the smallest" : rung.budget_bytes === facts.default_budget_bytes ? "the default" : `plan ${chosen + 1} of ${ladder.length}`],
    ["predicted", ms(rung.predicted_ms), rung.bound_ms === null ? "" : `bound ${ms(rung.bound_ms)}`],
    ["read per inference", bytes(rung.streamed_bytes), ""],
    ["weights kept", bytes(rung.pinned_bytes), ""],
  ]);
  planSection.show(rung, data.plans[chosen]);
  layerSection.show(chosen, data.plans[chosen]);
}

byId("rung").max = ladder.length - 1;
byId("rung").addEventListener("input", (event) => choose(Number(event.target.value)));
byId("smaller").addEventListener("click", () => choose(chosen - 1));
byId("larger").addEventListener("click", () => choose(chosen + 1));
showSmallest(facts);
showGains(data);
choose(chosen);
const redraw = () => {
  drawLadder(byId("ladder"), ladder, chosen, choose);
  planSection.draw();
};
new ResizeObserver(redraw).observe(document.body);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
