// The entry: fills the tabs that our scripts draw, asks for the state several times a second, and shows the strip on top.
import { act, counted, look, make, state } from "./common.js";
import { Classes } from "./classes.js";
import { Review, showBadge } from "./review.js";
import { Teach } from "./teach.js";
import { openWorkspaces } from "./workspaces.js";

const TABS = { teach: Teach, review: Review, classes: Classes };
const OWN = Object.keys(TABS).map((name) => `#${name}`).join();
const VISIBLE_MS = 200, HIDDEN_MS = 3000, LOST_MS = 1000;

// The strip ----------------------------------------------------------------------------------------------------------

const PHASES = { idle: "idle", learning: "learning", rehearsing: "rehearsing", starting: "starting", failed: "stopped by an error", stopped: "stopped" };

/** The name, what it is doing, and how good it is; the rest is on its tab. */
function showStrip(now) {
  const strip = document.getElementById("strip");
  if (!strip) return;
  if (phase.parentElement !== strip) strip.replaceChildren(make("h1", {}, "Edge HPCR"), workspace, phase, verdict);
  const waiting = now.waiting ? ` (${now.waiting} to learn)` : "", { level, number, advice } = now.verdict;
  const sentence = now.verdict.sentence.replace(advice, "").trim(); // which Teach and Accuracy say
  const { demonstration } = now, labels = ` · ${counted(now.labels, "label")}${waiting}`;
  const text = JSON.stringify([now.workspace, demonstration, now.phase, labels, now.verdict]);
  if (strip.dataset.text === text) return;
  strip.dataset.text = text;
  workspace.textContent = now.workspace;
  workspace.hidden = demonstration;
  phase.className = `phase ${now.phase}`;
  phase.replaceChildren(`● ${PHASES[now.phase] ?? now.phase}`, make("span", { class: "strip-labels" }, labels));
  verdict.className = `verdict ${level}`;
  verdict.replaceChildren(...(number ? [make("b", {}, number), " "] : []), make("span", {}, sentence));
  if (strip.nextElementSibling !== room) strip.after(room, problems);
  document.body.classList.toggle("demonstration", demonstration);
  room.hidden = !demonstration;
}

// Made once, because a button that is made anew loses its focus.
const workspace = make("button", { id: "workspace", class: "edge-button", type: "button", title: "the workspace that is open: open another, or make one", onclick: openWorkspaces });
const phase = make("span", {}), verdict = make("span", { id: "verdict" });
const back = make("button", { id: "leave-demonstration", class: "edge-button primary", type: "button", onclick: () => act({ do: "leave_demonstration" }).catch((error) => console.error(error)) }, "Back to my workspace");
const room = make("div", { id: "room", hidden: true }, make("span", {}, "This is the demonstration, in a workspace of its own. Nothing is saved."), back);
const problems = make("div", { id: "problems", role: "alert" });

/** What is wrong now comes first and stays until it is over; what happened once can be put away. */
function showProblem(now) {
  const alarm = now.alarms[0] ?? "", problem = alarm || (now.problems[now.problems.length - 1] ?? "");
  const signature = `${alarm ? "alarm" : "problem"} ${problem}`;
  if (problems.dataset.shown === signature) return;
  problems.dataset.shown = signature;
  const read = make("button", { id: "clear-problem", class: "edge-button", type: "button", title: "I have read it", "aria-label": "I have read it", onclick: () => act({ do: "clear_problem", problem }).catch((error) => console.error(error)) }, "×");
  problems.replaceChildren(...(problem ? [`⚠ ${problem} `, ...(alarm ? [] : [read])] : []));
}

function showLost() {
  const strip = document.getElementById("strip");
  if (!strip || strip.dataset.text === "lost") return;
  strip.dataset.text = "lost";
  strip.replaceChildren(make("h1", {}, "Edge HPCR"), make("span", { class: "problem" }, "⚠ the program does not answer; this page goes on as soon as it does"));
}

// Keys ---------------------------------------------------------------------------------------------------------------

const BUTTONS = ":is(#strip, #room, #problems, #teach, #review, #review-large, [role=tablist]) :is(button, summary)";

/** After a click by mouse or finger Space belongs to the tab again, and does not press that button once more. */
document.addEventListener("click", (event) => {
  const pressed = event.detail ? event.target.closest?.(BUTTONS) : null;
  pressed?.blur(); // before it acts: a dialog gives the focus back to whatever had it
  if (pressed) setTimeout(() => pressed.blur());
}, true);

// Fields of Gradio's -------------------------------------------------------------------------------------------------

const FRAMES = 4; // it takes Gradio two

/** Gradio sets a field once more after it has put it into the page; what is typed before would be lost: it has to wait. */
function holdFields(records) {
  for (const node of records.flatMap((record) => [...record.addedNodes]))
    for (const field of node.querySelectorAll?.("input, textarea") ?? [])
      if (!field.readOnly && !field.closest(OWN)) {
        field.readOnly = field.inert = true;
        afterFrames(FRAMES, () => { field.readOnly = field.inert = false; });
      }
}

function afterFrames(count, then) {
  requestAnimationFrame(() => count > 1 ? afterFrames(count - 1, then) : then());
}

new MutationObserver(holdFields).observe(document.body, { childList: true, subtree: true });

// The heartbeat ------------------------------------------------------------------------------------------------------

function mount() {
  for (const [name, Tab] of Object.entries(TABS)) {
    const place = document.getElementById(name);
    if (!place || place.dataset.mounted) continue;
    place.dataset.mounted = "yes";
    const tab = new Tab(place);
    state.listeners.push((now) => tab.show(now));
    if (state.now) tab.show(state.now);
  }
}

async function beat() {
  let pause = document.hidden ? HIDDEN_MS : VISIBLE_MS;
  try {
    mount();
    await look();
  } catch (error) {
    if (error instanceof TypeError) showLost(); else console.error(error);
    pause = LOST_MS;
  }
  setTimeout(beat, pause);
}

state.listeners.push(showStrip, showProblem, showBadge);
document.addEventListener("visibilitychange", () => { if (!document.hidden) look().catch(() => {}); });
beat();
