// All charts of a run, and of runs laid over it: by step or time, smoothed, logarithmic, zoomed.
// It gives `Charts`.
"use strict";

const Charts = (() => {
  const state = { x: "version", smooth: 0, log: false, range: null, whole: [0, 1] };
  const runs = []; // the page's own run, and those that are laid over it
  let charts = new Map(); // by title
  let place = null; // the element of the part

  const ownName = () => document.title.replace(/^asyncrl: /, "");

  function options() {
    const places = runs.flatMap((run) =>
      [run.data.steps, run.data.evaluations].flatMap((table) => {
        const all = table?.[state.x] ?? [];
        return all.length ? [all[0], all[all.length - 1]] : [];
      }),
    );
    const [low, high] = [Math.min(...places), Math.max(...places)];
    state.whole = high > low ? [low, high] : [low - 1, low + 1];
    return state;
  }

  // The runs under the ends of their names, behind what all begin with.
  function named() {
    const [first, ...others] = runs.map((run) => run.name);
    let same = first.length;
    for (const other of others) while (!other.startsWith(first.slice(0, same))) same -= 1;
    const at = others.length ? first.slice(0, same).search(/[^-_.]*$/) : 0;
    return runs.map((run) => ({ ...run, name: run.name.slice(at) || run.name }));
  }

  const draw = () => {
    if (!runs.length) return;
    const now = options();
    const drawn = named();
    for (const chart of charts.values()) chart.draw(drawn, now);
  };

  const heard = {
    zoomed(range) {
      state.range = range && range[1] > range[0] ? range : null;
      draw();
    },
  };

  function element(name, properties, ...children) {
    const made = Object.assign(document.createElement(name), properties);
    made.append(...children);
    return made;
  }

  function tools() {
    const choice = (key, words) => {
      const button = element("button", { type: "button", textContent: words });
      button.setAttribute("aria-pressed", String(state.x === key));
      button.addEventListener("click", () => {
        state.x = key;
        state.range = null;
        for (const other of [steps, time]) {
          other.setAttribute("aria-pressed", String(other === button));
        }
        draw();
      });
      return button;
    };
    const steps = choice("version", "Steps");
    const time = choice("seconds", "Time");
    const slider = element("input", { type: "range", min: 0, max: 0.98, step: 0.02, value: 0 });
    slider.addEventListener("input", () => {
      state.smooth = Number(slider.value);
      draw();
    });
    const log = element("input", { type: "checkbox" });
    log.addEventListener("change", () => {
      state.log = log.checked;
      draw();
    });
    const whole = element("button", { type: "button", textContent: "Reset zoom" });
    whole.addEventListener("click", () => heard.zoomed(null));
    return element(
      "div",
      { className: "tools" },
      steps,
      time,
      element("label", {}, "smoothing", slider),
      element("label", {}, log, "logarithmic"),
      whole,
      ...Overlays.tools(),
    );
  }

  // Charts that stay are kept, with their place in the page; data alone changes.
  function fill(data) {
    runs[0] = { name: ownName(), data };
    const grid = place.querySelector(".cards");
    const before = charts;
    charts = new Map(
      data.charts.map((spec) => [spec.title, before.get(spec.title) ?? new Chart(spec, heard)]),
    );
    const cards = [...charts.values()].map((chart) => chart.card);
    if (cards.length !== grid.children.length || cards.some((one, n) => one !== grid.children[n])) {
      grid.replaceChildren(...cards);
    }
    for (const spec of data.charts) charts.get(spec.title).spec = spec;
    draw();
  }

  const numbers = (part) => {
    const text = part.querySelector("[data-curves]")?.dataset.curves;
    return text ? JSON.parse(text) : null;
  };

  return {
    numbers,

    // Draw what a part has written in it; a part that has nothing is shown as it is.
    put(section, fresh) {
      const data = numbers(fresh);
      if (!data) return false;
      if (place !== section || !section.querySelector(".cards")) {
        place = section;
        const grid = element("div", { className: "cards" });
        const bar = tools();
        bar.prepend(...section.querySelectorAll("h2"));
        section.replaceChildren(bar, grid);
        new ResizeObserver(() => charts.forEach((chart) => chart.resize())).observe(grid);
        matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
      }
      fill(data);
      return true;
    },

    // Lay other runs over this one, each with its name and its numbers.
    lay(others) {
      runs.length = Math.min(runs.length, 1);
      runs.push(...others);
      draw();
    },
  };
})();
