// Elements. Names come from models: always as text, never as markup.
const byId = (id) => document.getElementById(id);

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "of") made.style.setProperty("--of", value);
    else if (name === "width") made.style.width = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function tiles(list, pairs) {
  list.replaceChildren(...pairs.map(([name, value, more]) =>
    element("div", {}, element("dt", {}, name), element("dd", {}, value, more ? element("small", {}, more) : null))));
}

function cell(content, kind = "") {
  return element("td", kind ? { class: kind } : {}, ...(Array.isArray(content) ? content : [content]));
}

function head(names) {
  return element("thead", {}, element("tr", {}, ...names.map(([name, kind]) =>
    element("th", { scope: "col", ...(kind ? { class: kind } : {}) }, name))));
}

// Two names, one below the other.
function twice(first, second) {
  return second ? [first, element("small", {}, second)] : [first];
}

function key(list, entries) {
  list.replaceChildren(...entries.map(([name, colour, how]) => {
    const made = element("span", how ? { class: "thin", of: colour } : { of: colour }, name);
    if (how) made.style.setProperty("--how", how);
    return made;
  }));
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

// Round values of an axis: about `count` of them up to `most`.
function ticks(least, most, count) {
  const rough = (most - least) / Math.max(1, count);
  const unit = 10 ** Math.floor(Math.log10(rough || 1));
  const step = [1, 2, 5, 10].map((n) => n * unit).find((n) => n >= rough) || unit;
  const result = [];
  for (let at = Math.ceil(least / step) * step; at <= most + step * 1e-9; at += step) result.push(Number(at.toPrecision(12)));
  return result;
}
