// The table of rollouts: sorted, filtered, opened, and two of them beside each other. It gives
// `Rollouts`. What it shows of a run comes as elements of a document without scripts.
"use strict";

const Rollouts = (() => {
  let order = null; // [column, downwards]
  let words = "";
  let looked = 0;

  const rows = (section) => [...section.querySelectorAll("tbody tr:not(.opened)")];

  function value(row, column) {
    const cell = row.cells[column + 1];
    return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value);
  }

  function sort(section) {
    if (!order) return;
    const [column, down] = order;
    const body = section.querySelector("tbody");
    const ranked = rows(section).sort((one, other) => {
      const [a, b] = [value(one, column), value(other, column)];
      if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1; // what is not known is last
      const less = typeof a === "number" ? a - b : a.localeCompare(b);
      return down ? -less : less;
    });
    close(section);
    body.append(...ranked);
    for (const button of section.querySelectorAll("[data-sort]")) {
      const chosen = Number(button.dataset.sort) === column;
      button.toggleAttribute("data-down", chosen && down);
      button.toggleAttribute("data-up", chosen && !down);
    }
  }

  // Whether a text has what was asked for: "prompt 7" is not in "prompt 70".
  function has(said, one) {
    for (let at = said.indexOf(one); at >= 0; at = said.indexOf(one, at + 1)) {
      if (!/\d\d/.test(one.at(-1) + (said[at + one.length] ?? ""))) return true;
    }
    return false;
  }

  function filter(section) {
    const asked = words.toLowerCase().split(/\s*,\s*/).filter(Boolean);
    for (const row of rows(section)) {
      const said = `${row.textContent} ${row.dataset.words}`.toLowerCase();
      row.hidden = !asked.every((one) => has(said, one));
    }
  }

  function close(section) {
    for (const row of section.querySelectorAll("tr.opened")) row.remove();
    for (const button of section.querySelectorAll("[data-open]")) {
      button.setAttribute("aria-expanded", "false");
    }
  }

  const sentence = (text) => {
    const said = document.createElement("p");
    said.textContent = text;
    return said;
  };

  // All of a rollout's text: a report has it written in it, a page asks its server.
  async function text(number) {
    const written = document.getElementById("written");
    if (written) {
      const found = written.querySelector(`#rollout-${number}`);
      const none = "A report has the text of its newest rollouts only.";
      return found?.cloneNode(true) ?? sentence(none);
    }
    const end = document.querySelector(`[data-open="${number}"]`)?.dataset.at ?? "";
    const answer = await Overlays.ask(`rollout/${number}/${end}`);
    const found = answer?.querySelector(".rollout");
    return found ? document.adoptNode(found) : sentence("The journal has this rollout no more.");
  }

  async function open(section, button) {
    const opened = button.getAttribute("aria-expanded") === "true";
    close(section);
    if (opened) return;
    button.setAttribute("aria-expanded", "true");
    const row = document.createElement("tr");
    row.className = "opened";
    const cell = row.insertCell();
    cell.colSpan = button.closest("tr").cells.length;
    cell.append(sentence("loading …"));
    button.closest("tr").after(row);
    cell.replaceChildren(await text(button.dataset.open));
  }

  const picked = (section) => [...section.querySelectorAll("[data-pick]:checked")];

  async function compare(section) {
    const numbers = picked(section).map((one) => one.dataset.pick);
    const place = section.querySelector(".compared");
    const texts = await Promise.all(numbers.map(text));
    const said = texts.map((one) =>
      [...one.querySelectorAll(".sampled pre")].map((part) => part.textContent).join("\n"),
    );
    const pairs = Differences.between(...said);
    const heading = document.createElement("h3");
    heading.textContent = `What ${numbers.join(" and ")} sampled; what only one has is marked`;
    place.replaceChildren(
      heading,
      Differences.marked(pairs, "del"),
      Differences.marked(pairs, "ins"),
    );
    place.scrollIntoView({ block: "nearest" });
  }

  // Rollouts that ended before those of the table: those that the filter shows, or of all that are
  // looked through the first of the chosen order.
  async function look(section) {
    const [further, newest, said] = tools(section);
    const place = further.parentElement;
    const [column, down] = order ?? [];
    const by = section.querySelectorAll("[data-sort]")[column]?.textContent ?? "newest";
    further.disabled = true;
    said.textContent = "looking …";
    const asked = `${place.dataset.older}/${by}/${down ? "down" : "up"}/`;
    const answer = await Overlays.ask(`older/${asked}${encodeURIComponent(words)}`);
    const found = answer?.querySelector("[data-older]");
    if (!found) {
      further.disabled = false;
      said.textContent = "The journal could not be read; try again.";
      return;
    }
    for (const row of [...answer.querySelectorAll("tbody tr")]) {
      const number = row.querySelector("[data-open]").dataset.open;
      if (section.querySelector(`[data-open="${number}"]`)) continue;
      row.dataset.further = "";
      section.querySelector("tbody").append(document.adoptNode(row));
    }
    place.dataset.older = found.dataset.older;
    looked += Number(found.dataset.looked);
    said.textContent = `${looked.toLocaleString("en")} older ones looked through`;
    if (!found.dataset.older) said.textContent += ": all that the journal has";
    further.disabled = !found.dataset.older;
    newest.hidden = false;
    sort(section);
    filter(section);
  }

  const tools = (section) =>
    ["older", "newest", "looked"].map((name) => section.querySelector(`#rollout-${name}`));

  function further(section) {
    const [button, newest, said] = tools(section);
    const first = button.parentElement.dataset.older;
    looked = 0;
    button.hidden = !first || document.getElementById("written") !== null;
    button.addEventListener("click", () => look(section));
    newest.addEventListener("click", () => {
      for (const row of section.querySelectorAll("[data-further]")) row.remove();
      close(section);
      button.parentElement.dataset.older = first;
      button.disabled = false;
      newest.hidden = true;
      looked = 0;
      said.textContent = "";
    });
  }

  function begin(section) {
    const field = section.querySelector("#rollout-filter");
    if (!field) return;
    field.value = words;
    field.addEventListener("input", () => {
      words = field.value;
      close(section);
      filter(section);
    });
    const button = section.querySelector("#rollout-compare");
    button.addEventListener("click", () => compare(section));
    section.querySelector("table").addEventListener("click", (event) => {
      const { sort: by, open: number } = event.target.dataset ?? {};
      if (by !== undefined) {
        const column = Number(by);
        order = [column, order?.[0] === column ? !order[1] : true];
        sort(section);
      } else if (number !== undefined) open(section, event.target);
    });
    section.addEventListener("change", (event) => {
      if (event.target.dataset.pick) button.disabled = picked(section).length !== 2;
    });
    further(section);
    sort(section);
    filter(section);
  }

  // True while somebody reads in the table.
  const isRead = (section) =>
    section.querySelector("tr.opened, [data-further], [data-pick]:checked, #rollout-filter:focus") !== null;

  return { begin, isRead };
})();
