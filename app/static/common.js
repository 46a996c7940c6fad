// What all tabs share: asking the server, the state that every page shows alike, and small helpers.

/** An element with attributes, listeners (onclick: f) and children; text is never read as HTML. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

/** Whether somebody can see it: other tabs stay in the page, hidden. */
export const isShown = (element) => Boolean(element && element.offsetParent);

const DIGITS = "1234567890"; // of the first ten classes, unless a person has chosen other keys

/** Whether a key press is meant for this tab, and not for a field, a dialog or the browser itself. */
export function isForTab(event, place) {
  if (!isShown(place) || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return false;
  return !event.target.closest?.("input:not([type=checkbox], [type=color], [type=range]), select, textarea, [contenteditable]");
}

/** A sentence in its place on a tab. */
export function tell(element, text, wrong = false) {
  element.textContent = text;
  element.classList.toggle("warning", wrong);
}

export const percent = (share) => `${Math.round(100 * share)} %`;
/** What a button says, and its key behind it. */
export const keyed = (text, key) => [`${text} `, make("kbd", {}, key)];
/** How sure an answer is, if that was measured. */
export const sureness = (share, calibrated) => (calibrated ? ` ${percent(share)}` : "");

export function bytes(size) {
  for (const [unit, factor] of [["GB", 1e9], ["MB", 1e6], ["KB", 1e3]])
    if (size >= factor) return `${(size / factor).toFixed(size < 10 * factor ? 2 : 1)} ${unit}`;
  return `${size} B`;
}

export const state = { now: null, listeners: [], version: "" };

/** Of the classes the server sends those that have changed since the version that we name: there may be thousands. */
export const since = () => `since=${encodeURIComponent(state.version)}&room=${encodeURIComponent(state.now?.room ?? "")}`;

/** The page's own name: it stays with a tab of the browser, also when it is loaded again. */
export const PAGE = (sessionStorage.edgePage ??= Math.random().toString(36).slice(2));

/** `counted(1, "label")` is "1 label". */
export const counted = (number, thing) => `${number.toLocaleString("en")} ${thing}${number === 1 ? "" : "s"}`;

/** The state as the listeners see it: all classes as a list, which stays the same object as long as none has changed, and by id. */
export function hear(fresh) {
  const before = state.now;
  state.version = fresh.version;
  if (before && !fresh.whole && !fresh.classes.length && !fresh.gone.length) {
    fresh.classes = before.classes;
    fresh.classById = before.classById;
  } else {
    const known = new Map(fresh.whole ? [] : before?.classById);
    for (const id of fresh.gone) known.delete(id);
    for (const row of fresh.classes) known.set(row.id, row);
    fresh.classes = [...known.values()].sort((one, other) => one.place - other.place || one.id - other.id);
    giveKeys(fresh.classes);
    fresh.classById = known;
  }
  if (before && before.room !== fresh.room) { location.reload(); return; } // numbers of samples and classes mean something else there
  state.now = fresh;
  for (const listener of state.listeners) listener(fresh);
}

/** A class has the key that was chosen for it, or the digit of its place unless another class has that. */
function giveKeys(classes) {
  const taken = new Set(classes.map((row) => row.chosen));
  classes.forEach((row, place) => { row.key = row.chosen || (taken.has(DIGITS[place]) ? "" : DIGITS[place] ?? ""); });
}

export const classOfKey = (now, key) => now?.classes.find((row) => row.key === key);

/** The key of a class as it stands before its name. */
export const keyOf = (row) => (row.key ? [make("kbd", {}, row.key)] : []);

let before = Promise.resolve();

/** Perform an action, or what a promise will give, after those before it; resolves to the answer, or rejects with a sentence. */
export function act(action) {
  Promise.resolve(action).catch(() => {}); // said by the answer
  const done = before.then(async () => send(await action));
  before = done.catch(() => {});
  return done;
}

async function send(action) {
  let response;
  try {
    response = await fetch(`/edge/act?${since()}`, {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(action),
    });
  } catch {
    throw new Error("the program does not answer: is it still running? Look whether this was saved once it does.");
  }
  const answer = await response.json().catch(() => ({ error: `the server answered ${response.status}` }));
  if (answer.error) throw new Error(answer.error);
  if (answer.state) hear(answer.state);
  return answer;
}

export async function get(path) {
  const response = await fetch(path);
  const answer = await response.json().catch(() => ({ error: `the server answered ${response.status}` }));
  if (answer.error) throw new Error(answer.error);
  return answer;
}

/** Ask a question in a dialog; resolves to true when it is confirmed. */
export function confirmed(question, yes = "Yes") {
  return new Promise((resolve) => {
    const dialog = make("dialog", { class: "edge-dialog", onclose: () => { dialog.remove(); resolve(dialog.returnValue === "yes"); } },
      make("p", {}, question),
      make("form", { method: "dialog", class: "edge-row" },
        make("button", { value: "no", class: "edge-button" }, "Cancel"),
        make("button", { value: "yes", class: "edge-button danger" }, yes)));
    document.body.append(dialog);
    dialog.showModal();
  });
}
