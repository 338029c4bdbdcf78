// What pages of the console do without being loaded again: parts that refresh themselves, rows that go on below, forms
// that are answered in place, a tail, copying, keys. No other script runs, and nothing here makes HTML of a value: parts
// come from the server, where every value was escaped.
"use strict";

const part = (url, options = {}) =>
  fetch(url, { ...options, headers: { "X-Part": "1", ...(options.headers || {}) }, credentials: "same-origin" });

const parsed = (text) => {
  const holder = document.createElement("template");
  holder.innerHTML = text;
  return holder.content;
};

function put(target, text) {
  target.replaceChildren(parsed(text));
  target.removeAttribute("aria-busy");
  prepare(target);
}

async function load(element) {
  if (!element.isConnected) return;
  const every = Number(element.dataset.every || 0);
  const inside = element.contains(document.activeElement) && document.activeElement.matches("input,select,textarea");
  if (!document.hidden && !inside) {
    try {
      const answer = await part(element.dataset.load);
      if (answer.status === 401) return location.reload();
      const open = [...element.querySelectorAll("details")].map((each) => each.open);
      put(element, await answer.text());
      [...element.querySelectorAll("details")].forEach((each, at) => { if (open[at]) each.open = true; });
    } catch { element.setAttribute("data-lost", ""); }
  }
  if (every) setTimeout(() => load(element), every);
}

async function more(link) {
  if (link.dataset.busy) return;
  link.dataset.busy = "1";
  const content = parsed(await (await part(link.href)).text());
  const rows = document.querySelector("[data-rows]");
  const come = content.querySelector("[data-rows]");
  if (rows && come) rows.append(...come.children);
  const next = content.querySelector("a[data-more]");
  if (next) { link.replaceWith(next); prepare(next.parentElement); } else link.remove();
}

const below = new IntersectionObserver((entries) => {
  for (const each of entries) if (each.isIntersecting) more(each.target);
}, { rootMargin: "600px" });

async function submit(event) {
  const form = event.target;
  const into = form.dataset.into && document.querySelector(form.dataset.into);
  if (!into) return;
  event.preventDefault();
  const given = new URLSearchParams(new FormData(form, event.submitter || undefined));
  into.setAttribute("aria-busy", "true");
  const isGet = form.getAttribute("method") !== "post";  // a field may be called method, or action
  const action = form.getAttribute("action");
  const answer = await part(isGet ? `${action}?${given}` : action, isGet ? {} : { method: "POST", body: given });
  const text = await answer.text();
  if (answer.ok && form.dataset.then) {
    sessionStorage.setItem("said", text);
    location.assign(form.dataset.then === "again" ? location.href : form.dataset.then);
    return;
  }
  put(into, text);
}

async function tail(element) {
  while (element.isConnected) {
    if (element.dataset.paused || document.hidden) {
      await new Promise((done) => setTimeout(done, 300));
      continue;
    }
    let content;
    try {
      content = parsed(await (await part(element.dataset.tail)).text());
    } catch { await new Promise((done) => setTimeout(done, 2000)); continue; }
    const come = content.querySelector("[data-next]");
    if (!come) { element.replaceChildren(content); return; }
    element.dataset.tail = come.dataset.next;
    element.querySelector("tbody").prepend(...come.children);
    const rows = element.querySelectorAll("tbody > tr");
    for (let at = 300; at < rows.length; at++) rows[at].remove();
    if (!come.dataset.waited) await new Promise((done) => setTimeout(done, 250));
  }
}

function prepare(within) {
  for (const each of within.querySelectorAll("[data-load]")) {
    if ("filled" in each.dataset) setTimeout(() => load(each), Number(each.dataset.every));
    else load(each);
  }
  for (const each of within.querySelectorAll("a[data-more]")) {
    below.observe(each);
    each.addEventListener("click", (event) => { event.preventDefault(); more(each); });
  }
  for (const each of within.querySelectorAll("form[data-into]")) each.addEventListener("submit", submit);
  for (const each of within.querySelectorAll("form[data-live]")) {
    each.addEventListener("change", () => { if (each.checkValidity()) each.requestSubmit(); });
    if (each.checkValidity()) each.requestSubmit();
  }
  for (const each of within.querySelectorAll("[data-tail]")) tail(each);
  for (const each of within.querySelectorAll("[data-open]")) {
    each.addEventListener("click", () => {
      const panel = document.querySelector(each.dataset.open);
      panel.hidden = !panel.hidden;
      each.setAttribute("aria-expanded", String(!panel.hidden));
      if (panel.hidden) return;
      panel.querySelector("form[data-at-once]")?.requestSubmit();
      panel.querySelector("input:not([type=hidden]),select,textarea,button")?.focus();
    });
  }
  for (const each of within.querySelectorAll("[data-copy]")) {
    each.addEventListener("click", async () => {
      await navigator.clipboard.writeText(document.querySelector(each.dataset.copy).textContent);
      each.textContent = "Copied";
    });
  }
  for (const each of within.querySelectorAll("[data-pause]")) {
    each.addEventListener("click", () => {
      const target = document.querySelector(each.dataset.pause);
      target.dataset.paused = target.dataset.paused ? "" : "1";
      each.textContent = target.dataset.paused ? "Go on" : "Pause";
      each.setAttribute("aria-pressed", String(Boolean(target.dataset.paused)));
    });
  }
}

function theme(name) {
  if (name) document.documentElement.dataset.theme = name;
  else delete document.documentElement.dataset.theme;
}

theme(localStorage.getItem("theme"));
document.querySelector("#theme")?.addEventListener("click", () => {
  const isDark = document.documentElement.dataset.theme
    ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  localStorage.setItem("theme", isDark ? "light" : "dark");
  theme(localStorage.getItem("theme"));
});

let before = "";
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input,textarea,select")) return;
  if (event.key === "/") {
    const field = document.querySelector("input[type=search]");
    if (field) { event.preventDefault(); field.focus(); }
  } else if (event.key === "?") {
    document.querySelector("#keys").showModal();
  } else if (before === "g") {
    document.querySelector(`nav a[data-key="${CSS.escape(event.key)}"]`)?.click();
  }
  before = event.key;
});

const said = sessionStorage.getItem("said");
if (said) {
  sessionStorage.removeItem("said");
  put(document.querySelector("#said"), said);
}
prepare(document);
