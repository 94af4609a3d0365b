// One chart: lines of numbers over steps or seconds, drawn by uPlot on a canvas. It gives `Chart`.
// Text is only ever text (textContent), whoever named a run or a line.
"use strict";

const Chart = (() => {
  const COLOURS = ["--one", "--two", "--three", "--four", "--five", "--six"];

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // A number in as many digits as a person reads.
  function short(value) {
    if (value === null || value === undefined) return "–";
    const size = Math.abs(value);
    if (size !== 0 && (size < 1e-3 || size >= 1e6)) {
      return value.toExponential(1).replace("e+", "e");
    }
    if (size >= 100) return Math.round(value).toLocaleString("en");
    return String(Number(value.toPrecision(3)));
  }

  function seconds(value) {
    if (value === null || value === undefined) return "–";
    const whole = Math.round(value);
    const [hours, minutes] = [Math.floor(whole / 3600), Math.floor((whole % 3600) / 60)];
    const two = (part) => String(part).padStart(2, "0");
    return hours ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
  }

  const percent = (value) =>
    value === null || value === undefined ? "–" : `${Number((100 * value).toPrecision(3))}%`;

  const written = (unit) => (unit === "share" ? percent : unit === "seconds" ? short : short);

  // Exponential means, without the pull of the first value.
  function smooth(values, weight) {
    if (!weight) return values;
    let mean = 0;
    let known = 0;
    return values.map((value) => {
      if (value === null || value === undefined) return value;
      mean = weight * mean + (1 - weight) * value;
      known = weight * known + (1 - weight);
      return mean / known;
    });
  }

  // The ends of a vertical axis; a share begins at zero, and is at most one.
  function height(share, low, high) {
    if (low === null || low === undefined) return [0, 1];
    if (share && low >= 0 && high <= 1) return [0, high > 0.5 ? 1 : high * 1.15 || 0.01];
    const top = high > low ? high : low + (Math.abs(low) || 1) * 0.1;
    return uPlot.rangeNum(low, top, 0.08, true);
  }

  // The lines that there are, each as places and values: of every run that has its column.
  function linesOf(spec, runs, x) {
    const found = [];
    runs.forEach((run, of) => {
      const table = run.data[spec.table];
      spec.lines.forEach((line, number) => {
        const values = table?.[line.column];
        if (!values?.some((value) => value !== null)) return;
        const several = runs.length > 1;
        found.push({
          name: several ? run.name : line.name,
          named: !several || number === 0,
          x: table[x],
          values,
          paint: COLOURS[(several ? of : number) % COLOURS.length],
          dash: number === 1 ? [6, 4] : number > 1 ? [2, 3] : undefined,
        });
      });
    });
    return found;
  }

  class Chart {
    // `heard` is told of what a person does: hover, zoom and reset are those of all charts.
    constructor(spec, heard) {
      this.spec = spec;
      this.heard = heard;
      this.card = document.createElement("figure");
      this.card.className = "card";
      const title = document.createElement("h3");
      title.textContent = spec.title;
      this.keys = document.createElement("div");
      this.keys.className = "keys";
      this.plot = document.createElement("div");
      this.plot.className = "plot";
      this.plot.tabIndex = 0;
      this.plot.setAttribute("role", "img");
      this.plot.addEventListener("keydown", (event) => this.key(event));
      this.card.append(title, this.keys, this.plot);
    }

    draw(runs, options) {
      this.lines = linesOf(this.spec, runs, options.x);
      this.options = options;
      this.card.hidden = !this.lines.length;
      this.drawn?.destroy();
      this.drawn = null;
      if (!this.lines.length || !this.plot.clientWidth) return;
      const log = options.log && this.spec.unit !== "share";
      const level = (value) => (log && !(value > 0) ? null : value);
      const shown = this.lines.map((line) => ({ ...line, values: line.values.map(level) }));
      const raw = options.smooth ? shown.map((line) => ({ ...line, faint: true })) : [];
      const fine = shown.map((line) => ({ ...line, values: smooth(line.values, options.smooth) }));
      this.series = [...fine, ...raw];
      const data = uPlot.join(this.series.map((line) => [line.x, line.values]));
      this.name();
      this.drawn = new uPlot(this.settings(log), data, this.plot);
      this.values(null);
    }

    settings(log) {
      const axis = { stroke: colour("--dim"), font: "11px system-ui, sans-serif" };
      const grid = { stroke: colour("--line"), width: 1 };
      const ticks = { show: false };
      const y = written(this.spec.unit);
      const across = this.options.x === "seconds" ? seconds : short;
      const share = this.spec.unit === "share";
      const few = this.series.every((line) => line.values.length < 40);
      return {
        width: this.plot.clientWidth,
        height: this.plot.clientHeight,
        legend: { show: false },
        cursor: {
          sync: { key: "asyncrl" },
          drag: { x: true, y: false, setScale: false },
          points: { size: 6 },
          bind: { dblclick: () => () => this.heard.zoomed(null) },
        },
        scales: {
          x: { time: false, range: () => this.options.range ?? this.options.whole },
          y: log
            ? { distr: 3 }
            : { range: (_, low, high) => height(share, low, high) },
        },
        axes: [
          {
            ...axis, grid: { show: false }, ticks, size: 22, gap: 3,
            values: (_, all) => all.map(across),
          },
          {
            ...axis, grid, ticks, gap: 4, size: 44,
            values: (_, all) => all.map((one) => (one === null ? "" : y(one))),
          },
        ],
        series: [
          {},
          ...this.series.map((line) => ({
            stroke: colour(line.paint),
            width: line.faint ? 1 : 1.6,
            alpha: line.faint ? 0.3 : 1,
            dash: line.dash,
            spanGaps: true,
            points: { show: few && !line.faint, size: 5, fill: colour(line.paint) },
          })),
        ],
        hooks: {
          setCursor: [(drawn) => this.values(drawn.cursor.idx)],
          setSelect: [
            (drawn) => {
              const { left, width } = drawn.select;
              if (width < 4) return;
              this.heard.zoomed([drawn.posToVal(left, "x"), drawn.posToVal(left + width, "x")]);
            },
          ],
        },
      };
    }

    // Of several runs each has one key, of the first line; the others are dashed.
    name() {
      const keys = this.lines.filter((line) => line.named).map((line) => {
        const key = document.createElement("span");
        key.className = `k${COLOURS.indexOf(line.paint)}`;
        key.append(`${line.name} `, document.createElement("b"));
        return key;
      });
      this.keys.replaceChildren(...keys);
    }

    // Show the values at a place of the lines, or the last ones.
    values(place) {
      if (!this.drawn) return;
      const y = written(this.spec.unit);
      const named = this.lines.filter((line) => line.named);
      const said = named.map((line) => {
        const all = this.drawn.data[this.lines.indexOf(line) + 1];
        let at = place ?? all.length - 1;
        while (at > 0 && (all[at] === null || all[at] === undefined)) at -= 1;
        return y(all[at]);
      });
      said.forEach((text, number) => {
        this.keys.children[number].lastChild.textContent = text;
      });
      if (place === null) {
        const words = named.map((line, number) => `${line.name} ${said[number]}`);
        this.plot.setAttribute("aria-label", `${this.spec.title}: ${words.join(", ")}`);
      }
    }

    key(event) {
      const drawn = this.drawn;
      if (!drawn) return;
      const places = drawn.data[0];
      const steps = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };
      if (event.key === "Escape") this.heard.zoomed(null);
      else if (event.key === "+" || event.key === "-") {
        const [low, high] = [drawn.scales.x.min, drawn.scales.x.max];
        const middle = places[drawn.cursor.idx ?? places.length - 1];
        const wide = (high - low) * (event.key === "+" ? 0.25 : 1);
        this.heard.zoomed([middle - wide, middle + wide]);
      } else if (event.key in steps) {
        const last = places.length - 1;
        const at = Math.min(last, Math.max(0, (drawn.cursor.idx ?? last) + steps[event.key]));
        const left = drawn.valToPos(places[at], "x");
        drawn.setCursor({ left, top: drawn.over.clientHeight / 2 });
      } else return;
      event.preventDefault();
    }

    resize() {
      if (this.drawn) {
        this.drawn.setSize({ width: this.plot.clientWidth, height: this.plot.clientHeight });
      }
    }
  }

  return Chart;
})();
