// The section of one plan: both canvases, their view, and words about the rectangle under the pointer.
class PlanSection {
  constructor(data) {
    this.state = { data, byStep: false, working: false, marked: null };
    this.memory = byId("memory");
    this.lanes = byId("lanes");
    this.state.view = new View([this.memory, this.lanes], () => this.draw(), (canvas, place) => this.point(canvas, place));
    const view = this.state.view;
    byId("zoom-in").addEventListener("click", () => view.zoom(1.6));
    byId("zoom-out").addEventListener("click", () => view.zoom(1 / 1.6));
    byId("zoom-all").addEventListener("click", () => view.all());
    byId("by-time").addEventListener("click", () => this.switch(false));
    byId("by-step").addEventListener("click", () => this.switch(true));
    byId("whole").addEventListener("click", () => this.addresses(false));
    byId("working").addEventListener("click", () => this.addresses(true));
  }

  show(rung, plan) {
    const { data } = this.state;
    Object.assign(this.state, { rung, plan, marked: null, spans: loadSpans(plan, data) });
    this.switch(this.state.byStep);
    const used = data.kinds.filter((_, kind) => plan.boxes.kind.includes(kind));
    const lanes = !plan.steps.end ? [] : [["computing", "computing"], ["waiting for loads", "waiting"], ["loading", "loading"],
      ...(plan.loads.prepared.some((made, i) => made && plan.loads.end[i] > plan.loads.start[i]) ? [["loading and preparing", "preparing"]] : [])];
    key(byId("memory-key"), used.map((kind) => [KIND_WORDS[kind], `var(--${COLOURS[kind]})`]));
    key(byId("lanes-key"), lanes.map(([name, of]) => [name, `var(--${of})`]));
    const words = `${enough(rung.budget_bytes)}: ${plural(rung.steps, "step")}, ${plural(plan.loads.name.length, "load")} in each inference, ` +
      `${bytes(rung.streamed_bytes)} read, ${bytes(rung.pinned_bytes)} of weights kept.`;
    byId("plan-words").textContent = words;
    this.memory.setAttribute("aria-label", `addresses of the arena over time, ${words}`);
    this.lanes.setAttribute("aria-label", `when the plan computes and loads, ${words}`);
    byId("pointed").textContent = "Point at a rectangle: its name, size and time appear here.";
  }

  switch(byStep) {
    const { state } = this;
    const part = state.axis ? [state.view.low / state.view.length, state.view.high / state.view.length] : [0, 1];
    const same = state.axis && state.byStep === byStep && state.axis.plan === state.plan;
    state.byStep = byStep;
    state.axis = { ...axisOf(state.plan, state.data, byStep), plan: state.plan };
    byId("by-time").setAttribute("aria-pressed", String(!byStep));
    byId("by-step").setAttribute("aria-pressed", String(byStep));
    this.lanes.hidden = !state.axis.timed;
    state.view.reset(state.axis.length);
    if (same) state.view.show(part[0] * state.axis.length, part[1] * state.axis.length);
    else this.draw();
  }

  // All addresses, or those below everything that stays between inferences.
  addresses(working) {
    this.state.working = working;
    byId("whole").setAttribute("aria-pressed", String(!working));
    byId("working").setAttribute("aria-pressed", String(working));
    this.draw();
  }

  draw() {
    drawMemory(this.memory, this.state);
    drawLanes(this.lanes, this.state);
  }

  point(canvas, place) {
    const found = canvas === this.memory ? this.box(place) : this.bar(place);
    this.state.marked = found && { canvas, ...found };
    if (found) byId("pointed").textContent = found.words;
    this.draw();
  }

  box(place) {
    const { plan, data, view, axis, address } = this.state;
    const at = view.at(place.x), byte = address(place.y), boxes = plan.boxes;
    for (let i = boxes.kind.length - 1; i >= 0; i--) {
      const inside = boxes.address[i] <= byte && byte < boxes.address[i] + boxes.bytes[i];
      if (!inside || at < axis.edges[boxes.start[i]] || at >= axis.edges[boxes.end[i]]) continue;
      const last = boxes.end[i] - 1, steps = boxes.start[i] === last ? `step ${last}` : `steps ${boxes.start[i]} to ${last}`;
      const words = `${KIND_WORDS[data.kinds[boxes.kind[i]]]}: ${data.names[boxes.name[i]]}, ${bytes(boxes.bytes[i])} at address ` +
        `${grouped(boxes.address[i])}, ${steps}${this.when(boxes.start[i], boxes.end[i])}`;
      return { index: i, kind: "box", words };
    }
    return null;
  }

  when(start, end) {
    const { plan, data } = this.state;
    if (!plan.steps.end) return "";
    const edge = (index) => (index ? plan.steps.end[index - 1] / data.per_ms : 0).toFixed(3);
    return `, ${edge(start)} to ${edge(end)} ms`;
  }

  bar(place) {
    const { plan, data, view, axis, lanes, spans } = this.state;
    if (!lanes) return null;
    const at = view.at(place.x), time = (ticks) => ticks / data.per_ms, near = 2 * (view.at(1) - view.at(0));
    const inside = (start, end) => axis.at(start) - near <= at && at <= axis.at(end) + near;
    if (place.y >= lanes.computing[0] && place.y < lanes.computing[1]) {
      let index = plan.steps.layer.findIndex((_, i) => inside(time(plan.steps.start[i]), time(plan.steps.end[i])));
      if (index < 0) {
        index = plan.steps.end.findIndex((end) => at <= axis.at(time(end)));
        if (index < 0) return null;
        const begin = index ? time(plan.steps.end[index - 1]) : 0, wait = time(plan.steps.start[index]) - begin;
        return { index: -1, kind: "wait", words: `step ${index}, ${data.names[plan.steps.layer[index]]}, waits ${wait.toFixed(3)} ms for loads, from ${begin.toFixed(3)} ms on` };
      }
      const layer = data.facts.layers[plan.steps.layer[index]], first = plan.steps.first[index], count = plan.steps.count[index];
      const part = layer.blocks > count ? `, blocks ${first} to ${first + count - 1} of ${layer.blocks}` : "";
      return { index, kind: "step", words: `step ${index}: ${layer.name}${layer.node ? ` (node ${layer.node})` : ""}, ${layer.description}, ` +
        `${layer.implementation}${part}, ${time(plan.steps.start[index]).toFixed(3)} to ${time(plan.steps.end[index]).toFixed(3)} ms` };
    }
    const span = place.y >= lanes.loading[0] && place.y < lanes.loading[1] && spans.find(({ start, end }) => inside(start, end));
    if (!span) return null;
    const { index } = span, made = plan.loads.prepared[index] ? "load and preparation" : "load";
    return { index, kind: "load", words: `${made} of ${data.names[plan.loads.name[index]]}, ${bytes(plan.loads.bytes[index])}, ` +
      `${time(plan.loads.start[index]).toFixed(3)} to ${time(plan.loads.end[index]).toFixed(3)} ms` +
      `${plan.loads.start[index] < 0 ? ", begun in the inference before" : ""}` };
  }
}

const KIND_WORDS = { activation: "activations", state: "state", weights: "weights in use", "pinned weights": "weights kept", preload: "weights loaded early", scratch: "scratch" };
