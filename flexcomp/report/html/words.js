// Amounts for people, as flexcomp/units.py writes them.
const SIZES = [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]];

function grouped(number) {
  return String(number).replace(/\B(?=(\d{3})+$)/g, ",");
}

function bytes(nbytes) {
  for (const [name, size] of SIZES) if (nbytes >= size) return `${(nbytes / size).toFixed(2)} ${name}`;
  return `${grouped(nbytes)} B`;
}

// Rounded up: a budget that is given so is large enough.
function enough(nbytes) {
  for (const [name, size] of SIZES) if (nbytes >= size) return `${(Math.ceil((nbytes * 100) / size) / 100).toFixed(2)} ${name}`;
  return `${grouped(nbytes)} B`;
}

function ms(value, digits = 2) {
  return value === null || value === undefined ? "unknown" : `${value.toFixed(digits)} ms`;
}

function rate(perSecond) {
  return perSecond >= 1e9 ? `${(perSecond / 1e9).toFixed(2)} GB/s` : `${(perSecond / 1e6).toFixed(0)} MB/s`;
}

function shape(port) {
  return `${port.name}: ${port.dtype}[${port.shape.join("×")}]`;
}

function plural(count, word) {
  return `${grouped(count)} ${word}${count === 1 ? "" : "s"}`;
}
