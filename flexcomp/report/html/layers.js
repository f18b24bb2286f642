// The layers of the chosen plan; each opens to the kernels that it was chosen from, and why.
const ORDERS = [["as computed", null], ["computing", "computing"], ["waiting", "waiting"], ["loaded", "loaded_bytes"],
  ["kept", "kept_bytes"], ["scratch", "scratch_bytes"]];

class LayerSection {
  constructor(data) {
    this.data = data;
    this.open = new Set();
    byId("order").replaceChildren(...ORDERS.map(([name], index) => element("option", { value: index }, name)));
    byId("order").addEventListener("change", () => this.draw());
    byId("find").addEventListener("input", () => this.draw());
    this.byName = new Map(data.facts.layers.map((layer) => [layer.name, layer]));
  }

  show(number, plan) {
    this.number = number;
    const { layer, steps, kept_bytes, loaded_bytes, computing, waiting } = plan.layers, rows = new Map();
    layer.forEach((index, i) => {
      const one = this.data.facts.layers[index];
      // Bands of a layer are one row, of which the first stands for all.
      const name = one.band_of || one.name, again = rows.get(`${name} ${one.implementation}`);
      const row = again || { one, bands: new Set(), steps: 0, kept_bytes: 0, loaded_bytes: 0, computing: 0, waiting: 0, scratch_bytes: 0, order: i };
      row.bands.add(index);
      row.steps += steps[i];
      row.kept_bytes += kept_bytes[i];
      row.loaded_bytes += loaded_bytes[i];
      row.scratch_bytes = Math.max(row.scratch_bytes, one.scratch_bytes);
      row.computing += computing ? computing[i] : 0;
      row.waiting += waiting ? waiting[i] : 0;
      row.name = row.bands.size > 1 ? `${name} in ${row.bands.size} bands` : one.name;
      if (!again) rows.set(`${name} ${one.implementation}`, row);
    });
    this.rows = [...rows.values()];
    this.draw();
  }

  draw() {
    const words = byId("find").value.trim().toLowerCase(), field = ORDERS[byId("order").value][1];
    const text = (row) => `${row.name} ${row.one.node || ""} ${row.one.implementation} ${row.one.description}`.toLowerCase();
    let rows = this.rows.filter((row) => text(row).includes(words));
    if (field) rows = [...rows].sort((a, b) => b[field] - a[field]);
    const some = rows.length < this.rows.length ? `${rows.length} of ${plural(this.rows.length, "row")}. ` : "";
    byId("layers-words").textContent = `${some}The plan in ${enough(this.data.facts.ladder[this.number].budget_bytes)}; times in ms. ` +
      "Open a row to see the kernels that the layer was chosen from.";
    byId("layers").replaceChildren(
      head([["layer", "text"], ["kernel", "text kernel"], ["computes", ""], ["waits", ""], ["loaded", ""], ["kept", "spare"], ["scratch", "spare"], ["steps", "spare"]]),
      element("tbody", {}, ...rows.flatMap((row) => this.row(row))));
  }

  row(row) {
    const { one } = row, open = this.open.has(one.name), some = (nbytes) => (nbytes ? bytes(nbytes) : "");
    const button = element("button", { type: "button", class: "row", "aria-expanded": String(open), onclick: () => {
      if (!this.open.delete(one.name)) this.open.add(one.name);
      this.draw();
    } }, row.name);
    const time = (ticks) => (ticks * 1000 < this.data.per_ms / 2 ? "" : (ticks / this.data.per_ms).toFixed(3));
    const shown = element("tr", {}, cell([...twice(button, one.node), element("small", { class: "narrow" }, one.implementation)], "text"), cell(twice(one.implementation, one.description), "text kernel"),
      cell(time(row.computing)), cell(time(row.waiting)), cell(some(row.loaded_bytes)), cell(some(row.kept_bytes), "spare"),
      cell(some(row.scratch_bytes), "spare"), cell(String(row.steps), "spare"));
    return open ? [shown, element("tr", { class: "more" }, element("td", { colspan: 8 }, ...this.more(one)))] : [shown];
  }

  more(layer) {
    const facts = `${(layer.flops / 1e6).toFixed(1)} MFLOP; weights ${layer.weights_bytes ? `${bytes(layer.weights_bytes)}, ${layer.weights_dtype}, ${plural(layer.blocks, "block")}` : "none"}.`;
    const why = layer.why[this.number];
    if (!layer.candidates.length) return [`${facts} ${why ? `Why this kernel: ${why}.` : "There was no other kernel."}`];
    const used = (one) => one.layer ? this.byName.get(one.layer).slices.filter((count) => count > 0).length : 0;
    const table = element("table", {}, head([["kernel", "text"], ["ms", ""], ["weights", ""], ["scratch", ""], ["", "text"]]),
      element("tbody", {}, ...layer.candidates.map((one) => element("tr", one.layer === layer.name ? { class: "used" } : {},
        cell(one.implementation, "text"), cell(one.predicted_ms.toFixed(3)), cell(one.weights_bytes ? bytes(one.weights_bytes) : ""),
        cell(one.scratch_bytes ? bytes(one.scratch_bytes) : ""),
        cell(one.layer ? `used by ${used(one)} of ${plural(layer.slices.length, "budget")}` : one.passed_over, "text")))));
    return [`${facts} Why this kernel in this budget: ${why || "unknown"}.`, element("div", { class: "scroll" }, table)];
  }
}
