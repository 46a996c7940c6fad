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

/** Make these the children. What is there already is not moved: that would take the focus from it. */
export function setChildren(place, wanted) {
  const kept = new Set(wanted);
  for (const each of [...place.children]) if (!kept.has(each)) each.remove();
  wanted.forEach((each, index) => {
    if (place.children[index] !== each) place.insertBefore(each, place.children[index] ?? null);
  });
}

/** A button; `content` is a text, or a list of children. */
export const button = (id, content, onclick, extra = {}) => make("button", { id, class: "edge-button", type: "button", onclick, ...extra }, ...[content].flat());

/** Whether somebody can see it: other tabs stay in the page, hidden. */
export const isShown = (element) => Boolean(element && element.offsetParent);

const DIGITS = "1234567890"; // keys of the first ten classes

/** Whether a key press is meant for this tab, and not for a field, a dialog or the browser itself. */
export function isForTab(event, place) {
  if (!isShown(place) || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return false;
  return !event.target.closest?.("input:not([type=checkbox], [type=range]), select, textarea, [contenteditable]");
}

let turns = 0; // of all that is said and done

/** A sentence in its place on a tab. The answer to an earlier turn hides nothing newer, unless it is a refusal. */
export function tell(element, text, wrong = false, turn = ++turns) {
  if (turn < element.turn && !wrong) return;
  element.turn = turn;
  element.textContent = text;
  element.classList.toggle("warning", wrong);
}

export const percent = (share) => `${Math.round(100 * share)} %`;
/** What a button says, and its key behind it. */
export const keyed = (text, key) => [`${text} `, make("kbd", {}, key)];
/** How sure an answer is, if that was measured. */
export const sureness = (share, calibrated) => (calibrated ? ` ${percent(share)}` : "");

export const state = { now: null, listeners: [], version: "", heard: 0 };

/** Of the classes the server sends those that have changed since the version that we name: there may be thousands. */
const since = () => `since=${encodeURIComponent(state.version)}&room=${encodeURIComponent(state.now?.room ?? "")}`;

/** The page's own name: it stays with a tab of the browser, also when it is loaded again. */
export const PAGE = (sessionStorage.edgePage ??= Math.random().toString(36).slice(2));

/** `counted(1, "label")` is "1 label". */
export const counted = (number, thing) => `${number.toLocaleString("en")} ${thing}${number === 1 ? "" : "s"}`;

/** The state as the listeners see it: all classes as a list, which stays the same object as long as none has changed, and by id. */
export function hear(fresh) {
  const before = state.now;
  state.heard += 1;
  state.version = fresh.version;
  if (before && !fresh.whole && !fresh.classes.length) {
    fresh.classes = before.classes;
    fresh.classById = before.classById;
  } else {
    const known = new Map(fresh.whole ? [] : before?.classById);
    for (const row of fresh.classes) known.set(row.id, row);
    fresh.classes = [...known.values()].sort((one, other) => one.id - other.id);
    fresh.classes.forEach((row, place) => { row.key = DIGITS[place] ?? ""; });
    fresh.classById = known;
  }
  if (before && before.room !== fresh.room) { location.reload(); return; } // numbers of samples and classes mean something else there
  state.now = fresh;
  for (const listener of state.listeners) listener(fresh);
}

export const classOfKey = (now, key) => now?.classes.find((row) => row.key === key);

/** The key of a class as it stands before its name. */
export const keyOf = (row) => (row.key ? [make("kbd", {}, row.key)] : []);

let before = Promise.resolve();

/** Perform an action, or what a promise will give, after those before it; resolves to the answer, or rejects with a sentence. */
export function act(action) {
  Promise.resolve(action).catch(() => {}); // said by the answer
  const done = before.then(() => send(action));
  before = done.catch(() => {});
  return done;
}

/** What the server answers, as JSON; a refusal is thrown as its sentence. */
export async function ask(path, body) {
  const response = await fetch(path, body === undefined ? {} : { method: "POST", body });
  const answer = await response.json().catch(() => ({ error: `the server answered ${response.status}` }));
  if (answer.error) throw new Error(answer.error);
  if (answer.state) hear(answer.state);
  return answer;
}

/** Ask how it is. What an action's answer has said meanwhile is newer. */
export async function look() {
  const { heard } = state, fresh = await ask(`/edge/state?${since()}`);
  if (state.heard === heard) hear(fresh);
}

async function send(action) {
  try {
    return await ask(`/edge/act?${since()}`, JSON.stringify(await action));
  } catch (error) {
    if (!(error instanceof TypeError)) throw error;
    throw new Error("the program does not answer: is it still running? Look whether this was saved once it does.");
  }
}

/** Perform an action, and say in this place what came of it; resolves to the answer, or to null. */
export async function perform(action, place) {
  const turn = ++turns;
  try {
    const answer = await act(action);
    tell(place, answer.message, false, turn);
    return answer;
  } catch (error) {
    tell(place, error.message, true, turn);
    return null;
  }
}

/** A dialog that is open until it is closed, and gone then. */
export function openDialog(attributes, ...children) {
  const dialog = make("dialog", { class: "edge-dialog", ...attributes }, ...children);
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

export const closeButton = () => make("form", { method: "dialog" }, make("button", { class: "edge-button" }, "Close"));

/** Ask a question, a text or a list of elements; resolves to true when it is confirmed. */
export function confirmed(question, yes = "Yes") {
  return new Promise((resolve) => {
    const dialog = openDialog({ onclose: () => resolve(dialog.returnValue === "yes") },
      make("h2", {}, yes), make("p", {}, ...[question].flat()),
      make("form", { method: "dialog", class: "edge-row" },
        make("button", { value: "no", class: "edge-button" }, "Cancel"),
        make("button", { value: "yes", class: "edge-button danger" }, yes)));
  });
}
