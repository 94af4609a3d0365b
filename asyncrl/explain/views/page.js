// Renews the parts of the page, each as often as it says (data-every, in seconds). Invariant: what
// comes from the run is never handed to anything that makes a script of text: a part is parsed as a
// document without scripts, and its elements are put in the place of the old ones.
"use strict";

const heard = document.getElementById("heard");
const hold = document.getElementById("hold");
const failed = new Set();

function say(text) {
  if (heard.textContent !== text) heard.textContent = text;
}

// A part in which somebody reads is left as it is.
function isRead(section) {
  const chosen = getSelection();
  const marked = chosen && !chosen.isCollapsed && section.contains(chosen.anchorNode);
  return marked || section.querySelector("details[open]") !== null;
}

function put(section, fresh) {
  const focused = section.contains(document.activeElement) ? document.activeElement.id : "";
  for (const old of section.querySelectorAll("input[type=radio]:checked")) {
    const same = fresh.querySelector(`#${CSS.escape(old.id)}`);
    if (same) same.checked = true;
  }
  section.replaceChildren(...document.adoptNode(fresh).childNodes);
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
}

function ask(section) {
  return new Promise((answered) => {
    const request = new XMLHttpRequest();
    request.open("GET", `/part/${section.id}`);
    request.responseType = "document";
    request.timeout = 300000;
    request.onloadend = () => {
      const fresh = request.status === 200 && request.response?.getElementById(section.id);
      const tag = request.getResponseHeader("etag");
      if (!fresh) failed.add(section.id);
      else {
        failed.delete(section.id);
        if (tag !== section.dataset.tag && !isRead(section)) {
          put(section, fresh);
          section.dataset.tag = tag;
        }
      }
      say(
        failed.size
          ? "the run's page does not answer: the run has ended, or cannot be reached"
          : `updated at ${new Date().toLocaleTimeString()}`,
      );
      answered();
    };
    request.send();
  });
}

async function renew(section) {
  if (!document.hidden && hold.getAttribute("aria-pressed") === "false") await ask(section);
  setTimeout(renew, 1000 * Number(section.dataset.every), section);
}

hold.addEventListener("click", () => {
  const held = hold.getAttribute("aria-pressed") === "false";
  hold.setAttribute("aria-pressed", String(held));
  hold.textContent = held ? "Resume updates" : "Pause updates";
  if (held) say("held as it is");
});

for (const section of document.querySelectorAll("section[data-every]")) renew(section);
