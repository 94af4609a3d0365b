// Two texts word by word: what only the first has, and what only the second has. It gives
// `Differences`.
"use strict";

const Differences = (() => {
  const WORDS = 1200;

  // Pairs [kind, word]: "same", "del" (of the first alone), "ins" (of the second alone).
  function between(first, second) {
    const [a, b] = [first, second].map((text) => (text.match(/\s+|[^\s]+/g) ?? []).slice(0, WORDS));
    const wide = b.length + 1;
    const longest = new Uint16Array((a.length + 1) * wide);
    for (let i = a.length - 1; i >= 0; i -= 1) {
      for (let j = b.length - 1; j >= 0; j -= 1) {
        longest[i * wide + j] =
          a[i] === b[j]
            ? longest[(i + 1) * wide + j + 1] + 1
            : Math.max(longest[(i + 1) * wide + j], longest[i * wide + j + 1]);
      }
    }
    const below = (i, j) => longest[(i + 1) * wide + j] >= longest[i * wide + j + 1];
    const found = [];
    let [i, j] = [0, 0];
    while (i < a.length || j < b.length) {
      if (i < a.length && j < b.length && a[i] === b[j]) {
        found.push(["same", a[i]]);
        i += 1;
        j += 1;
      } else if (j >= b.length || (i < a.length && below(i, j))) {
        found.push(["del", a[i]]);
        i += 1;
      } else {
        found.push(["ins", b[j]]);
        j += 1;
      }
    }
    return found;
  }

  // A text with the words that it alone has marked.
  function marked(pairs, kind) {
    const text = document.createElement("pre");
    for (const [of, word] of pairs) {
      if (of === "same") text.append(word);
      else if (of === kind) {
        const mark = document.createElement(kind);
        mark.textContent = word;
        text.append(mark);
      }
    }
    return text;
  }

  return { between, marked };
})();
