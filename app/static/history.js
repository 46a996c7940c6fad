// Undo, Redo and the history: what was done, the newest first, with a way back to any point.
import { button, closeButton, counted, ask, keyed, make, openDialog } from "./common.js";

/** The three buttons that Teach, Review and Classes share, and their keys; `perform` does an action and says what came of it,
 * `hears` says whether a key press is meant. */
export function backAndForth(prefix, perform, hears) {
  const undo = () => perform({ do: "undo" }), redo = () => perform({ do: "redo" });
  document.addEventListener("keydown", (event) => {
    if (!["u", "r"].includes(event.key) || event.repeat || !hears(event)) return;
    event.preventDefault();
    if (event.key === "u") undo();
    else redo();
  });
  return [
    button(`${prefix}undo`, keyed("Undo", "u"), undo, { title: "undo the last action" }),
    button(`${prefix}redo`, keyed("Redo", "r"), redo, { title: "redo it" }),
    button(null, "History", () => open(perform), { class: "edge-button history-open", title: "what was done, and back to any point of it" }),
  ];
}

const time = (seconds) => {
  const at = new Date(1000 * seconds), today = at.toDateString() === new Date().toDateString();
  return at.toLocaleString("en-GB", { ...(today ? {} : { day: "numeric", month: "short", year: "numeric" }), hour: "2-digit", minute: "2-digit", second: "2-digit" });
};

async function open(perform) {
  const { entries, more } = await ask("/edge/history"), newest = entries.find((entry) => !entry.undone)?.seq ?? 0;
  const back = (seq, what) => button(null, "Undo to here", () => { dialog.close(); perform({ do: "undo_to", seq, newest }); }, { class: "edge-button history-back", "aria-label": `undo to here: ${what}` });
  const line = ({ seq, at, text, undone }) => make("li", { class: undone ? "undone" : "", "data-seq": seq },
    make("time", { datetime: new Date(1000 * at).toISOString() }, time(at)),
    make("span", { class: "history-text", dir: "auto" }, text, undone ? " · undone" : ""),
    undone || seq === newest ? "" : back(seq, text));
  const beginning = make("li", { "data-seq": 0 }, make("span", { class: "history-text" }, more ? `the last ${counted(entries.length, "action")} are shown; then the beginning` : "the beginning"), newest ? back(0, "the beginning") : "");
  const dialog = openDialog({ id: "history", "aria-label": "History" },
    make("h2", {}, "History"),
    make("p", {}, "The newest first. Undo to here takes back everything above that line; redo brings it back, one action at a time."),
    make("ol", { class: "edge-list" }, ...entries.map(line), beginning),
    closeButton());
}
