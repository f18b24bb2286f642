// The step that sets the smallest budget, and everything in the arena at that moment.
function showSmallest(facts) {
  const found = facts.smallest, rung = facts.ladder[0];
  const parts = Object.entries(found.parts).map(([kind, nbytes]) => `${bytes(nbytes)} of ${KIND_WORDS[kind]}`);
  byId("smallest-words").textContent = `The smallest budget is ${enough(rung.budget_bytes)}. Step ${found.step} sets it: ${found.layer}` +
    `${found.node ? ` (node ${found.node})` : ""} cannot do without ${parts.length > 1 ? `${bytes(found.needed_bytes)} at once: ` : ""}${parts.join(", ")}. ` +
    "The arena then holds:";
  const rows = [...found.alive].sort((a, b) => b.bytes - a.bytes), most = rows.length ? rows[0].bytes : 1;
  byId("smallest").replaceChildren(head([["occupant", "text"], ["bytes", ""], ["address", "spare"], ["", "wide"]]),
    element("tbody", {}, ...rows.map((one) => {
      const of = `var(--${COLOURS[one.kind]})`;
      return element("tr", {}, cell([element("span", { class: "swatch", of }), one.name,
        element("small", {}, `${KIND_WORDS[one.kind]}${one.over === null ? "" : `, written over ${one.over}`}`)], "text"),
        cell(bytes(one.bytes)), cell(grouped(one.address), "spare"),
        cell(element("span", { class: "meter", of, width: `${Math.max(1, (100 * one.bytes) / most)}%` }), "wide"));
    })));
}
