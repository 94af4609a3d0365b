// Renews the parts of a page, each as often as it says (data-every, in seconds), or begins those of
// a report. Invariant: what comes from the run is never handed to anything that makes a script of
// text: a part is parsed as a document without scripts, and its elements are put in the place of
// the old ones.
"use strict";

(() => {
  const heard = document.getElementById("heard");
  const hold = document.getElementById("hold");
  const failed = new Map(); // how often each part failed, one time after the other
  const SLOWEST_S = 60;

  function say(text) {
    if (heard.textContent !== text) heard.textContent = text;
  }

  // A part in which somebody reads is left as it is.
  function isRead(section) {
    const chosen = getSelection();
    const marked = chosen && !chosen.isCollapsed && section.contains(chosen.anchorNode);
    const ticked = section.querySelector("[data-run]:checked") !== null;
    const opened = section.querySelector("details[open]") !== null;
    return marked || ticked || opened || Rollouts.isRead(section);
  }

  function put(section, fresh) {
    if (section.id === "curves" && Charts.put(section, fresh)) return;
    const focused = section.contains(document.activeElement) ? document.activeElement.id : "";
    for (const old of section.querySelectorAll("input[type=radio]:checked")) {
      const same = fresh.querySelector(`#${CSS.escape(old.id)}`);
      if (same) same.checked = true;
    }
    section.replaceChildren(...document.adoptNode(fresh).childNodes);
    if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
    begin(section);
  }

  // What is to be done with the elements of a part that are new.
  function begin(section) {
    if (section.id === "curves") Charts.put(section, section);
    if (section.id === "rollouts") Rollouts.begin(section);
    if (section.id === "runs") {
      const button = section.querySelector("#runs-compare");
      const picked = () => [...section.querySelectorAll("[data-run]:checked")];
      section.addEventListener("change", () => {
        if (button) button.disabled = picked().length < 2;
      });
      button?.addEventListener("click", () => {
        const [first, ...others] = picked().map((one) => encodeURIComponent(one.dataset.run));
        location.href = `run/${first}/#${others.map((name) => `with=${name}`).join("&")}`;
      });
    }
  }

  function ask(section) {
    return new Promise((answered) => {
      const request = new XMLHttpRequest();
      request.open("GET", `part/${section.id}`);
      request.responseType = "document";
      request.timeout = 300000;
      request.onloadend = () => {
        const fresh = request.status === 200 && request.response?.getElementById(section.id);
        const tag = request.getResponseHeader("etag");
        if (!fresh) failed.set(section.id, (failed.get(section.id) ?? 0) + 1);
        else {
          failed.delete(section.id);
          if ((tag === null || tag !== section.dataset.tag) && !isRead(section)) {
            put(section, fresh);
            section.dataset.tag = tag ?? "";
          }
        }
        say(
          failed.size
            ? "no answer from this page's server: asyncrl page RUN serves the run again"
            : `updated at ${new Date().toLocaleTimeString()}`,
        );
        answered();
      };
      request.send();
    });
  }

  // A part is asked for once, and again while it is less than a screen away: nobody pays for what
  // nobody sees.
  function isSeen(section) {
    if (section.dataset.tag === undefined) return true;
    const { top, bottom } = section.getBoundingClientRect();
    return bottom > -innerHeight && top < 2 * innerHeight;
  }

  async function renew(section) {
    const held = document.hidden || hold.getAttribute("aria-pressed") !== "false";
    if (!held && isSeen(section)) await ask(section);
    const tries = failed.get(section.id) ?? 0; // one that fails is asked for less and less
    const every = Number(section.dataset.every);
    setTimeout(renew, 1000 * Math.min(every * 2 ** tries, Math.max(every, SLOWEST_S)), section);
  }

  for (const section of document.querySelectorAll("section[data-every]")) {
    if (hold) renew(section);
    else begin(section);
  }
  hold?.addEventListener("click", () => {
    const held = hold.getAttribute("aria-pressed") === "false";
    hold.setAttribute("aria-pressed", String(held));
    hold.textContent = held ? "Resume updates" : "Pause updates";
    if (held) say("held as it is");
  });
})();
