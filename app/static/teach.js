// The Teach tab: the picture with the answer on it, a card and a key for every class, and what to do next.
import { PAGE, act, button, classOfKey, closeButton, isForTab, isShown, make, openDialog, percent, perform, state, sureness, tell } from "./common.js";
import { BrowserCamera, chosen } from "./camera.js";
import { Cards, NONE_OF_THESE } from "./cards.js";
import { bring, bringFile } from "./pictures.js";
import { backAndForth } from "./history.js";
import { RegionFrame } from "./region.js";
import { Sources } from "./sources.js";

const MOST_BURST = 100; // the server keeps frames for ten seconds
const BURST_MS = 100, HELD_MS = 400; // between two of them; a shorter press means one picture
const UNCALIBRATED = "Confidence not calibrated yet: that takes about 20 different pictures (a burst counts as one).";
const KEY_HELP = [
  ["1 … 9, 0", "label the picture as that class; held down: every picture, until you let go"],
  ["n", "a new class: type its name, Enter"],
  ["x", "not one of my classes: it becomes unknown"],
  ["Space", "hold the picture; again: let it go without a label"],
  ["u", "undo"],
  ["r", "redo"],
  ["?", "show these keys"],
];

function showKeys() {
  openDialog({ id: "key-help", "aria-label": "Keys" },
    make("h2", {}, "Keys"),
    make("dl", {}, ...KEY_HELP.flatMap(([key, meaning]) => [make("dt", {}, make("kbd", {}, key)), make("dd", {}, meaning)])),
    closeButton());
}

export class Teach {
  constructor(place) {
    this.place = place;
    this.shownFrame = null; // the number of the picture that is really on the screen
    this.lastClass = null;
    this.burst = null;
    this.awaited = null; // the label whose lesson we wait for
    this.camera = new BrowserCamera((problem) => this.say(problem, true), () => { this.endBurst(); this.show(this.now); });
    this.build();
    this.listen();
  }

  listen() {
    document.addEventListener("keydown", (event) => this.keyDown(event));
    document.addEventListener("keyup", (event) => this.keyUp(event));
    for (const end of ["blur", "pointerup"]) window.addEventListener(end, () => this.endBurst());
    window.addEventListener("pointercancel", () => this.dropBurst()); // a finger scrolls
    window.addEventListener("pagehide", () => this.letGo());
    document.addEventListener("visibilitychange", () => { if (document.hidden) this.endBurst(); });
  }

  build() {
    this.picture = make("img", { id: "frame", alt: "the current picture", hidden: true, onload: () => this.arrived() });
    this.answerName = make("bdi", { class: "teach-name" });
    this.answerSure = make("span", { class: "teach-sure" });
    this.answer = make("div", { id: "answer", class: "teach-answer", hidden: true }, this.answerName, this.answerSure);
    this.answers = make("div", { id: "answers" });
    this.message = make("p", { id: "message", role: "status", "aria-live": "polite" });
    this.lesson = make("p", { id: "lesson", role: "status", "aria-live": "polite" });
    this.guide = make("p", { id: "guide" });
    this.held = make("p", { id: "held", hidden: true }, "Held: label it, or let it go");
    this.cards = new Cards(this);
    this.file = make("input", { id: "try-file", type: "file", accept: "image/*", hidden: true, "aria-label": "a picture to try", onchange: () => this.tryPicture() });
    this.tryButton = button("try-picture", "Try a picture …", () => this.file.click(), { title: "see what it says about a picture that you have" });
    this.region = new RegionFrame(this);
    this.sources = new Sources(this);
    this.screen = make("div", { class: "teach-screen", id: "screen" }, this.camera.video, this.picture, this.region.outline, this.answer, this.held);
    this.region.watch(this.screen);
    this.columns = make("div", { class: "teach-columns" });
    this.columns.append(
      make("section", { class: "teach-picture", "aria-label": "picture" }, this.screen,
        make("div", { class: "teach-notes" }, this.guide, this.message, this.lesson)),
      make("section", { class: "teach-side", "aria-label": "classes" },
        this.answers, this.newClassForm(), this.tools(), this.cards.element),
      this.sources.element);
    this.place.replaceChildren(this.columns);
  }

  newClassForm() {
    this.name = make("input", { id: "new-class-name", maxlength: 100, placeholder: "name of the new class", "aria-label": "name of the new class", autocomplete: "off", dir: "auto" });
    this.name.addEventListener("keydown", (event) => { if (event.key === "Escape") this.cancelNewClass(); });
    this.newClass = make("form", { id: "new-class", hidden: true, onsubmit: (event) => { event.preventDefault(); this.createClass(); } },
      this.name, make("button", { class: "edge-button primary", type: "submit" }, "Save"), button(null, "Cancel", () => this.cancelNewClass()));
    return this.newClass;
  }

  tools() {
    const tool = (id, label, key, action, title, kind = "") => button(id, [label, make("kbd", {}, key)], action, { class: `edge-button ${kind}`, title });
    this.holdButton = tool("hold", "Hold", "Space", () => this.toggleHold(), "hold the picture, or let it go");
    return make("div", { class: "teach-tools" },
      make("div", { class: "edge-row", role: "group", "aria-label": "this picture" },
        tool("new-class-open", "New class", "n", () => this.openNewClass(), "name what the picture shows", "primary"),
        this.holdButton,
        tool("none-of-these", "None of these", "x", () => this.labelNone(), "not one of my classes: pictures like it become unknown")),
      make("div", { class: "edge-row", role: "group", "aria-label": "back and forth" },
        ...backAndForth("", (action) => this.perform(action), (event) => isForTab(event, this.place)),
        tool("keys", "Keys", "?", () => showKeys(), "show the keys", "keys-only")));
  }

  // Showing the state --------------------------------------------------------------------------------------------------

  show(now) {
    if (!now) return;
    const first = !this.now;
    this.now = now;
    if (first && now.source.browser && (now.source.owner === PAGE || (!now.source.owner && chosen.used))) this.sources.useCamera(true);
    if (this.camera.sending && !now.source.browser) this.camera.stop(); // somebody has chosen another source
    if (!isShown(this.place)) return;
    this.choosing = this.sources.show(now, this.screen);
    this.columns.classList.toggle("beginning", this.choosing && !now.classes.length);
    this.camera.region = now.source.region;
    this.showPicture(now);
    this.region.show(now, !this.choosing && now.source.phase !== "closed");
    this.showAnswer(now);
    this.cards.show(now, this.lastClass);
    this.showGuide(now);
    this.showLesson(now);
  }

  get isPreview() { return this.camera.running && !this.choosing && !this.now?.frame?.held && this.newClass.hidden; }

  showPicture(now) {
    const frame = now.frame;
    this.held.hidden = !frame?.held;
    this.holdButton.firstChild.data = frame?.held ? "Let go" : "Hold";
    if (!this.newClass.hidden) return; // the name that is being typed is this picture's
    this.camera.video.hidden = !this.isPreview;
    if (this.isPreview) {
      if (this.camera.video.paused) this.camera.video.play().catch(() => {});
      this.picture.hidden = true;
      this.shownFrame = null;
      return;
    }
    if (!frame || this.choosing) { this.picture.hidden = true; this.shownFrame = null; return; }
    this.picture.hidden = false;
    if (this.picture.dataset.number !== String(frame.number)) {
      this.picture.dataset.number = frame.number;
      this.picture.classList.toggle("small", frame.small);
      this.picture.src = `/edge/frame/${frame.number}`;
    }
    if (frame.held) this.shownFrame = frame.number; // which was on the screen before
  }

  /** The picture is on the screen only now; what a person labels is this one. */
  arrived() {
    if (this.isPreview) return;
    this.shownFrame = Number(this.picture.dataset.number);
    this.screen.dataset.shown = this.shownFrame;
    if (this.burst) this.addToBurst();
  }

  /** One statement: what it is and how sure, or that it is unknown. */
  showAnswer(now) {
    const asked = now.frame;
    const known = (asked?.top ?? []).filter(([id]) => now.classById.has(id)).map(([id, share]) => ({ ...now.classById.get(id), share }));
    this.answer.hidden = !known.length || this.choosing;
    const best = known[0], unknown = Boolean(asked?.unknown) || best?.name === NONE_OF_THESE;
    this.answer.classList.toggle("unknown", unknown);
    this.answer.style.setProperty("--class-colour", best?.colour ?? "");
    const alone = now.classes.length === 1;
    this.answerName.textContent = unknown ? "unknown" : best?.name ?? "";
    this.answerSure.textContent = unknown || alone || !best ? "" : sureness(best.share, asked.calibrated);
    if (!known.length || this.choosing) { this.answers.replaceChildren(); return; }
    let why = "";
    if (asked.unknown) why = `Unlike everything learned. The nearest is ${best.name}.`;
    else if (unknown) why = "It looks like what you labelled none of these.";
    else if (alone) why = "There is one class, so it is the only answer.";
    else if (!asked.calibrated) why = `${known[1] ? `The next nearest is ${known[1].name}. ` : ""}${UNCALIBRATED}`;
    if (why) this.answers.replaceChildren(make("p", {}, why));
    else this.answers.replaceChildren(...known.map(({ name, colour, share }, place) => make("div", { class: `answer${place === 0 ? " best" : ""}` },
      make("bdi", { class: "answer-name", title: name }, name),
      make("span", { class: "answer-bar" }, make("span", { style: `width:${100 * share}%;background:${colour}` })),
      make("span", { class: "answer-share" }, percent(share)))));
  }

  /** What to do next: one sentence. */
  showGuide(now) {
    let parts = [now.verdict.advice];
    if (this.choosing) parts = ["Choose where the pictures come from."];
    else if (!now.classes.length) {
      const shown = now.demonstration ? "Wait for a part" : "Show something to the camera";
      parts = [shown, make("span", { class: "keys-only" }, ", press ", make("kbd", {}, "n")), ", and give it a name."];
    }
    else if (now.progress !== null && now.classes.length > 1) parts = [`Getting better … ${percent(now.progress)} `, make("progress", { max: 1, value: now.progress, "aria-label": "rehearsal" })];
    const text = parts.map((part) => part.textContent ?? part).join("");
    if (this.guide.dataset.text === text) return;
    this.guide.dataset.text = text;
    this.guide.id = now.classes.length || this.choosing ? "guide" : "empty";
    this.guide.replaceChildren(...parts);
  }

  /** What the learner says to the last label: how soon it learned it, and what it thinks now. */
  showLesson(now) {
    if (this.awaited === null) return;
    const lesson = now.learned.find((each) => each.seq === this.awaited);
    if (!lesson) return;
    this.awaited = null;
    const name = (id) => now.classById.get(id)?.name ?? `class ${id}`;
    const said = (answer) => (!answer.top.length ? "nothing" : answer.unknown ? "unknown" : name(answer.top[0][0]) + sureness(answer.top[0][1], answer.calibrated));
    const verb = lesson.held_out ? "measured" : "learned";
    this.lesson.textContent = `${verb} in ${lesson.seconds.toFixed(1)} s · it said ${said(lesson.before)} · now ${said(lesson.after)}`;
  }

  /** A page that goes leaves no picture held still behind it. */
  letGo() {
    if (this.holds && this.now?.frame?.held) navigator.sendBeacon("/edge/act", JSON.stringify({ do: "hold", held: false }));
  }

  say(text, wrong) { tell(this.message, text, wrong); }

  // Doing --------------------------------------------------------------------------------------------------------------

  async perform(action) {
    const answer = await perform(action, this.message);
    if (answer) this.lesson.textContent = "";
    return answer;
  }

  /** The numbers of what is on the screen at this moment; a camera's picture has to get one first. */
  async frames() {
    if (this.isPreview) {
      const picture = this.camera.grab();
      return picture ? [(await bring(picture)).number] : [];
    }
    return this.shownFrame === null ? [] : [this.shownFrame];
  }

  async label(classId, frames = this.frames()) {
    this.lastClass = classId;
    const answer = await this.perform(frames.then((numbers) => ({ do: "label", class: classId, frames: numbers })));
    this.afterLabel(answer);
    return answer;
  }

  async labelNone() { this.afterLabel(await this.perform(this.frames().then((frames) => ({ do: "new_class", name: NONE_OF_THESE, frames })))); }

  afterLabel(answer) {
    if (!answer) return;
    if (answer.seq) { this.awaited = answer.seq; this.lesson.textContent = "learning …"; if (state.now) this.showLesson(state.now); }
  }

  openNewClass() {
    if (!this.newClass.hidden) { this.name.focus(); return; } // it is open already, with its picture and its name
    this.frozen = this.frames(); // what the person saw when they thought of the name
    this.frozen.catch(() => {});
    this.camera.video.pause();
    this.heldBefore = Boolean(this.now?.frame?.held);
    this.newClass.hidden = false;
    this.holds = true;
    this.name.value = "";
    this.name.focus();
    this.newClass.scrollIntoView({ block: "nearest" });
    act(this.frozen.then(([frame]) => ({ do: "hold", held: frame !== undefined, frame }))).catch(() => {});
  }

  closeNewClass(letGo = true) {
    this.newClass.hidden = true;
    this.name.blur();
    if (letGo) act({ do: "hold", held: false }).catch(() => {});
  }

  /** A picture that was held still before stays so. */
  cancelNewClass() { this.closeNewClass(!this.heldBefore); }

  async createClass() {
    const name = this.name.value;
    const answer = await this.perform(this.frozen.then((frames) => ({ do: "new_class", name, frames })));
    if (!answer) return;
    this.lastClass = answer.class_id;
    this.closeNewClass();
    this.afterLabel(answer);
  }

  toggleHold() {
    if (this.now?.frame?.held) { this.perform({ do: "hold", held: false }); return; }
    const frames = this.frames();
    if (this.isPreview) this.camera.video.pause();
    this.holds = true;
    this.perform(frames.then(([frame]) => ({ do: "hold", held: true, frame })));
  }

  // A burst: from the press of a class's key or card until it is let go --------------------------------------------------

  beginBurst(classId, key = null) {
    this.endBurst();
    this.burst = { classId, key, begun: performance.now(), frames: new Map() }; // of a frame's number, or of a moment: the promise of its number
    this.addToBurst();
    this.burst.timer = setInterval(() => { if (this.isPreview) this.addToBurst(); }, BURST_MS);
  }

  addToBurst() {
    const { frames, classId, begun } = this.burst, key = this.isPreview ? performance.now() : this.shownFrame;
    if (frames.size && performance.now() - begun < HELD_MS) return;
    if (!frames.has(key)) frames.set(key, this.frames());
    if (frames.size > 1) this.say(`${frames.size} pictures of ${this.now.classById.get(classId)?.name}, saved when you let go`);
    if (frames.size < MOST_BURST) return;
    this.say(`${MOST_BURST} pictures are the most at once: press again for more`);
    this.endBurst();
  }

  dropBurst() {
    clearInterval(this.burst?.timer);
    this.burst = null;
  }

  endBurst() {
    if (!this.burst) return;
    const { classId, frames } = this.burst;
    this.dropBurst();
    // Those that got through: the camera may have gone in the middle. If none did, the first says why.
    const arrived = Promise.allSettled(frames.values()).then((all) => all.flatMap((each) => each.value ?? []));
    this.label(classId, arrived.then((numbers) => (numbers.length ? numbers : [...frames.values()][0])));
  }

  // A picture of the person's ------------------------------------------------------------------------------------------

  /** Show it held still, with what the learner says; a key labels it. */
  async tryPicture() {
    const [file] = this.file.files;
    this.file.value = "";
    if (!file) return;
    try {
      const { number } = await bringFile(file);
      this.holds = true;
      await this.perform({ do: "hold", held: true, frame: number });
    } catch (error) {
      this.say(error.message, true);
    }
  }

  // Keys ---------------------------------------------------------------------------------------------------------------

  keyDown(event) {
    if (!isForTab(event, this.place)) return;
    const known = classOfKey(this.now, event.key), digit = /^\d$/.test(event.key);
    const actions = {
      n: () => this.openNewClass(), " ": () => this.toggleHold(), x: () => this.labelNone(), "?": () => showKeys(),
    };
    if (event.key === " " && event.target.closest?.("button, summary, a, input")) return; // Space presses the focused control
    if (!known && !digit && !actions[event.key]) return;
    event.preventDefault();
    if (event.repeat) return;
    if (known) this.beginBurst(known.id, event.key);
    else if (!digit) actions[event.key]();
    else this.say(`there is no class ${event.key} yet: press n to make one`, true);
  }

  keyUp(event) { if (event.key === this.burst?.key) this.endBurst(); }
}
