// The Review tab: the queue and the labelled samples as a grid, each with the learner's guess; import and export.
import { act, classOfKey, get, isForTab, isShown, keyOf, keyed, make, sureness, tell } from "./common.js";
import { historyButton } from "./history.js";
import { LargePicture } from "./large_picture.js";
import { Transfer } from "./transfer.js";

const RELOAD_MS = 1000; // between two reloads because something changed elsewhere
const ASK_AGAIN_MS = 300; // for guesses that were not there in time
const SEARCH_MS = 300;
const MOST_SELECTED = 2000;

export function mountReview(place) {
  const page = new Review(place);
  document.addEventListener("keydown", (event) => page.keyDown(event));
  return (now) => page.show(now);
}

class Review {
  constructor(place) {
    this.place = place;
    this.view = "queue";
    this.page = 0;
    this.samples = [];
    this.selected = new Set(); // sample ids, those of other pages too
    this.cells = new Map(); // sample id: what is on the screen of it
    this.lastTouched = null; // where a range begins
    this.current = null; // the sample that keys are about, unless some are selected
    this.loaded = null; // the state that the grid shows
    this.loadedAt = -Infinity;
    this.question = 0; // the newest one; answers to older ones are dropped
    this.build();
  }

  build() {
    const button = (id, text, onclick, extra = {}) => make("button", { id, class: "edge-button", type: "button", onclick, ...extra }, ...[text].flat());
    const choice = (id, label) => make("select", { id, "aria-label": label, onchange: () => this.go({}) });
    const tick = (id, text) => make("label", { class: "review-tick" }, make("input", { id, type: "checkbox", onchange: () => this.go({}) }), ` ${text}`);
    this.views = new Map([
      ["queue", button("review-queue", "Queue", () => this.go({ view: "queue" }))],
      ["labelled", button("review-labelled", "Labelled", () => this.go({ view: "labelled" }))],
    ]);
    this.chosenSource = choice("review-source", "source");
    this.chosenGuess = choice("review-guess", "the learner's guess");
    this.chosenClass = choice("review-class", "class");
    this.search = make("input", { id: "review-search", type: "search", placeholder: "class, sample number, origin", "aria-label": "search", maxlength: 200, autocomplete: "off", oninput: () => this.searchSoon() });
    this.unsure = tick("review-unsure", "unsure only");
    this.doubts = tick("review-doubts", "suspicious labels first");
    this.filters = make("div", { class: "edge-row review-filters", role: "group", "aria-label": "which of them" }, this.chosenSource, this.chosenGuess, this.chosenClass, this.search, this.unsure, this.doubts);
    this.count = make("strong", { id: "review-count" });
    this.all = button("review-all", "Select all on this page", () => this.selectAll());
    this.none = button("review-none", "Select none", () => this.select([...this.selected], false));
    this.accept = button("review-accept", ["Accept", make("span", { class: "review-more" }, " the guess "), make("kbd", {}, "Enter")], () => this.acceptGuesses(), { class: "edge-button primary" });
    this.classes = make("div", { id: "review-classes", class: "review-classes", role: "group", "aria-label": "label the selected samples as" });
    this.names = make("datalist", { id: "review-names" });
    this.name = make("input", { id: "review-new-name", placeholder: "any class, also a new one", "aria-label": "name of a class, also a new one, for the selected samples", autocomplete: "off", list: "review-names" });
    this.newClass = make("form", { id: "review-new-class", class: "edge-row", onsubmit: (event) => { event.preventDefault(); this.labelNew(); } },
      this.name, this.names, make("button", { id: "review-new-label", class: "edge-button", type: "submit" }, "Label"));
    this.dismiss = button("review-dismiss", "Dismiss", () => this.perform({ do: "dismiss", samples: this.chosen() }), { title: "take them out of the queue without a label" });
    this.remove = button("review-delete", "Delete", () => this.perform({ do: "delete_samples", samples: this.chosen() }), { class: "edge-button danger", title: "delete the samples; the learner forgets them" });
    this.undo = button("review-undo", keyed("Undo", "u"), () => this.perform({ do: "undo" }), { title: "undo the last action" });
    this.redo = button("review-redo", keyed("Redo", "r"), () => this.perform({ do: "redo" }), { title: "redo it" });
    this.message = make("p", { id: "review-message", class: "review-message", role: "status", "aria-live": "polite" });
    this.grid = make("ul", { id: "review-grid", class: "review-grid", "aria-label": "samples" });
    this.empty = make("p", { id: "review-empty", class: "review-empty", hidden: true });
    this.before = button("review-previous", "Previous", () => this.go({ page: this.page - 1 }));
    this.after = button("review-next", "Next", () => this.go({ page: this.page + 1 }));
    this.where = make("span", { id: "review-page" });
    this.transfer = new Transfer((text, wrong) => this.say(text, wrong));
    this.large = new LargePicture(this);
    this.place.replaceChildren(
      make("div", { class: "edge-row review-top" }, make("div", { class: "edge-row", role: "group", "aria-label": "which samples" }, ...this.views.values()), this.filters),
      this.transfer.element,
      make("div", { class: "review-bar", role: "region", "aria-label": "what to do with them" },
        make("div", { class: "edge-row" }, this.count, this.all, this.none, this.accept, this.dismiss, this.remove, make("span", { class: "edge-row review-back" }, this.undo, this.redo, historyButton((text, wrong) => this.say(text, wrong)))),
        make("div", { class: "edge-row review-labels" }, this.classes, this.newClass),
        this.message, this.transfer.progress),
      this.grid, this.empty,
      make("nav", { class: "edge-row review-pager", "aria-label": "pages" }, this.before, this.where, this.after),
      make("p", { class: "review-keys" }, "Click a picture to see it large. Arrows move, ", make("kbd", {}, "Enter"), " accepts the guess, a class's key corrects it, ", make("kbd", {}, "Space"), " selects."));
    // A button that was clicked with a mouse must not be pressed again by the next Space.
    this.place.addEventListener("click", (event) => { if (event.detail) event.target.closest("button")?.blur(); });
    this.showFilters([]);
    this.showSelection();
  }

  say(text, wrong) { tell(this.message, text, wrong); }

  // Staying in step ----------------------------------------------------------------------------------------------------

  show(now) {
    this.now = now;
    if (!isShown(this.place)) return;
    this.showClasses(now);
    this.transfer.show(now.transfer);
    for (const [view, number] of [["queue", now.queue], ["labelled", now.labels]]) {
      const button = this.views.get(view), text = `${view === "queue" ? "Queue" : "Labelled"} ${number.toLocaleString("en")}`;
      if (button.textContent !== text) button.textContent = text;
      button.setAttribute("aria-pressed", String(this.view === view));
    }
    if (!this.acting && this.loaded !== `${now.seq} ${now.queue}` && performance.now() - this.loadedAt >= RELOAD_MS) this.load(true);
  }

  /** Another view, page or filter. */
  go({ view = this.view, page = 0 }) {
    if (view !== this.view) {
      this.selected.clear();
      this.chosenSource.value = this.chosenGuess.value = "";
      this.say("");
    }
    Object.assign(this, { view, page });
    this.load(false);
    if (this.now) this.show(this.now);
  }

  searchSoon() {
    clearTimeout(this.searching);
    this.searching = setTimeout(() => this.go({}), SEARCH_MS);
  }

  /** Ask for the page again; what somebody is busy with keeps its place if `stay` is set. */
  async load(stay) {
    clearTimeout(this.askingAgain);
    const question = ++this.question;
    this.loadedAt = performance.now();
    this.loaded = this.now ? `${this.now.seq} ${this.now.queue}` : null;
    const busy = this.selected.size || this.current !== null || this.grid.matches(":hover") || this.grid.contains(document.activeElement);
    const asked = [...this.selected]; // by the time of the answer there may be more
    const query = new URLSearchParams({ view: this.view, page: this.page, selected: asked.join(",") });
    if (stay && busy) query.set("stay", this.samples.map((sample) => sample.id).join(","));
    const given = { source: this.chosenSource.value, guess: this.chosenGuess.value };
    if (this.view === "labelled") Object.assign(given, { class: this.chosenClass.value, search: this.search.value.trim(), doubts: ticked(this.doubts) });
    else given.unsure = ticked(this.unsure);
    for (const [name, value] of Object.entries(given)) if (value) query.set(name, value);
    this.filtered = Object.values(given).some(Boolean);
    try {
      const answer = await get(`/edge/samples?${query}`);
      if (question === this.question) this.showPage(answer, asked);
    } catch (error) {
      if (question === this.question && !(error instanceof TypeError)) this.say(error.message, true); // the strip says when nobody answers
    }
  }

  showPage(answer, asked) {
    this.page = answer.page;
    this.samples = answer.samples;
    const still = new Set(answer.selected);
    for (const id of asked) if (!still.has(id)) this.selected.delete(id);
    this.showFilters(answer.sources);
    this.showGrid();
    this.where.textContent = `page ${answer.page + 1} of ${answer.pages} · ${answer.total.toLocaleString("en")} ${answer.total === 1 ? "sample" : "samples"}${answer.asking ? ` · asking the learner about ${answer.asking} more …` : ""}`;
    this.before.disabled = answer.page === 0;
    this.after.disabled = answer.page + 1 >= answer.pages;
    this.empty.hidden = this.samples.length > 0;
    this.empty.textContent = answer.asking ? "The learner is being asked …" : this.filtered ? "No sample fits." : this.view === "queue"
      ? "The queue is empty. Frames of the source that would teach the learner something new wait here for a label."
      : "Nothing has a label yet. Label something on the Teach tab, or import a folder above.";
    this.showSelection();
    // The learner could not be asked about all of them in time.
    if (answer.asking) this.askingAgain = setTimeout(() => { if (isShown(this.place)) this.load(true); }, ASK_AGAIN_MS);
  }

  showFilters(sources) {
    const classes = (this.now?.classes ?? []).map((row) => [row.id, row.name]);
    choose(this.chosenSource, [["", "all sources"], ...sources.map((name) => [name, name])]);
    choose(this.chosenGuess, [["", "any guess"], ...(this.view === "labelled" ? [["other", "guess differs from the label"]] : []), ["unknown", "unknown to it"], ...classes.map(([id, name]) => [id, `guess: ${name}`])]);
    choose(this.chosenClass, [["", "all classes"], ...classes]);
    for (const [element, view] of [[this.chosenClass, "labelled"], [this.search, "labelled"], [this.doubts, "labelled"], [this.unsure, "queue"]]) element.hidden = this.view !== view;
  }

  // The grid -----------------------------------------------------------------------------------------------------------

  showGrid() {
    const classes = new Map((this.now?.classes ?? []).map((row) => [row.id, row]));
    const cells = new Map();
    for (const sample of this.samples) {
      const facts = JSON.stringify([sample, classes.get(sample.class), classes.get(sample.suggested)?.name, classes.get(sample.guess?.[0]?.[0])]);
      const old = this.cells.get(sample.id);
      cells.set(sample.id, old?.facts === facts ? old : this.makeCell(sample, classes, facts, old));
    }
    this.cells = cells;
    const wanted = [...cells.values()].map((cell) => cell.element);
    const focused = this.grid.contains(document.activeElement) ? document.activeElement : null;
    // Only what differs is touched: moving an element in the page takes the focus from it.
    for (const element of [...this.grid.children]) if (!wanted.includes(element)) element.remove();
    wanted.forEach((element, index) => { if (this.grid.children[index] !== element) this.grid.insertBefore(element, this.grid.children[index] ?? null); });
    if (!cells.has(this.current)) this.setCurrent(this.current === null ? null : this.samples[Math.min(this.placeOfCurrent ?? 0, this.samples.length - 1)]?.id ?? null);
    else this.setCurrent(this.current);
    if (focused && focused.isConnected) focused.focus({ preventScroll: true });
    else if (focused && this.current !== null) this.cells.get(this.current).face.focus({ preventScroll: true });
    this.large.refresh();
  }

  /** The picture that keys are about; one of them can be reached with Tab. */
  setCurrent(id) {
    const before = this.current;
    this.current = id;
    if ((before === null) !== (id === null)) this.showSelection(); // actions need something to be about
    const index = this.samples.findIndex((sample) => sample.id === id);
    if (index >= 0) this.placeOfCurrent = index;
    const reachable = index >= 0 ? id : this.samples[0]?.id;
    for (const [each, cell] of this.cells) {
      cell.element.classList.toggle("current", each === id);
      cell.face.tabIndex = cell.box.tabIndex = each === reachable ? 0 : -1;
    }
  }

  /** Sample at a distance from the current one, in the order of the page. */
  neighbour(steps) {
    const index = this.samples.findIndex((sample) => sample.id === this.current);
    if (index < 0) return this.samples[0]?.id ?? null;
    return this.samples[Math.max(0, Math.min(this.samples.length - 1, index + steps))].id;
  }

  move(steps) {
    const id = this.neighbour(steps);
    if (id === null) return;
    this.setCurrent(id);
    if (this.large.isOpen) this.large.open(id);
    else this.cells.get(id).face.focus();
  }

  get columns() {
    const cells = [...this.grid.children];
    return cells.filter((cell) => cell.offsetTop === cells[0].offsetTop).length || 1;
  }

  makeCell(sample, classes, facts, old) {
    const own = classes.get(sample.class), suggested = classes.get(sample.suggested), guess = this.guessOf(sample);
    const box = make("input", { type: "checkbox", class: "review-box", value: sample.id, tabindex: -1, "aria-label": `select sample ${sample.id}${own ? `, ${own.name}` : ""}` });
    box.addEventListener("click", (event) => this.touch(sample.id, box.checked, event.shiftKey));
    const picture = old?.picture ?? this.makePicture(sample);
    const said = guess ? `${guess.name}${sureness(guess.share, sample.calibrated)}` : sample.guess ? "unknown" : "…";
    const face = make("button", { type: "button", class: "review-face", tabindex: -1, "aria-label": `sample ${sample.id}${own ? `, labelled ${own.name}` : ""}, guess ${said}`, title: `sample ${sample.id}, ${sample.origin}${sample.author ? `, by ${sample.author}` : ""}` }, picture);
    face.addEventListener("focus", () => this.setCurrent(sample.id));
    face.addEventListener("click", (event) => {
      if (!event.shiftKey) return this.large.open(sample.id);
      this.touch(sample.id, !this.selected.has(sample.id), true);
    });
    const lines = [];
    if (own) lines.push(make("span", { class: "review-name", dir: "auto", style: `--class-colour: ${own.colour}`, title: own.name }, own.name));
    if (!own || guess?.id !== sample.class) lines.push(make("span", { class: `review-guess${sample.unsure ? " unsure" : ""}`, style: guess ? `--class-colour: ${guess.colour}` : null, title: sample.unsure ? "the learner is unsure of it" : "what the learner takes it for" },
      guess ? make("bdi", {}, `${guess.name}${sample.unsure ? "?" : ""}`) : said, guess ? make("span", {}, sureness(guess.share, sample.calibrated)) : ""));
    if (sample.held_out) lines.push(make("span", { class: "review-note", title: "kept for measuring, never trained on" }, "for measuring"));
    if (sample.alike) lines.push(make("button", { class: "edge-button review-small review-alike", type: "button", title: "select all that look alike", onclick: () => this.select(sample.alike, true) }, `${sample.alike.length} alike`));
    if (suggested) lines.push(make("button", { class: "edge-button review-small review-fix", type: "button", title: `it resembles the samples of ${suggested.name}: label it so`, onclick: () => this.give([sample.id], suggested.id) }, "⚠ ", make("bdi", {}, suggested.name), "?"));
    const element = make("li", { class: "review-cell", "data-sample": sample.id }, box, face, make("div", { class: "review-lines" }, ...lines));
    return { element, box, face, picture, facts };
  }

  /** The class that the learner would call a sample; null when it is unknown to it, or nobody has asked yet. */
  guessOf(sample) {
    const [best] = sample.guess ?? [];
    const known = best && !sample.unknown ? this.now?.classById.get(best[0]) : null;
    return known ? { ...known, share: best[1] } : null;
  }

  makePicture(sample) {
    const gone = () => make("span", { class: "review-gone" }, "the image is no longer kept");
    if (!sample.image) return gone();
    const picture = make("img", { class: sample.small ? "small" : "", src: `/edge/sample/${sample.id}`, alt: "", loading: "lazy", draggable: "false" });
    picture.addEventListener("error", () => picture.replaceWith(gone()));
    return picture;
  }

  // The selection ------------------------------------------------------------------------------------------------------

  touch(id, on, range) {
    const ids = this.samples.map((sample) => sample.id);
    const [from, to] = [ids.indexOf(this.lastTouched), ids.indexOf(id)].sort((one, other) => one - other);
    this.lastTouched = id;
    this.select(range && from >= 0 ? ids.slice(from, to + 1) : [id], on);
  }

  selectAll() {
    this.select(this.samples.map((sample) => sample.id), true);
  }

  select(ids, on) {
    for (const id of ids)
      if (!on) this.selected.delete(id);
      else if (this.selected.size < MOST_SELECTED) this.selected.add(id);
      else this.say(`at most ${MOST_SELECTED.toLocaleString("en")} samples at once: label these first`, true);
    this.showSelection();
  }

  showSelection() {
    let here = 0;
    for (const [id, cell] of this.cells) {
      cell.box.checked = this.selected.has(id);
      cell.element.classList.toggle("selected", cell.box.checked);
      here += cell.box.checked;
    }
    const some = this.selected.size, elsewhere = some - here;
    this.count.textContent = some ? `${some} selected${elsewhere ? `, ${elsewhere} of them on other pages` : ""}` : "nothing selected";
    this.none.disabled = !some;
    this.accept.hidden = this.view !== "queue";
    for (const button of [this.accept, this.dismiss, this.remove, this.newClass.lastChild, ...this.classes.children]) button.disabled = !some && this.current === null;
    this.dismiss.hidden = this.view !== "queue";
    this.dismiss.textContent = some ? `Dismiss ${some}` : "Dismiss";
    this.remove.textContent = some ? `Delete ${some}` : "Delete";
    this.all.disabled = !this.samples.length;
  }

  showClasses(now) {
    if (this.seenClasses === now.classes) return;
    this.seenClasses = now.classes;
    const text = JSON.stringify(now.classes.map((row) => [row.id, row.name, row.colour, row.key]));
    if (this.shownClasses === text) return;
    this.shownClasses = text;
    this.classes.replaceChildren(...now.classes.map((row) => make("button", {
      class: "class-button review-class-button", type: "button", "data-class": row.id, style: `--class-colour: ${row.colour}`, title: `label the selected samples as ${row.name}`,
      onclick: () => this.label(row.id),
    }, ...keyOf(row), make("span", { class: "class-name", dir: "auto" }, row.name))));
    this.names.replaceChildren(...now.classes.map((row) => make("option", { value: row.name })));
    this.showFilters([...this.chosenSource.options].slice(1).map((option) => option.value));
    this.showGrid();
    this.showSelection();
  }

  // Actions ------------------------------------------------------------------------------------------------------------

  /** What an action is about: the selected samples, or else the picture that keys are about. */
  chosen() {
    return this.selected.size ? [...this.selected] : this.current === null ? [] : [this.current];
  }

  label(classId) {
    if (this.chosen().length) this.give(this.chosen(), classId);
    else this.say("choose a picture first: click it, or press an arrow", true);
  }

  /** Label samples, and say which label the page showed of each: somebody else may have given another since. */
  give(ids, classId) {
    return this.perform({ do: "label_samples", samples: ids, class: classId, seen: this.seen(ids) });
  }

  seen(ids) {
    const known = new Map(this.samples.map((sample) => [sample.id, sample.class ?? 0]));
    return ids.map((id) => known.get(id) ?? 0);
  }

  async labelNew() {
    const ids = this.chosen();
    if (!ids.length) this.say("choose a picture first: click it, or press an arrow", true);
    else if (await this.perform({ do: "label_samples_as", samples: ids, name: this.name.value, seen: this.seen(ids) })) this.name.value = "";
  }

  /** Each chosen sample gets the class that the learner takes it for. */
  async acceptGuesses() {
    const ids = new Set(this.chosen()), byClass = new Map();
    for (const sample of this.samples.filter((each) => ids.has(each.id))) {
      const id = this.view === "queue" ? this.guessOf(sample)?.id : sample.suggested;
      if (id) byClass.set(id, [...(byClass.get(id) ?? []), sample.id]);
    }
    if (!byClass.size) return this.say(this.view === "queue" ? "there is no guess to accept: give it a class" : "its label stands: a class's key changes it", true);
    for (const [classId, samples] of byClass) await this.give(samples, classId);
  }

  /** Resolves to whether it was done. */
  async perform(action) {
    if (action.samples && !action.samples.length) return this.say("choose a picture first: click it, or press an arrow", true);
    this.acting = true; // the page is asked for once, afterwards
    try {
      const answer = await act(action);
      // Acted on is no longer selected; what came back by an undo is not selected either.
      for (const id of action.samples ?? []) this.selected.delete(id);
      this.say(answer.message);
      return true;
    } catch (error) {
      this.say(error.message, true);
      return false;
    } finally {
      this.acting = false;
      await this.load(true);
    }
  }

  keyDown(event) {
    if (event.repeat && !event.key.startsWith("Arrow")) return;
    if (this.large.isOpen ? !this.large.hears(event) : !isForTab(event, this.place)) return;
    const row = classOfKey(this.now, event.key);
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: this.columns, ArrowUp: -this.columns }[event.key];
    const onPicture = this.large.isOpen || event.target === document.body || event.target.classList.contains("review-face");
    const moves = onPicture || event.target.classList.contains("review-box") || event.target.role === "tab"; // the tab was just clicked
    if (row) this.label(row.id);
    else if (event.key === "u") this.perform({ do: "undo" });
    else if (event.key === "r") this.perform({ do: "redo" });
    else if (event.key === "d" && this.view === "queue") this.perform({ do: "dismiss", samples: this.chosen() });
    else if (steps && moves) this.move(steps);
    else if (event.key === "Enter" && onPicture) this.acceptGuesses();
    else if (event.key === " " && onPicture && this.current !== null) this.select([this.current], !this.selected.has(this.current));
    else if (event.key === "Escape" && !this.large.isOpen) this.select([...this.selected], false);
    else return;
    event.preventDefault();
  }
}

/** The number on the tab, also before it was opened: the text alone, as Gradio uses its buttons again on a narrow page. */
export function showBadge({ queue }) {
  const button = document.getElementById("tab-review-button");
  const label = [...(button?.childNodes ?? [])].find((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
  const text = queue ? `Review ${queue.toLocaleString("en")}` : "Review";
  if (label && label.data.trim().startsWith("Review") && label.data !== text) label.data = text;
}

const ticked = (label) => label.querySelector("input").checked ? "1" : "";

/** Fill a list, if it differs, and keep what was chosen. */
function choose(select, options) {
  const facts = JSON.stringify(options);
  if (select.dataset.options === facts) return;
  select.dataset.options = facts;
  const chosen = select.value;
  select.replaceChildren(...options.map(([value, text]) => make("option", { value }, text)));
  select.value = options.some(([value]) => String(value) === chosen) ? chosen : "";
}
