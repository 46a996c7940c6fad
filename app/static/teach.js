// The Teach tab: the picture with the answer on it, a card and a key for every class, and what to do next.
import { PAGE, act, classOfKey, counted, get, isForTab, isShown, make, percent, state, sureness, tell } from "./common.js";
import { BrowserCamera, chosen } from "./camera.js";
import { Cards, NONE_OF_THESE } from "./cards.js";
import { Pile, bring, bringFiles } from "./pictures.js";
import { historyButton } from "./history.js";
import { RegionFrame } from "./region.js";
import { Sources } from "./sources.js";

const MOST_BURST = 30; // the server keeps frames for ten seconds
const BURST_MS = 100; // between two of them
const UNMEASURED = "once it has about 20 different pictures to measure itself on (a burst counts as one)";
const KEY_HELP = [
  ["1 … 9, 0", "label the picture as that class; on Classes you choose other keys and the order"],
  ["n", "a new class: type its name, Enter"],
  ["x", "none of these: it shall be unknown"],
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
  document.addEventListener("visibilitychange", () => { if (document.hidden) page.endBurst(); });
  return (now) => page.show(now);
}

class Teach {
  constructor(place) {
    this.place = place;
    this.shownFrame = null; // the number of the picture that is really on the screen
    this.lastClass = null;
    this.burst = null;
    this.awaited = null; // the label whose lesson we wait for
    this.pile = null; // pictures that this page goes through
    this.camera = new BrowserCamera((problem) => this.say(problem, true), () => { this.endBurst(); this.show(this.now); });
    this.build();
    this.watchPreview();
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
    this.held = make("p", { id: "held", hidden: true }, "held still: label it, or let it go");
    this.cards = new Cards(this);
    this.region = new RegionFrame(this);
    this.sources = new Sources(this);
    this.help = make("dialog", { id: "key-help", class: "edge-dialog", "aria-label": "Keys" },
      make("h3", {}, "Keys"),
      make("dl", {}, ...KEY_HELP.flatMap(([key, meaning]) => [make("dt", {}, make("kbd", {}, key)), make("dd", {}, meaning)])),
      make("form", { method: "dialog" }, make("button", { class: "edge-button" }, "Close")));
    this.screen = make("div", { class: "teach-screen", id: "screen" }, this.camera.video, this.picture, this.region.outline, this.answer, this.held);
    this.region.watch(this.screen);
    this.columns = make("div", { class: "teach-columns" });
    this.columns.append(
      make("section", { class: "teach-picture", "aria-label": "picture" }, this.screen,
        make("div", { class: "teach-notes" }, this.guide, this.message, this.lesson)),
      make("section", { class: "teach-side", "aria-label": "classes" },
        this.answers, this.newClassForm(), this.tools(), this.cards.element, this.cards.health, this.unknownSlider()),
      this.sources.element);
    this.place.replaceChildren(this.columns, this.help, this.cards.enlarged);
    this.showMirror();
  }

  newClassForm() {
    this.name = make("input", { id: "new-class-name", maxlength: 100, placeholder: "name of the new class", "aria-label": "name of the new class", autocomplete: "off", dir: "auto" });
    this.name.addEventListener("keydown", (event) => { if (event.key === "Escape") this.cancelNewClass(); });
    this.newClass = make("form", { id: "new-class", hidden: true, onsubmit: (event) => { event.preventDefault(); this.createClass(); } },
      this.name, make("button", { class: "edge-button primary", type: "submit" }, "Save"), make("button", { class: "edge-button", type: "button", onclick: () => this.cancelNewClass() }, "Cancel"));
    return this.newClass;
  }

  tools() {
    const tool = (id, label, key, action, title, kind = "") => make("button", { id, class: `edge-button ${kind}`, type: "button", title, onclick: action }, label, make("kbd", {}, key));
    this.burstButton = tool("burst", "Burst", "b", null, "hold down to label every frame as the last class");
    this.burstButton.addEventListener("pointerdown", () => this.beginBurst());
    for (const end of ["pointerup", "pointerleave", "pointercancel", "keyup", "blur"]) this.burstButton.addEventListener(end, () => this.endBurst());
    this.burstButton.addEventListener("keydown", (event) => { if (event.key === " " || event.key === "Enter") { event.preventDefault(); if (!event.repeat) this.beginBurst(); } });
    this.holdButton = tool("hold", "Hold", "Space", () => this.toggleHold(), "hold the picture still, or let it go");
    return make("div", { class: "teach-tools" },
      make("div", { class: "edge-row", role: "group", "aria-label": "this picture" },
        tool("new-class-open", "New class", "n", () => this.openNewClass(), "name what the picture shows", "primary"),
        this.burstButton, this.holdButton,
        tool("none-of-these", "None of these", "x", () => this.labelNone(), "none of your classes: pictures like it shall be called unknown")),
      make("div", { class: "edge-row", role: "group", "aria-label": "back and forth" },
        tool("undo", "Undo", "u", () => this.perform({ do: "undo" }), "undo the last action"),
        tool("redo", "Redo", "r", () => this.perform({ do: "redo" }), "redo it"),
        historyButton((text, bad) => this.say(text, bad)),
        tool("keys", "Keys", "?", () => this.help.showModal(), "show the keys", "keys-only")));
  }

  unknownSlider() {
    this.share = make("input", { id: "unknown-share", type: "range", min: 0, max: 30, step: 1, "aria-describedby": "unknown-effect", oninput: () => this.tryShare() });
    this.share.addEventListener("change", async () => { await this.perform({ do: "set_unknown_share", share: Number(this.share.value) / 100 }); this.setting = null; });
    this.effect = make("p", { id: "unknown-effect", role: "status" });
    this.unknown = make("details", { id: "unknown-line", ontoggle: () => this.tryShare() }, make("summary", {}, "When is something unknown?"),
      make("label", {}, "hardly ever ", this.share, " sooner"), this.effect);
    return this.unknown;
  }

  /** What the slider's place would have done to the last pictures. */
  async tryShare() {
    if (!this.unknown.open) return;
    const share = Number(this.share.value) / 100;
    this.setting = share;
    const tried = await get(`/edge/unknown?share=${share}`).catch((error) => ({ error }));
    if (this.setting !== share && this.setting !== null) return; // the slider has moved on
    const promise = `About ${Math.round(100 * share)} in 100 pictures of known things will be called unknown by mistake.`;
    this.effect.textContent = tried.error ? tried.error.message
      : !tried.calibrated ? `It can tell what is unknown ${UNMEASURED}.`
        : `${promise} Of the last ${counted(tried.pictures, "picture")} it would call ${tried.unknown} unknown.`;
    this.setting = null;
  }

  // Showing the state --------------------------------------------------------------------------------------------------

  show(now) {
    if (!now) return;
    const first = !this.now;
    this.now = now;
    if (first && now.source.browser && (now.source.owner === PAGE || (!now.source.owner && chosen.used))) this.sources.useCamera(true);
    else if (first) this.sources.chooseFirst();
    if (this.camera.sending && !now.source.browser) this.camera.stop(); // somebody has chosen another source
    if (!isShown(this.place)) return;
    this.choosing = this.sources.show(now, this.screen, this.pile);
    this.columns.classList.toggle("beginning", this.choosing && !now.classes.length);
    this.camera.region = now.source.region;
    this.showPicture(now);
    this.region.show(now, !this.pile && !this.choosing && now.source.phase !== "closed");
    this.showAnswer(now);
    this.cards.show(now, this.lastClass);
    this.showGuide(now);
    this.showLesson(now);
    if (document.activeElement !== this.share && !this.unknown.open) this.share.value = Math.round(100 * now.unknown_share);
  }

  get isPreview() { return this.camera.running && !this.pile && !this.now?.frame?.held && this.newClass.hidden; }

  showPicture(now) {
    const frame = now.frame;
    this.held.hidden = this.pile || !frame?.held;
    this.holdButton.firstChild.data = this.pile ? "Skip" : frame?.held ? "Let go" : "Hold";
    if (!this.newClass.hidden) return; // the name that is being typed is this picture's
    this.camera.video.hidden = !this.isPreview;
    if (this.isPreview) {
      if (this.camera.video.paused) this.camera.video.play().catch(() => {});
      this.picture.hidden = true;
      this.shownFrame = null;
      return;
    }
    if (this.pile) { this.put(this.pile.url, "", false); return; }
    if (!frame || this.choosing) { this.picture.hidden = true; this.shownFrame = null; return; }
    this.put(`/edge/frame/${frame.number}`, frame.number, frame.small);
    if (frame.held) this.shownFrame = frame.number; // which was on the screen before
  }

  put(url, number, small) {
    this.picture.hidden = !url;
    if (!url || this.picture.dataset.url === url) return;
    this.picture.dataset.url = url;
    this.picture.dataset.number = number;
    this.picture.classList.toggle("small", small);
    this.picture.src = url;
  }

  /** The picture is on the screen only now; what a person labels is this one. */
  arrived() {
    if (this.isPreview) return;
    this.shownFrame = Number(this.picture.dataset.number) || null;
    this.screen.dataset.shown = this.picture.dataset.url;
    if (this.burst && this.shownFrame) this.addToBurst();
  }

  /** Counts the camera's pictures as they are shown. */
  watchPreview() {
    const video = this.camera.video;
    const next = () => { if (!video.hidden) this.screen.dataset.shown = this.previews = (this.previews ?? 0) + 1; video.requestVideoFrameCallback?.(next); };
    video.requestVideoFrameCallback?.(next);
  }

  showMirror() { this.screen.classList.toggle("mirror", chosen.mirror); }

  /** One statement: what it is and how sure, or that it is unknown. */
  showAnswer(now) {
    const asked = this.pile ? this.pile.answer : now.frame;
    const known = (asked?.top ?? []).filter(([id]) => now.classById.has(id)).map(([id, share]) => ({ ...now.classById.get(id), share }));
    this.answer.hidden = !known.length || this.choosing;
    const best = known[0], unknown = Boolean(asked?.unknown) || best?.name === NONE_OF_THESE;
    this.answer.classList.toggle("unknown", unknown);
    this.answer.style.setProperty("--class-colour", best?.colour ?? "");
    const alone = now.classes.length === 1;
    this.answerName.textContent = unknown ? "unknown" : best?.name ?? "";
    this.answerSure.textContent = unknown || alone || !best ? "" : sureness(best.share, asked.calibrated);
    if (!known.length || this.choosing) { this.answers.replaceChildren(); return; }
    if (unknown || alone) {
      const why = unknown ? (asked.unknown ? `It looks like nothing that it has learned; the nearest is ${best.name}.` : "It looks like what you called none of these.") : "It knows one class, so it can only say that one.";
      this.answers.replaceChildren(make("p", { id: unknown ? "unknown" : "alone" }, why));
      return;
    }
    if (!asked.calibrated) {
      const next = known[1] ? `The next nearest is ${known[1].name}. ` : "";
      this.answers.replaceChildren(make("p", { id: "unmeasured" }, `${next}It says how sure it is ${UNMEASURED}.`));
      return;
    }
    this.answers.replaceChildren(...known.map(({ name, colour, share }, place) => make("div", { class: `answer${place === 0 ? " best" : ""}` },
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

  /** The numbers of what is on the screen at this moment; a camera's picture has to get one first. */
  async frames() {
    if (this.pile) return [await this.pile.number];
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
    if (this.pile) this.nextInPile();
  }

  openNewClass() {
    if (!this.newClass.hidden) { this.name.focus(); return; } // it is open already, with its picture and its name
    this.frozen = this.frames(); // what the person saw when they thought of the name
    this.frozen.catch(() => {});
    this.camera.video.pause();
    this.heldBefore = Boolean(this.now?.frame?.held);
    this.newClass.hidden = false;
    this.name.value = "";
    this.name.focus();
    this.newClass.scrollIntoView({ block: "nearest" });
    if (!this.pile) act(this.frozen.then(([frame]) => ({ do: "hold", held: frame !== undefined, frame }))).catch(() => {});
  }

  closeNewClass(letGo = true) {
    this.newClass.hidden = true;
    this.name.blur();
    if (letGo && !this.pile) act({ do: "hold", held: false }).catch(() => {});
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
    if (this.pile) { this.nextInPile(); return; }
    if (this.now?.frame?.held) { this.perform({ do: "hold", held: false }); return; }
    const frames = this.frames();
    if (this.isPreview) this.camera.video.pause();
    this.perform(frames.then(([frame]) => ({ do: "hold", held: true, frame })));
  }

  // A burst ------------------------------------------------------------------------------------------------------------

  beginBurst() {
    if (this.burst) return;
    if (this.lastClass === null || !this.now?.classById.has(this.lastClass)) {
      this.say("label one frame first: a burst goes on with the last class", true);
      return;
    }
    this.burst = new Map(); // number of a frame, or of a moment: the promise of its number
    this.burstClass = this.lastClass;
    this.burstButton.classList.add("last");
    this.addToBurst();
    this.burstTimer = setInterval(() => { if (this.isPreview) this.addToBurst(); }, BURST_MS);
  }

  addToBurst() {
    const key = this.isPreview ? performance.now() : this.shownFrame;
    if (key !== null && !this.burst.has(key)) this.burst.set(key, this.frames());
    this.say(`burst: ${this.burst.size} frames, saved when you let go`);
    if (this.burst.size >= MOST_BURST) this.endBurst();
  }

  endBurst() {
    if (!this.burst) return;
    clearInterval(this.burstTimer);
    const frames = [...this.burst.values()];
    this.burst = null;
    this.burstButton.classList.remove("last");
    // Those that got through: the camera may have gone in the middle.
    this.label(this.burstClass, Promise.allSettled(frames).then((all) => all.flatMap((each) => each.value ?? [])));
  }

  // Pictures of the person's -------------------------------------------------------------------------------------------

  /** Label files as one class, by one action. */
  async addPictures(files, { id = null, name }) {
    if (!files.length) return;
    this.say(`${counted(files.length, "picture")} on the way …`);
    const { numbers, bad, left } = await bringFiles(files);
    const action = id === null ? { do: "new_class", name, frames: numbers } : { do: "label", class: id, frames: numbers };
    const answer = numbers.length ? await this.perform(action) : null;
    if (answer?.seq) this.awaited = answer.seq;
    const rest = [...(left ? [`${left} more were left out: at most 100 at once, or import a folder on Review`] : []), ...bad];
    if (rest.length && (answer || !numbers.length)) this.say([...(answer ? [answer.message] : []), ...rest.slice(0, 2)].join(" · "), true);
  }

  lookThrough(files) {
    this.pile = new Pile(files, (problem) => { if (problem) this.say(problem, true); if (this.now) this.show(this.now); });
    this.show(this.now);
  }

  nextInPile() {
    this.pile.next();
    if (this.pile.over) { this.endPile(); this.say("that was the last picture"); }
    this.show(this.now);
  }

  endPile() { this.pile = null; }

  // Keys ---------------------------------------------------------------------------------------------------------------

  keyDown(event) {
    if (!isForTab(event, this.place)) return;
    const known = classOfKey(this.now, event.key), digit = /^\d$/.test(event.key);
    const actions = {
      n: () => this.openNewClass(), " ": () => this.toggleHold(), b: () => this.beginBurst(), x: () => this.labelNone(),
      u: () => this.perform({ do: "undo" }), r: () => this.perform({ do: "redo" }), "?": () => this.help.showModal(),
    };
    if (event.key === " " && event.target.closest?.("button, summary, a, input")) return; // Space presses the focused control
    if (!known && !digit && !actions[event.key]) return;
    event.preventDefault();
    if (event.repeat) return;
    if (known) this.label(known.id);
    else if (!digit) actions[event.key]();
    else this.say(`there is no class ${event.key} yet: press n to make one`, true);
  }

  keyUp(event) { if (event.key === "b") this.endBurst(); }
}
