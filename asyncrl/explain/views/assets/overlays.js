// Runs that are laid over the one of the page, where a folder of runs is served, with a table of
// what they differ in. It gives `Overlays`.
"use strict";

const Overlays = (() => {
  const MOST = 5;
  const chosen = new Map(); // numbers of curves by the name of their run

  const ask = (path) =>
    new Promise((answered) => {
      const request = new XMLHttpRequest();
      request.open("GET", path);
      request.responseType = "document";
      request.onloadend = () => answered(request.status === 200 ? request.response : null);
      request.send();
    });

  const own = () => {
    const name = location.pathname.split("/").at(-2) ?? "";
    try {
      return decodeURIComponent(name);
    } catch {
      return name; // it is no UTF-8, and not compared
    }
  };

  function lay() {
    Charts.lay([...chosen].map(([name, data]) => ({ name, data })));
    compare();
  }

  // The settings in which the runs differ and their figures, behind the curves.
  async function compare() {
    const names = [own(), ...chosen.keys()];
    const path = `../../compared/${names.map(encodeURIComponent).join("/")}`;
    const table = names.length > 1 ? await ask(path) : null;
    if (names.length !== chosen.size + 1) return; // more were chosen meanwhile, or none
    document.getElementById("differences")?.remove();
    if (!table) return;
    const section = document.createElement("section");
    const heading = document.createElement("h2");
    heading.textContent = "What differs";
    section.id = "differences";
    section.className = "whole";
    section.append(heading, ...document.adoptNode(table.body).childNodes);
    document.getElementById("curves").after(section);
  }

  async function add(name) {
    if (chosen.has(name) || chosen.size >= MOST) return;
    const part = await ask(`../${encodeURIComponent(name)}/part/curves`);
    const data = part && Charts.numbers(part);
    if (data) chosen.set(name, data);
    lay();
  }

  // The choice of runs; nothing where one run alone is served, or a report is read.
  function tools() {
    if (!document.querySelector("[data-runs]")) return [];
    const box = document.createElement("select");
    box.setAttribute("aria-label", "lay another run over this one");
    box.append(new Option("Compare with …", ""));
    ask("../../part/runs").then((list) => {
      for (const one of list?.querySelectorAll("[data-run]") ?? []) {
        if (one.dataset.run !== own()) box.append(new Option(one.dataset.run, one.dataset.run));
      }
    });
    const none = document.createElement("button");
    none.type = "button";
    none.textContent = "This run only";
    none.hidden = true;
    none.addEventListener("click", () => {
      chosen.clear();
      none.hidden = true;
      lay();
    });
    const also = async (name) => {
      await add(name);
      none.hidden = !chosen.size;
    };
    box.addEventListener("change", () => {
      if (box.value) also(box.value);
      box.value = "";
    });
    for (const name of new URLSearchParams(location.hash.slice(1)).getAll("with")) also(name);
    return [box, none];
  }

  return { tools, ask };
})();
