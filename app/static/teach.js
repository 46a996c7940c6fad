// The Teach tab: the current frame, what the learner thinks of it, a button and a key for every class.
import { KEYS, act, isForTab, isShown, make, percent, state, tell } from "./common.js";
import { BrowserCamera } from "./camera.js";

const MOST_BURST = 30; // the server keeps frames for ten seconds
const KEY_HELP = [
  ["1 … 9, 0", "label the picture as that class"],
  ["n", "a new class: type its name, Enter"],
  ["Space", "hold the picture still; again: let it go without a label"],
  ["b (hold)", "label every frame as the last class, until you let go"],
  ["u", "undo the last action"],
  ["r", "redo it"],
  ["?", "show these keys"],
];

export function mountTeach(place) {
  const page = new Teach(place);
  document.addEventListener("keydown", (event) => page.keyDown(event));
  document.addEventListener("keyup", (event) => page.keyUp(event));
  window.addEventListener("blur", () => page.endBurst());
  return (now) => page.show(now);
}

class Teach {
  constructor(place) {
    this.place = place;
    this.shownFrame = null; // the number of the picture that is really on the screen
    this.lastClass = null;
    this.burst = null;
    this.awaited = null; // the label whose lesson we wait for
    this.camera = new BrowserCamera((problem) => this.say(problem, true));
    this.build();
  }

  build() {
    this.picture = make("img", { id: "frame", alt: "the current frame", hidden: true, onload: () => this.arrived() });
    this.empty = make("p", { id: "empty" }, "Show something to the camera, press ", make("kbd", {}, "n"), ", and give it a name.");
    this.sourceState = make("span", { id: "source-state" });
    this.answers = make("div", { id: "answers" });
    this.classes = make("div", { id: "class-buttons", role: "group", "aria-label": "label the picture as" });
    this.message = make("p", { id: "message", role: "status", "aria-live": "polite" });
    this.lesson = make("p", { id: "lesson", role: "status", "aria-live": "polite" });
    this.advice = make("p", { id: "advice", role: "status", hidden: true });
    this.held = make("p", { id: "held", hidden: true }, "⏸ held still: label it, or press Space to let it go");
    this.name = make("input", { id: "new-class-name", maxlength: 100, placeholder: "name of the new class", "aria-label": "name of the new class", autocomplete: "off" });
    this.newClass = make("form", { id: "new-class", hidden: true, onsubmit: (event) => { event.preventDefault(); this.createClass(); } },
      this.name, make("button", { class: "edge-button", type: "submit" }, "Save"), make("button", { class: "edge-button", type: "button", onclick: () => this.cancelNewClass() }, "Cancel"));
    this.name.addEventListener("keydown", (event) => { if (event.key === "Escape") this.cancelNewClass(); });
    this.help = make("dialog", { id: "key-help", class: "edge-dialog" },
      make("h3", {}, "Keys"),
      make("dl", {}, ...KEY_HELP.flatMap(([key, meaning]) => [make("dt", {}, make("kbd", {}, key)), make("dd", {}, meaning)])),
      make("form", { method: "dialog" }, make("button", { class: "edge-button" }, "Close")));
    const tool = (id, label, action, title) => make("button", { id, class: "edge-button", type: "button", title, onclick: action }, label);
    this.burstButton = tool("burst", "b burst", null, "hold down to label every frame as the last class");
    this.burstButton.addEventListener("pointerdown", () => this.beginBurst());
    for (const end of ["pointerup", "pointerleave", "pointercancel", "keyup", "blur"]) this.burstButton.addEventListener(end, () => this.endBurst());
    this.burstButton.addEventListener("keydown", (event) => { if (event.key === " " || event.key === "Enter") { event.preventDefault(); if (!event.repeat) this.beginBurst(); } });
    this.place.replaceChildren(
      make("div", { class: "teach-columns" },
        make("section", { class: "teach-picture" },
          make("div", { class: "teach-screen" }, this.picture, this.empty),
          this.held,
          make("p", { class: "teach-source" }, this.sourceState)),
        this.sourceChooser(),
        make("section", { class: "teach-side" },
          this.answers, this.classes, this.newClass,
          make("div", { class: "edge-row teach-tools" },
            tool("new-class-open", "n new class", () => this.openNewClass(), "a new class"),
            tool("hold", "Space hold", () => this.toggleHold(), "hold the picture still, or let it go"),
            this.burstButton,
            tool("undo", "u undo", () => this.perform({ do: "undo" }), "undo the last action"),
            tool("redo", "r redo", () => this.perform({ do: "redo" }), "redo it"),
            tool("keys", "? keys", () => this.help.showModal(), "show the keys")),
          this.message, this.lesson, this.advice)),
      this.help);
  }

  // The source -------------------------------------------------------------------------------------------------------

  sourceChooser() {
    this.sourceText = make("input", { id: "source-text", placeholder: "camera number (0), rtsp://…, video file, folder, watch:FOLDER", "aria-label": "source", autocomplete: "off" });
    this.folderLabels = make("input", { type: "checkbox", id: "source-labels" });
    const use = (source, labels = "none") => this.perform({ do: "source", source, labels });
    const form = make("form", { class: "edge-row", onsubmit: (event) => {
      event.preventDefault();
      this.camera.stop();
      use(this.sourceText.value, this.folderLabels.checked ? "folders" : "none");
    } }, this.sourceText, make("label", {}, this.folderLabels, " sub-folders name the classes"), make("button", { class: "edge-button", id: "source-use", type: "submit" }, "Use"));
    return make("section", { class: "teach-sources" },
      make("div", { class: "edge-row" },
        make("button", { id: "source-browser", class: "edge-button primary", type: "button", onclick: async () => {
          if (await this.camera.start()) use("browser");
        } }, "Use this browser's camera"),
        make("button", { id: "source-demonstration", class: "edge-button", type: "button", onclick: () => { this.camera.stop(); use("workbench"); } }, "Demonstration: parts on a workbench")),
      make("details", {}, make("summary", {}, "Another source"), form));
  }

  // Showing the state --------------------------------------------------------------------------------------------------

  show(now) {
    this.now = now;
    if (this.camera.running && !now.source.browser && !this.camera.justStarted) this.camera.stop();
    if (!isShown(this.place)) return;
    this.showPicture(now);
    this.showSource(now);
    this.showAnswers(now);
    this.showClasses(now);
    this.showLesson(now);
    this.advice.hidden = !now.advice;
    if (this.advice.textContent !== now.advice) this.advice.textContent = now.advice;
  }

  showPicture(now) {
    const frame = now.frame;
    if (!this.newClass.hidden && this.shownFrame !== null) return; // the name that is being typed is this picture's
    this.picture.hidden = !frame;
    this.empty.hidden = now.classes.length > 0;
    this.held.hidden = !frame?.held;
    if (frame && this.picture.dataset.number !== String(frame.number)) {
      this.picture.dataset.number = frame.number;
      this.picture.classList.toggle("small", frame.small);
      this.picture.src = `/edge/frame/${frame.number}`;
    }
  }

  /** The picture is on the screen only now; what a person labels is this one. */
  arrived() {
    this.shownFrame = Number(this.picture.dataset.number);
    this.picture.dataset.shown = this.shownFrame;
    this.countBurst();
  }

  showSource(now) {
    const { name, message, phase, dropped } = now.source;
    this.sourceState.textContent = `${name}: ${message}${dropped ? `, ${dropped} skipped` : ""}`;
    this.sourceState.className = phase === "live" ? "" : "warning";
  }

  showAnswers(now) {
    const frame = now.frame;
    if (!frame || !now.classes.length) { this.answers.replaceChildren(); return; }
    const rows = frame.top.filter(([id]) => now.classById.has(id)).map(([id, confidence], place) => {
      const { name, colour } = now.classById.get(id);
      const sure = place === 0 && !frame.unknown;
      return make("div", { class: `answer${sure ? " best" : ""}` },
        make("span", { class: "answer-name", title: name }, name),
        make("span", { class: "answer-bar" }, make("span", { style: `width:${100 * confidence}%;background:${colour}` })),
        make("span", { class: "answer-share" }, percent(confidence)));
    });
    if (frame.unknown) rows.unshift(make("p", { id: "unknown" }, "unknown: this looks like nothing that it has learned"));
    this.answers.replaceChildren(...rows);
  }

  showClasses(now) {
    if (this.shownClasses === now.classes && this.shownLast === this.lastClass) return;
    const before = this.classes.children;
    // Thousands of buttons take long to make: those that show what they shall stay.
    now.classes.forEach((each, index) => {
      const signature = JSON.stringify([each, index < KEYS.length ? index : -1, each.id === this.lastClass]);
      const old = before[index];
      if (old?.dataset.signature === signature) return;
      const button = this.classButton(each, index, signature);
      const focused = old === document.activeElement;
      if (old) old.replaceWith(button); else this.classes.append(button);
      if (focused && old.dataset.classId === button.dataset.classId) button.focus();
    });
    while (before.length > now.classes.length) this.classes.lastChild.remove();
    [this.shownClasses, this.shownLast] = [now.classes, this.lastClass];
  }

  classButton(each, index, signature) {
    return make("button", {
      class: `class-button${each.id === this.lastClass ? " last" : ""}`, type: "button", title: each.name, "data-class-id": each.id, "data-signature": signature,
      style: `--class-colour:${each.colour}`,
      onclick: (event) => {
        if (event.detail) event.currentTarget.blur(); // by mouse: Space shall hold the picture, not press this again
        this.label(each.id);
      },
    }, index < KEYS.length ? make("kbd", {}, KEYS[index]) : "", make("span", { class: "class-name" }, each.name), make("span", { class: "class-count" }, String(each.labels)));
  }

  /** What the learner says to the last label: how soon it learned it, and what it thinks now. */
  showLesson(now) {
    if (this.awaited === null) return;
    const lesson = now.learned.find((each) => each.seq === this.awaited);
    if (!lesson) return;
    this.awaited = null;
    const name = (id) => now.classById.get(id)?.name ?? `class ${id}`;
    const said = (answer) => (!answer.top.length ? "nothing" : answer.unknown ? "unknown" : `${name(answer.top[0][0])} ${percent(answer.top[0][1])}`);
    const verb = lesson.held_out ? "measured with it" : "learned";
    this.lesson.textContent = `${verb} in ${lesson.seconds.toFixed(1)} s · it said ${said(lesson.before)} · now ${said(lesson.after)}`;
  }

  say(text, bad = false) {
    tell(this.message, text ? `${bad ? "⚠" : "✓"} ${text}` : "", bad);
  }

  // Doing --------------------------------------------------------------------------------------------------------------

  async perform(action) {
    try {
      const answer = await act(action);
      this.say(answer.message);
      this.lesson.textContent = "";
      return answer;
    } catch (error) {
      this.say(error.message, true);
      return null;
    }
  }

  async label(classId, frames = this.frames()) {
    this.lastClass = classId;
    const answer = await this.perform({ do: "label", class: classId, frames });
    if (answer?.seq) { this.awaited = answer.seq; this.lesson.textContent = "learning …"; if (state.now) this.showLesson(state.now); }
    return answer;
  }

  frames() { return this.shownFrame === null ? [] : [this.shownFrame]; }

  openNewClass() {
    if (!this.newClass.hidden) { this.name.focus(); return; } // it is open already, with its picture and its name
    this.frozen = this.frames(); // what the person saw when they thought of the name
    this.heldBefore = Boolean(this.now?.frame?.held);
    this.newClass.hidden = false;
    this.name.value = "";
    this.name.focus();
    if (this.frozen.length) act({ do: "hold", held: true, frame: this.frozen[0] }).catch(() => {});
  }

  closeNewClass(letGo = true) {
    this.newClass.hidden = true;
    this.name.blur();
    if (letGo) act({ do: "hold", held: false }).catch(() => {});
  }

  /** A picture that was held still before stays so. */
  cancelNewClass() { this.closeNewClass(!this.heldBefore); }

  async createClass() {
    const answer = await this.perform({ do: "new_class", name: this.name.value, frames: this.frozen });
    if (!answer) return;
    this.lastClass = answer.class_id;
    if (answer.seq) { this.awaited = answer.seq; this.lesson.textContent = "learning …"; }
    this.closeNewClass();
  }

  toggleHold() {
    const held = !this.now?.frame?.held;
    this.perform(held && this.shownFrame !== null ? { do: "hold", held, frame: this.shownFrame } : { do: "hold", held });
  }

  beginBurst() {
    if (this.burst) return;
    if (this.lastClass === null || !this.now?.classById.has(this.lastClass)) {
      this.say("label one frame first: a burst goes on with the last class", true);
      return;
    }
    this.burst = new Set(this.frames());
    this.burstClass = this.lastClass;
    this.burstButton.classList.add("last");
    this.sayBurst();
  }

  countBurst() {
    if (!this.burst) return;
    this.burst.add(this.shownFrame);
    this.sayBurst();
    if (this.burst.size >= MOST_BURST) this.endBurst();
  }

  sayBurst() { this.say(`burst: ${this.burst.size} frames, saved when you let go`); }

  endBurst() {
    if (!this.burst) return;
    const frames = [...this.burst];
    this.burst = null;
    this.burstButton.classList.remove("last");
    this.label(this.burstClass, frames);
  }

  // Keys ---------------------------------------------------------------------------------------------------------------

  keyDown(event) {
    if (!isForTab(event, this.place)) return;
    const index = KEYS.indexOf(event.key);
    const actions = {
      n: () => this.openNewClass(), " ": () => this.toggleHold(), b: () => this.beginBurst(),
      u: () => this.perform({ do: "undo" }), r: () => this.perform({ do: "redo" }), "?": () => this.help.showModal(),
    };
    if (event.key === " " && event.target.closest?.("button, summary, a, input")) return; // Space presses the focused control
    if (index < 0 && !actions[event.key]) return;
    event.preventDefault();
    if (event.repeat) return;
    if (index < 0) actions[event.key]();
    else if (this.now?.classes[index]) this.label(this.now.classes[index].id);
    else this.say(`there is no class ${event.key} yet: press n to make one`, true);
  }

  keyUp(event) { if (event.key === "b") this.endBurst(); }
}
