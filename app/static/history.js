// What was done, the newest first, with a way back to any point; opened from the tabs that have Undo and Redo.
import { act, counted, get, make } from "./common.js";

const time = (seconds) => {
  const at = new Date(1000 * seconds), today = at.toDateString() === new Date().toDateString();
  return at.toLocaleString("en-GB", { ...(today ? {} : { day: "numeric", month: "short", year: "numeric" }), hour: "2-digit", minute: "2-digit", second: "2-digit" });
};

/** A button that shows the history; `say` tells what came of it. */
export function historyButton(say) {
  return make("button", { class: "edge-button history-open", type: "button", title: "what was done, and back to any point of it", onclick: () => open(say) }, "History");
}

async function open(say) {
  let answer;
  try {
    answer = await get("/edge/history");
  } catch (error) {
    return say(error.message, true);
  }
  const { entries, more } = answer, newest = entries.find((entry) => !entry.undone)?.seq ?? 0;
  const back = (seq, what) => make("button", { class: "edge-button history-back", type: "button", "aria-label": `undo to here: ${what}`, onclick: () => { dialog.close(); takeBack(seq, newest, say); } }, "Undo to here");
  const line = ({ seq, at, text, undone, author }) => make("li", { class: undone ? "undone" : "", "data-seq": seq },
    make("time", { datetime: new Date(1000 * at).toISOString() }, time(at)),
    make("span", { class: "history-text", dir: "auto" }, text, author && author !== "local" ? ` · by ${author}` : "", undone ? " · undone" : ""),
    undone || seq === newest ? "" : back(seq, text));
  const beginning = make("li", { "data-seq": 0 }, make("span", {}), make("span", { class: "history-text" }, more ? `the last ${counted(entries.length, "action")} are shown; before them, the beginning` : "the beginning"), newest ? back(0, "the beginning") : "");
  const dialog = make("dialog", { id: "history", class: "edge-dialog", "aria-label": "History", onclose: () => dialog.remove() },
    make("h3", {}, "History"),
    make("p", {}, "The newest first. Undo to here takes back everything above that line; redo brings it back, one action at a time."),
    make("ol", { class: "history-list" }, ...entries.map(line), beginning),
    make("form", { method: "dialog" }, make("button", { class: "edge-button" }, "Close")));
  document.body.append(dialog);
  dialog.showModal();
}

async function takeBack(seq, newest, say) {
  try {
    say((await act({ do: "undo_to", seq, newest })).message);
  } catch (error) {
    say(error.message, true);
  }
}
