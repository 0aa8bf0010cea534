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
