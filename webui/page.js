// What Gradio's HTML component leaves to us: new HTML is merged into the old by key, so that focus, selection, scroll and a playing film
// stay; clicks on [data-act] go to the server; the time left counts down between two messages.
window.h3 = {
  mount(element, props, watch, trigger) {
    const root = element.firstElementChild;
    const draw = () => {
      const next = document.createElement("div");
      next.innerHTML = props.value || "";
      h3.merge(root, next);
      h3.tick();
    };
    draw();
    watch("value", draw);
    root.addEventListener("click", (event) => {
      const button = event.target.closest("[data-act]");
      if (button) trigger("click", { act: button.dataset.act, job: Number(button.dataset.job), text: button.dataset.text || "" });
    });
  },

  merge(old, next) {
    const keyed = new Map();
    for (const child of old.children) if (child.dataset.key) keyed.set(child.dataset.key, child);
    let place = old.firstChild;
    for (const wanted of Array.from(next.childNodes)) {
      const key = wanted.dataset && wanted.dataset.key;
      let found = key ? keyed.get(key) : place && !(place.dataset && place.dataset.key) && place.nodeName === wanted.nodeName ? place : null;
      if (!found) {
        old.insertBefore(wanted, place);
        continue;
      }
      keyed.delete(key);
      if (found === place) place = place.nextSibling;
      else old.insertBefore(found, place);
      if (found.nodeType === Node.TEXT_NODE) {
        if (found.data !== wanted.data) found.data = wanted.data;
        continue;
      }
      for (const { name } of Array.from(found.attributes)) if (!wanted.hasAttribute(name)) found.removeAttribute(name);
      for (const { name, value } of wanted.attributes) {
        if (found.getAttribute(name) === value) continue;
        found.setAttribute(name, value);
        if (name === "data-left") found.since = performance.now();
      }
      if (!found.dataset.left || found.children.length) h3.merge(found, wanted);
    }
    while (place) {
      const gone = place;
      place = place.nextSibling;
      gone.remove();
    }
  },

  // Two films in step: what a person does to one happens to the other, and while they play the first leads.
  follow(event) {
    const film = event.target;
    if (!film.dataset || film.dataset.sync === undefined) return;
    if (film.following && (event.type === "seeking" || event.type === "timeupdate")) return;
    for (const other of document.querySelectorAll("video[data-sync]")) {
      if (other === film) continue;
      const late = Math.abs(other.currentTime - film.currentTime);
      if (event.type === "play" && other.paused) other.play().catch(() => {});
      if (event.type === "pause" && !other.paused && !film.ended) other.pause();
      if (event.type === "ratechange" && other.playbackRate !== film.playbackRate) other.playbackRate = film.playbackRate;
      const leads = film.compareDocumentPosition(other) & Node.DOCUMENT_POSITION_FOLLOWING;
      if (late > 0.06 && (event.type === "seeking" || (event.type === "timeupdate" && leads && !film.paused))) {
        other.following = true; // its own "seeking" is an answer, not a wish
        other.currentTime = film.currentTime;
        other.addEventListener("seeked", () => (other.following = false), { once: true });
      }
    }
  },

  // A film or a recipe dropped anywhere goes to the one upload button.
  drop(event) {
    if (!event.dataTransfer || !Array.from(event.dataTransfer.types).includes("Files")) return;
    event.preventDefault();
    event.stopPropagation();
    const over = event.type === "dragover" || event.type === "dragenter";
    document.body.classList.toggle("h3-drop", over);
    if (event.type !== "drop") return;
    const input = document.querySelector("#h3-form input[type=file]");
    if (!input || !event.dataTransfer.files.length) return;
    const one = new DataTransfer();
    one.items.add(event.dataTransfer.files[0]);
    input.files = one.files;
    input.dispatchEvent(new Event("change", { bubbles: true }));
  },

  duration(seconds, units) {
    const [s, m, h] = units.split("|");
    const two = (n) => String(n).padStart(2, "0");
    seconds = Math.max(1, Math.round(seconds));
    if (seconds < 60) return `${seconds} ${s}`;
    if (seconds < 600) return `${Math.floor(seconds / 60)} ${m} ${two(seconds % 60)} ${s}`;
    if (seconds < 3600) return `${Math.round(seconds / 60)} ${m}`;
    return `${Math.floor(seconds / 3600)} ${h} ${two(Math.floor((seconds % 3600) / 60))} ${m}`;
  },

  tick() {
    for (const each of document.querySelectorAll("[data-left]")) {
      each.since = each.since || performance.now();
      const left = Number(each.dataset.left) - (performance.now() - each.since) / 1000;
      const text = each.dataset.text.replace("{}", h3.duration(left, each.dataset.units));
      if (each.textContent !== text) each.textContent = text;
    }
  },
};
setInterval(h3.tick, 1000);
for (const type of ["play", "pause", "seeking", "timeupdate", "ratechange"]) document.addEventListener(type, h3.follow, true);
for (const type of ["dragenter", "dragover", "dragleave", "drop"]) document.addEventListener(type, h3.drop, true);
