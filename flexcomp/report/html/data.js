// Reads the data of the page, which coding.py has shortened.
function decoded(coded) {
  const found = new Map();
  const whole = (part) => {
    if (Array.isArray(part)) return part.map(whole);
    if (part === null || typeof part !== "object") return part;
    if ("$s" in part) {
      if (!found.has(part.$s)) found.set(part.$s, whole(coded.shared[part.$s]));
      return found.get(part.$s);
    }
    if ("$r" in part) {
      const result = [];
      for (let i = 0; i < part.$r.length; i += 2) for (let n = part.$r[i + 1]; n > 0; n--) result.push(part.$r[i]);
      return result;
    }
    if ("$d" in part) {
      let total = 0;
      return whole(part.$d).map((step) => (total += step));
    }
    return Object.fromEntries(Object.entries(part).map(([key, each]) => [key, whole(each)]));
  };
  return whole(coded.value);
}
