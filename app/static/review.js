// The Review tab: the queue and the labelled samples as a grid, each with the learner's guess; import and export.
import { ask, button, classOfKey, counted, isForTab, isShown, keyOf, keyed, make, perform, setChildren, sureness, tell } from "./common.js";
import { backAndForth } from "./history.js";
import { LargePicture } from "./large_picture.js";
import { openPictures } from "./pictures.js";

const RELOAD_MS = 500; // between two reloads, as something changed elsewhere or guesses were not there in time

export class Review {
  constructor(place) {
    this.place = place;
    this.view = "queue";
    this.page = 0;
    this.samples = [];
    this.selected = new Set(); // sample ids of this page
    this.cells = new Map(); // sample id: what is on the screen of it
    this.lastTouched = null; // where a range begins
    this.current = null; // the sample that keys are about, unless some are selected
    this.loaded = null; // the state that the grid shows
    this.loadedAt = -Infinity;
    this.question = 0; // the newest one; answers to older ones are dropped
    this.build();
    document.addEventListener("keydown", (event) => this.keyDown(event));
  }

  build() {
    const choice = (id, label) => make("select", { id, "aria-label": label, onchange: () => this.go({}) });
    this.views = new Map([
      ["queue", button("review-queue", "Queue", () => this.go({ view: "queue" }))],
      ["labelled", button("review-labelled", "Labelled", () => this.go({ view: "labelled" }))],
    ]);
    this.chosenGuess = choice("review-guess", "the learner's guess");
    this.chosenClass = choice("review-class", "class");
    this.filters = make("div", { class: "edge-row review-filters", role: "group", "aria-label": "which of them" }, this.chosenGuess, this.chosenClass);
    this.count = make("strong", { id: "review-count" });
    const everyPage = { title: "all that the filters show, on every page" };
    this.all = button("review-all", keyed("Select all", "Ctrl A"), () => this.selectAll(), everyPage);
    this.none = button("review-none", "Select none", () => this.select([...this.selected], false));
    this.accept = button("review-accept", ["Accept", make("span", { class: "review-more" }, " the guess "), make("kbd", {}, "Enter")], () => this.acceptGuesses(), { class: "edge-button primary" });
    this.classes = make("div", { id: "review-classes", class: "review-classes", role: "group", tabindex: 0, "aria-label": "label the selected samples as" });
    this.name = make("input", { id: "review-new-name", placeholder: "type a class name", "aria-label": "name of a class, also a new one, for the selected samples", autocomplete: "off" });
    this.newClass = make("form", { id: "review-new-class", class: "edge-row", onsubmit: (event) => { event.preventDefault(); this.labelNew(); } },
      this.name, make("button", { id: "review-new-label", class: "edge-button", type: "submit" }, "Label"));
    this.dismiss = button("review-dismiss", "Dismiss", () => this.perform({ do: "dismiss", samples: this.chosen() }), { title: "take them out of the queue without a label" });
    this.remove = button("review-delete", "Delete", () => this.perform({ do: "delete_samples", samples: this.chosen() }), { class: "edge-button danger", title: "delete the samples; the learner forgets them" });
    this.message = make("p", { id: "review-message", class: "tab-message", role: "status", "aria-live": "polite" });
    this.grid = make("ul", { id: "review-grid", class: "review-grid", "aria-label": "samples" });
    this.empty = make("p", { id: "review-empty", class: "empty", hidden: true });
    this.before = button("review-previous", "Previous", () => this.go({ page: this.page - 1 }));
    this.after = button("review-next", "Next", () => this.go({ page: this.page + 1 }));
    this.where = make("span", { id: "review-page" });
    this.large = new LargePicture(this);
    this.place.replaceChildren(
      make("div", { class: "edge-row review-top" }, make("div", { class: "edge-row", role: "group", "aria-label": "which samples" }, ...this.views.values()), this.filters,
        make("div", { class: "edge-row review-transfer" },
          button("review-pictures", "Add pictures …", openPictures),
          make("a", { id: "export-start", class: "edge-button", href: "/edge/export.zip", download: "", title: "all labelled pictures, a folder for each class" }, "Export a zip"))),
      make("div", { class: "review-bar", role: "region", "aria-label": "what to do with them" },
        make("div", { class: "edge-row" }, this.count, this.all, this.none, this.accept, this.dismiss, this.remove, make("span", { class: "edge-row review-back" }, ...backAndForth("review-", (action) => this.perform(action), (event) => this.hears(event)))),
        make("div", { class: "edge-row review-labels" }, this.classes, this.newClass),
        this.message),
      this.grid, this.empty,
      this.pager = make("nav", { class: "edge-row review-pager", "aria-label": "pages", hidden: true }, this.before, this.where, this.after),
      this.hint = make("p", { class: "review-keys", hidden: true }, "Click a picture to see it large. Arrows move, ", ...keyed("", "Enter"), " accepts the guess, a class's key",
        " corrects it, ", ...keyed("", "Space"), " selects, ", ...keyed("", "Shift"), " selects a range."));
    this.showFilters();
    this.showSelection();
  }

  say(text, wrong) { tell(this.message, text, wrong); }

  // Staying in step ----------------------------------------------------------------------------------------------------

  show(now) {
    this.now = now;
    if (!isShown(this.place)) return;
    this.showClasses(now);
    for (const [view, number] of [["queue", now.queue], ["labelled", now.labels]]) {
      const button = this.views.get(view), text = `${view === "queue" ? "Queue" : "Labelled"} ${number.toLocaleString("en")}`;
      if (button.textContent !== text) button.textContent = text;
      button.setAttribute("aria-pressed", String(this.view === view));
    }
    const due = this.asking || this.loaded !== `${now.seq} ${now.queue}`;
    if (!this.acting && due && performance.now() - this.loadedAt >= RELOAD_MS) this.load(true);
  }

  /** Another view, page or filter. */
  go({ view = this.view, page = 0 }) {
    this.selected.clear();
    if (view !== this.view) {
      this.chosenGuess.value = "";
      this.say("");
    }
    Object.assign(this, { view, page });
    this.load(false);
    if (this.now) this.show(this.now);
  }

  /** Ask for the page again; what somebody is busy with keeps its place if `stay` is set. */
  async load(stay) {
    const question = ++this.question;
    this.loadedAt = Infinity; // another one is due only after this one's answer, however long that takes
    this.loaded = this.now ? `${this.now.seq} ${this.now.queue}` : null;
    const busy = this.selected.size || this.current !== null || this.grid.matches(":hover") || this.grid.contains(document.activeElement);
    const query = this.query();
    if (stay && busy) query.set("stay", this.samples.map((sample) => sample.id).join(","));
    try {
      const answer = await ask(`/edge/samples?${query}`);
      if (question === this.question) this.showPage(answer);
    } catch (error) {
      if (question === this.question && !(error instanceof TypeError)) this.say(error.message, true); // the strip says when nobody answers
    }
    if (question === this.question) this.loadedAt = performance.now();
  }

  /** What the view, the page and the filters ask for. */
  query() {
    const query = new URLSearchParams({ view: this.view, page: this.page });
    const given = { guess: this.chosenGuess.value };
    if (this.view === "labelled") given.class = this.chosenClass.value;
    for (const [name, value] of Object.entries(given)) if (value) query.set(name, value);
    this.filtered = Object.values(given).some(Boolean);
    return query;
  }

  showPage(answer) {
    const before = this.page === answer.page ? this.samples.map((sample) => sample.id) : [];
    this.page = answer.page;
    this.samples = answer.samples;
    const here = new Set(this.samples.map((sample) => sample.id));
    for (const id of before) if (!here.has(id)) this.selected.delete(id);
    this.showFilters();
    this.showGrid();
    this.where.textContent = `page ${answer.page + 1} of ${answer.pages} · ${counted(answer.total, "sample")}${answer.asking ? ` · ${answer.asking} guesses on the way` : ""}`;
    this.before.disabled = answer.page === 0;
    this.after.disabled = answer.page + 1 >= answer.pages;
    this.pager.hidden = this.hint.hidden = !this.samples.length;
    this.empty.hidden = this.samples.length > 0;
    this.empty.textContent = answer.asking ? "Loading …" : this.filtered ? "No sample fits." : this.view === "queue"
      ? "The queue is empty. Pictures that would teach something new, or that you add, wait here for a label."
      : "Nothing has a label yet. Label something on Teach, or add pictures.";
    this.showSelection();
    this.asking = answer.asking; // about how many the learner could not be asked in time
  }

  showFilters() {
    const classes = (this.now?.classes ?? []).map((row) => [row.id, row.name]);
    choose(this.chosenGuess, [["", "any guess"], ...(this.view === "labelled" ? [["other", "guess differs from the label"]] : []), ["unknown", "guess: unknown"], ...classes.map(([id, name]) => [id, `guess: ${name}`])]);
    choose(this.chosenClass, [["", "all classes"], ...classes]);
    this.chosenClass.hidden = this.view !== "labelled";
  }

  // The grid -----------------------------------------------------------------------------------------------------------

  showGrid() {
    const classes = new Map((this.now?.classes ?? []).map((row) => [row.id, row]));
    const cells = new Map();
    for (const sample of this.samples) {
      const facts = JSON.stringify([sample, classes.get(sample.class), classes.get(sample.guess?.[0]?.[0])]);
      const old = this.cells.get(sample.id);
      cells.set(sample.id, old?.facts === facts ? old : this.makeCell(sample, classes, facts, old));
    }
    this.cells = cells;
    const wanted = [...cells.values()].map((cell) => cell.element);
    const focused = this.grid.contains(document.activeElement) ? document.activeElement : null;
    setChildren(this.grid, wanted);
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

  /** Go on from the current sample, in the order of the page; `range` selects what lies between, too. */
  move(steps, range = false) {
    const from = this.current, index = this.samples.findIndex((sample) => sample.id === from), last = this.samples.length - 1;
    if (last < 0) return;
    const { id } = this.samples[index < 0 ? 0 : Math.max(0, Math.min(last, index + steps))];
    if (range && !this.large.isOpen) {
      if (from !== null && !this.selected.has(from)) this.touch(from, true, false);
      this.touch(id, true, true);
    }
    this.setCurrent(id);
    if (this.large.isOpen) this.large.open(id);
    else this.cells.get(id).face.focus();
  }

  get columns() {
    const cells = [...this.grid.children];
    return cells.filter((cell) => cell.offsetTop === cells[0].offsetTop).length || 1;
  }

  makeCell(sample, classes, facts, old) {
    const own = classes.get(sample.class), guess = this.guessOf(sample);
    const box = make("input", { type: "checkbox", class: "review-box", value: sample.id, tabindex: -1, "aria-label": `select sample ${sample.id}${own ? `, ${own.name}` : ""}` });
    box.addEventListener("click", (event) => this.touch(sample.id, box.checked, event.shiftKey));
    const picture = old?.picture ?? this.makePicture(sample);
    const said = guess ? `${guess.name}${sureness(guess.share, sample.calibrated)}` : sample.guess ? "unknown" : "…";
    const face = make("button", { type: "button", class: "review-face", tabindex: -1, "aria-label": `sample ${sample.id}${own ? `, labelled ${own.name}` : ""}, guess ${said}`, title: `sample ${sample.id}, ${sample.origin}` }, picture);
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

  /** All that the filters let through, on every page. */
  async selectAll() {
    const { ids } = await ask(`/edge/samples?${this.query()}&all=1`);
    this.select(ids, true);
  }

  select(ids, on) {
    for (const id of ids)
      if (on) this.selected.add(id);
      else this.selected.delete(id);
    this.showSelection();
  }

  showSelection() {
    for (const [id, cell] of this.cells) {
      cell.box.checked = this.selected.has(id);
      cell.element.classList.toggle("selected", cell.box.checked);
    }
    const some = this.selected.size;
    this.count.textContent = some ? `${some} selected` : "nothing selected";
    this.none.disabled = !some;
    this.accept.hidden = this.view !== "queue";
    for (const button of [this.accept, this.dismiss, this.remove, this.newClass.lastChild, ...this.classes.children]) button.disabled = !some && this.current === null;
    this.dismiss.hidden = this.view !== "queue";
    this.dismiss.textContent = some ? `Dismiss ${some}` : "Dismiss";
    this.remove.textContent = some ? `Delete ${some}` : "Delete";
    this.all.disabled = !this.samples.length;
  }

  showClasses(now) {
    const text = JSON.stringify(now.classes.map((row) => [row.id, row.name, row.colour]));
    if (this.shownClasses === text) return;
    this.shownClasses = text;
    this.classes.replaceChildren(...now.classes.map((row) => make("button", {
      class: "class-button review-class-button", type: "button", "data-class": row.id, style: `--class-colour: ${row.colour}`, title: `label the selected samples as ${row.name}`,
      onclick: () => this.label(row.id),
    }, ...keyOf(row), make("span", { class: "class-name", dir: "auto" }, row.name))));
    this.showFilters();
    this.showGrid();
    this.showSelection();
  }

  // Actions ------------------------------------------------------------------------------------------------------------

  /** What an action is about: the selected samples, or else the picture that keys are about. */
  chosen() {
    return this.selected.size ? [...this.selected] : this.current === null ? [] : [this.current];
  }

  label(classId) { return this.perform({ do: "label_samples", samples: this.chosen(), class: classId }); }

  async labelNew() {
    if (await this.perform({ do: "label_samples", samples: this.chosen(), name: this.name.value })) this.name.value = "";
  }

  /** Each chosen sample gets the class that the learner takes it for, all by one action: as the page shows it, or, of
   * samples on other pages, as the learner says now. */
  acceptGuesses() {
    if (this.view !== "queue") return this.say("its label stands: a class's key changes it", true);
    const shown = this.samples.map((sample) => [sample.id, this.guessOf(sample)?.id]).filter(([, guess]) => guess);
    return this.perform({ do: "accept_guesses", samples: this.chosen(), shown });
  }

  /** Resolves to the answer, if it was done. */
  async perform(action) {
    if (action.samples?.length === 0) return this.say("choose a picture first: click it, or press an arrow", true);
    this.acting = true; // the page is asked for once, afterwards
    const answer = await perform(action, this.message);
    // Acted on is no longer selected; what came back by an undo is not selected either.
    if (answer) for (const id of action.samples ?? []) this.selected.delete(id);
    this.acting = false;
    await this.load(true);
    return answer;
  }

  hears(event) { return this.large.isOpen ? this.large.hears(event) : isForTab(event, this.place); }

  keyDown(event) {
    if (event.repeat && !event.key.startsWith("Arrow")) return;
    if ((event.ctrlKey || event.metaKey) && event.key === "a" && isShown(this.place) && !event.target.closest?.("input:not([type=checkbox]), select") && !document.querySelector("dialog[open]")) {
      event.preventDefault();
      this.selectAll();
      return;
    }
    if (!this.hears(event)) return;
    const row = classOfKey(this.now, event.key);
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: this.columns, ArrowUp: -this.columns }[event.key];
    const onPicture = this.large.isOpen || event.target === document.body || event.target.classList.contains("review-face");
    const moves = onPicture || event.target.classList.contains("review-box") || event.target.role === "tab"; // the tab was just clicked
    if (row) this.label(row.id);
    else if (event.key === "d" && this.view === "queue") this.perform({ do: "dismiss", samples: this.chosen() });
    else if (steps && moves) this.move(steps, event.shiftKey);
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

/** Fill a list, if it differs, and keep what was chosen. */
function choose(select, options) {
  const facts = JSON.stringify(options);
  if (select.dataset.options === facts) return;
  select.dataset.options = facts;
  const chosen = select.value;
  select.replaceChildren(...options.map(([value, text]) => make("option", { value }, text)));
  select.value = options.some(([value]) => String(value) === chosen) ? chosen : "";
}
