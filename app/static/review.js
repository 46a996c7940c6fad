// The Review tab: the queue and the labelled samples as a grid, several labelled at once, import and export.
import { KEYS, act, get, isForTab, isShown, make, tell } from "./common.js";
import { Transfer } from "./transfer.js";

const RELOAD_MS = 1000; // between two reloads because something changed elsewhere
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
    this.loaded = null; // the state that the grid shows
    this.loadedAt = -Infinity;
    this.question = 0; // the newest one; answers to older ones are dropped
    this.build();
  }

  build() {
    const button = (id, text, onclick, extra = {}) => make("button", { id, class: "edge-button", type: "button", onclick, ...extra }, text);
    this.views = new Map([
      ["queue", button("review-queue", "Queue", () => this.go({ view: "queue" }))],
      ["labelled", button("review-labelled", "Labelled", () => this.go({ view: "labelled" }))],
    ]);
    this.chosenClass = make("select", { id: "review-class", "aria-label": "class", onchange: () => this.go({}) }, make("option", { value: "" }, "all classes"));
    this.search = make("input", { id: "review-search", type: "search", placeholder: "class, sample number, origin", "aria-label": "search", maxlength: 200, autocomplete: "off", oninput: () => this.searchSoon() });
    this.doubts = make("input", { id: "review-doubts", type: "checkbox", onchange: () => this.go({}) });
    this.filters = make("div", { class: "edge-row review-filters", hidden: true },
      this.chosenClass, this.search, make("label", {}, this.doubts, " suspicious labels first"));
    this.count = make("strong", { id: "review-count" });
    this.all = button("review-all", "Select all on this page", () => this.selectAll());
    this.none = button("review-none", "Select none", () => this.select([...this.selected], false));
    this.classes = make("div", { id: "review-classes", class: "review-classes", role: "group", "aria-label": "label the selected samples as" });
    this.name = make("input", { id: "review-new-name", placeholder: "a new class", "aria-label": "name of a new class for the selected samples", autocomplete: "off" });
    this.newClass = make("form", { id: "review-new-class", class: "edge-row", onsubmit: (event) => { event.preventDefault(); this.labelNew(); } },
      this.name, make("button", { id: "review-new-label", class: "edge-button", type: "submit" }, "Label"));
    this.dismiss = button("review-dismiss", "Dismiss", () => this.perform({ do: "dismiss", samples: this.chosen() }), { title: "take them out of the queue without a label" });
    this.remove = button("review-delete", "Delete", () => this.perform({ do: "delete_samples", samples: this.chosen() }), { class: "edge-button danger", title: "delete the samples; the learner forgets them" });
    this.undo = button("review-undo", "u undo", () => this.perform({ do: "undo" }), { title: "undo the last action" });
    this.redo = button("review-redo", "r redo", () => this.perform({ do: "redo" }), { title: "redo it" });
    this.message = make("p", { id: "review-message", class: "review-message", role: "status", "aria-live": "polite" });
    this.grid = make("ul", { id: "review-grid", class: "review-grid", "aria-label": "samples" });
    this.empty = make("p", { id: "review-empty", class: "review-empty", hidden: true });
    this.before = button("review-previous", "Previous", () => this.go({ page: this.page - 1 }));
    this.after = button("review-next", "Next", () => this.go({ page: this.page + 1 }));
    this.where = make("span", { id: "review-page" });
    this.transfer = new Transfer((text, wrong) => this.say(text, wrong));
    this.place.replaceChildren(
      make("div", { class: "edge-row review-top" }, make("div", { class: "edge-row", role: "group", "aria-label": "which samples" }, ...this.views.values()), this.filters),
      make("div", { class: "review-bar" },
        make("div", { class: "edge-row" }, this.count, this.all, this.none, this.dismiss, this.remove, this.undo, this.redo),
        make("div", { class: "edge-row" }, this.classes, this.newClass),
        this.message),
      this.grid, this.empty,
      make("nav", { class: "edge-row review-pager", "aria-label": "pages" }, this.before, this.where, this.after),
      this.transfer.element);
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
      this.say("");
    }
    Object.assign(this, { view, page });
    this.filters.hidden = view !== "labelled";
    this.load(false);
    if (this.now) this.show(this.now);
  }

  searchSoon() {
    clearTimeout(this.searching);
    this.searching = setTimeout(() => this.go({}), SEARCH_MS);
  }

  /** Ask for the page again; what somebody is busy with keeps its place if it is only because of others. */
  async load(becauseOfOthers) {
    const question = ++this.question;
    this.loadedAt = performance.now();
    this.loaded = this.now ? `${this.now.seq} ${this.now.queue}` : null;
    const busy = this.selected.size || this.grid.matches(":hover") || this.grid.contains(document.activeElement);
    const asked = [...this.selected]; // by the time of the answer there may be more
    const query = new URLSearchParams({ view: this.view, page: this.page, selected: asked.join(",") });
    if (becauseOfOthers && busy) query.set("stay", this.samples.map((sample) => sample.id).join(","));
    if (this.view === "labelled") {
      if (this.chosenClass.value) query.set("class", this.chosenClass.value);
      if (this.search.value.trim()) query.set("search", this.search.value.trim());
      if (this.doubts.checked) query.set("doubts", "1");
    }
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
    this.showGrid();
    this.where.textContent = `page ${answer.page + 1} of ${answer.pages} · ${answer.total.toLocaleString("en")} ${answer.total === 1 ? "sample" : "samples"}`;
    this.before.disabled = answer.page === 0;
    this.after.disabled = answer.page + 1 >= answer.pages;
    this.empty.hidden = this.samples.length > 0;
    this.empty.textContent = this.view === "queue"
      ? "The queue is empty. Frames of the source that would teach the learner something new wait here for a label."
      : this.search.value.trim() || this.chosenClass.value ? "No labelled sample fits." : "Nothing has a label yet. Label something on the Teach tab, or import a folder below.";
    this.showSelection();
  }

  // The grid -----------------------------------------------------------------------------------------------------------

  showGrid() {
    const classes = new Map((this.now?.classes ?? []).map((row) => [row.id, row]));
    const cells = new Map();
    for (const sample of this.samples) {
      const facts = JSON.stringify([sample, classes.get(sample.class), classes.get(sample.suggested)?.name]);
      const old = this.cells.get(sample.id);
      cells.set(sample.id, old?.facts === facts ? old : this.makeCell(sample, classes, facts, old));
    }
    this.cells = cells;
    const wanted = [...cells.values()].map((cell) => cell.element);
    const focused = this.grid.contains(document.activeElement) ? document.activeElement : null;
    // Only what differs is touched: moving an element in the page takes the focus from it.
    for (const element of [...this.grid.children]) if (!wanted.includes(element)) element.remove();
    wanted.forEach((element, index) => { if (this.grid.children[index] !== element) this.grid.insertBefore(element, this.grid.children[index] ?? null); });
    if (focused && focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true });
    else if (focused && !focused.isConnected) this.cells.get(Number(focused.closest(".review-cell")?.dataset.sample))?.box.focus({ preventScroll: true });
  }

  makeCell(sample, classes, facts, old) {
    const own = classes.get(sample.class), suggested = classes.get(sample.suggested);
    const box = make("input", { type: "checkbox", class: "review-box", value: sample.id, "aria-label": `sample ${sample.id}${own ? `, ${own.name}` : ""}` });
    box.addEventListener("click", (event) => this.touch(sample.id, box.checked, event.shiftKey));
    const picture = old?.picture ?? this.makePicture(sample);
    const face = make("label", { class: "review-face", title: `sample ${sample.id}, ${sample.origin}${sample.author ? `, by ${sample.author}` : ""}` }, box, picture);
    // By hand, because browsers differ in what a shift-click on a label does.
    face.addEventListener("click", (event) => {
      if (event.target === box) return;
      event.preventDefault();
      box.checked = !box.checked;
      this.touch(sample.id, box.checked, event.shiftKey);
    });
    const lines = [];
    if (own) lines.push(make("span", { class: "review-name", style: `--class-colour: ${own.colour}`, title: own.name }, own.name));
    else lines.push(make("span", { class: "review-note", title: "how unsure the learner is of it" }, sample.unknown ? "unknown" : `unsure ${Math.round(100 * sample.priority)} %`));
    if (sample.held_out) lines.push(make("span", { class: "review-note", title: "kept for measuring, never trained on" }, "held out"));
    if (sample.alike) lines.push(make("button", { class: "edge-button review-small review-alike", type: "button", title: "select all that look alike", onclick: () => this.select(sample.alike, true) }, `${sample.alike.length} alike`));
    if (suggested) lines.push(make("button", { class: "edge-button review-small review-fix", type: "button", title: `the samples around it are ${suggested.name}: label it so`, onclick: () => this.perform({ do: "label_samples", samples: [sample.id], class: suggested.id }) }, `? ${suggested.name}`));
    const element = make("li", { class: "review-cell", "data-sample": sample.id }, face, make("div", { class: "review-lines" }, ...lines));
    return { element, box, picture, facts };
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
    for (const button of [this.none, this.dismiss, this.remove, this.newClass.lastChild, ...this.classes.children]) button.disabled = !some;
    this.dismiss.hidden = this.view !== "queue";
    this.dismiss.textContent = some ? `Dismiss ${some}` : "Dismiss";
    this.remove.textContent = some ? `Delete ${some}` : "Delete";
    this.all.disabled = !this.samples.length;
  }

  showClasses(now) {
    if (this.seenClasses === now.classes) return;
    this.seenClasses = now.classes;
    const text = JSON.stringify(now.classes.map((row) => [row.id, row.name, row.colour]));
    if (this.shownClasses === text) return;
    this.shownClasses = text;
    this.classes.replaceChildren(...now.classes.map((row, index) => make("button", {
      class: "class-button review-class-button", type: "button", "data-class": row.id, style: `--class-colour: ${row.colour}`, title: `label the selected samples as ${row.name}`,
      onclick: () => this.label(row.id),
    }, ...(index < KEYS.length ? [make("kbd", {}, KEYS[index])] : []), make("span", { class: "class-name" }, row.name))));
    const chosen = this.chosenClass.value;
    this.chosenClass.replaceChildren(make("option", { value: "" }, "all classes"), ...now.classes.map((row) => make("option", { value: row.id }, row.name)));
    this.chosenClass.value = now.classes.some((row) => String(row.id) === chosen) ? chosen : "";
    this.showGrid();
    this.showSelection();
  }

  // Actions ------------------------------------------------------------------------------------------------------------

  chosen() {
    return [...this.selected];
  }

  label(classId) {
    if (this.selected.size) this.perform({ do: "label_samples", samples: this.chosen(), class: classId });
    else this.say("select some samples first", true);
  }

  async labelNew() {
    if (!this.selected.size) this.say("select some samples first", true);
    else if (await this.perform({ do: "label_samples_as", samples: this.chosen(), name: this.name.value })) this.name.value = "";
  }

  /** Resolves to whether it was done. */
  async perform(action) {
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
      await this.load(false);
    }
  }

  keyDown(event) {
    if (!isForTab(event, this.place) || event.repeat) return;
    const row = KEYS.includes(event.key) ? this.now?.classes[KEYS.indexOf(event.key)] : null;
    if (row) this.label(row.id);
    else if (event.key === "u") this.perform({ do: "undo" });
    else if (event.key === "r") this.perform({ do: "redo" });
    else return;
    event.preventDefault();
  }
}
