// The Classes tab: make, rename, recolour, merge and delete classes.
import { act, confirmed, isForTab, isShown, keyed, make, tell } from "./common.js";
import { historyButton } from "./history.js";

export function mountClasses(place) {
  const page = new Classes(place);
  document.addEventListener("keydown", (event) => page.keyDown(event));
  return (now) => page.show(now);
}

const many = (count, one, more = `${one}s`) => `${count.toLocaleString("en")} ${count === 1 ? one : more}`;

function mergeText(from, into) {
  if (!from.labels) return `${from.name} has no labels. ${from.name} is gone; ${into.name} stays as it is. u undoes it.`;
  const become = from.labels === 1 ? "It becomes a label" : "They become labels";
  return `${from.name} has ${many(from.labels, "label")}. ${become} of ${into.name}; ${from.name} is gone. u undoes it.`;
}

function deleteText(row) {
  if (!row.labels) return `Deletes the class ${row.name}, which has no labelled samples. Undo brings it back.`;
  const held = row.held_out ? `, ${row.held_out} of them held out` : "";
  return `Deletes the class ${row.name} and its ${many(row.labels, "labelled sample")}${held}. The learner forgets it. Undo brings it back as long as the images are kept.`;
}

class Classes {
  constructor(place) {
    this.place = place;
    this.rows = new Map(); // class id: its row on the screen
    this.build();
  }

  build() {
    const button = (id, children, action, title) => make("button", { id, class: "edge-button", type: "button", title, onclick: () => this.perform(action) }, ...children);
    this.name = make("input", { id: "classes-new-name", placeholder: "name of the new class", "aria-label": "name of the new class", autocomplete: "off" });
    this.message = make("p", { id: "classes-message", class: "classes-message", role: "status", "aria-live": "polite" });
    this.body = make("tbody");
    this.empty = make("p", { class: "classes-empty" }, "There is no class yet. Give the first one a name here, or on the Teach tab while something is shown.");
    this.table = make("table", { id: "classes-table", class: "classes-table" },
      make("thead", {}, make("tr", {}, ...["Colour", "Name", "Key", "Place", "Labels", "Held out", ""].map((title) => make("th", { scope: "col" }, title)))),
      this.body);
    this.place.replaceChildren(
      make("div", { class: "edge-row" },
        make("form", { id: "classes-new", class: "edge-row classes-new", onsubmit: (event) => { event.preventDefault(); this.create(); } },
          this.name, make("button", { id: "classes-create", class: "edge-button primary", type: "submit" }, "New class")),
        button("classes-undo", keyed("Undo", "u"), { do: "undo" }, "undo the last action"), button("classes-redo", keyed("Redo", "r"), { do: "redo" }, "redo it"),
        historyButton((text, wrong) => this.say(text, wrong))),
      this.message, this.empty, this.table);
  }

  say(text, wrong) { tell(this.message, text, wrong); }

  // Showing the state --------------------------------------------------------------------------------------------------

  show(now) {
    this.now = now;
    if (!isShown(this.place)) return;
    this.empty.hidden = now.classes.length > 0;
    this.table.hidden = !now.classes.length;
    for (const [id, row] of this.rows)
      if (!now.classById.has(id)) {
        row.element.remove();
        this.rows.delete(id);
      }
    now.classes.forEach((known, index) => {
      if (!this.rows.has(known.id)) this.rows.set(known.id, this.makeRow(known.id));
      const row = this.rows.get(known.id);
      this.fill(row, known, index);
      if (this.body.children[index] !== row.element) this.body.insertBefore(row.element, this.body.children[index] ?? null);
    });
  }

  makeRow(id) {
    const known = () => this.now.classById.get(id);
    const colour = make("input", { type: "color", class: "classes-colour", onchange: () => this.perform({ do: "recolour_class", class: id, colour: colour.value }) });
    const name = make("input", { class: "classes-name", autocomplete: "off", onchange: () => this.rename(id, name) });
    name.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      name.value = known().name;
      name.removeAttribute("aria-invalid");
    });
    const cell = (title, ...content) => make("td", { "data-title": title }, ...content);
    const [labels, heldOut] = [make("span"), make("span")];
    const key = make("input", { class: "classes-key", maxlength: 1, autocomplete: "off", title: "one letter or digit; empty: the digit of its place", onfocus: () => key.select(), onchange: () => this.change(key, { do: "choose_key", class: id, key: key.value }) });
    const place = make("input", { class: "classes-place", type: "number", min: 1, onchange: () => this.change(place, { do: "move_class", class: id, place: Math.max(1, Math.round(Number(place.value)) || 1) }) });
    const merge = make("button", { class: "edge-button classes-merge", type: "button", onclick: () => this.merge(known()) }, "Merge…");
    const remove = make("button", { class: "edge-button danger classes-delete", type: "button", onclick: () => this.remove(known()) }, "Delete…");
    const element = make("tr", { "data-class": id }, cell("Colour", colour), cell("Name", name), cell("Key", key), cell("Place", place), cell("Labels", labels), cell("Held out", heldOut), make("td", { class: "classes-tools" }, merge, remove));
    return { element, colour, name, key, place, labels, heldOut, merge, remove };
  }

  fill(row, known, index) {
    const set = (element, text) => { if (element.textContent !== text) element.textContent = text; };
    // What somebody is about to change stays theirs until they are done.
    if (document.activeElement !== row.colour && row.colour.value !== known.colour) row.colour.value = known.colour.toLowerCase();
    if (document.activeElement !== row.name && !row.name.hasAttribute("aria-invalid") && row.name.value !== known.name) row.name.value = known.name;
    if (row.said !== known.name) {
      row.said = row.name.title = known.name;
      row.colour.setAttribute("aria-label", `colour of ${known.name}`);
      row.name.setAttribute("aria-label", `name of ${known.name}`);
      row.key.setAttribute("aria-label", `key of ${known.name}`);
      row.place.setAttribute("aria-label", `place of ${known.name}`);
      row.merge.setAttribute("aria-label", `merge ${known.name} into another class`);
      row.remove.setAttribute("aria-label", `delete ${known.name}`);
    }
    for (const [field, value] of [[row.key, known.key], [row.place, String(index + 1)]])
      if (document.activeElement !== field && field.value !== value) field.value = value;
    set(row.labels, known.labels.toLocaleString("en"));
    set(row.heldOut, known.held_out.toLocaleString("en"));
    row.merge.disabled = this.now.classes.length < 2;
  }

  // Actions ------------------------------------------------------------------------------------------------------------

  /** Resolves to whether it was done. */
  async perform(action) {
    try {
      this.say((await act(action)).message);
      return true;
    } catch (error) {
      this.say(error.message, true);
      return false;
    }
  }

  /** What a field of a row says; it shows afterwards what became of it, unless somebody has typed in it meanwhile. */
  async change(field, action) {
    const sent = field.value;
    await this.perform(action);
    const known = this.now.classById.get(action.class);
    if (known && field.value === sent) field.value = field.classList.contains("classes-key") ? known.key : this.now.classes.indexOf(known) + 1;
  }

  async create() {
    if (await this.perform({ do: "create_class", name: this.name.value })) this.name.value = "";
    this.name.focus();
  }

  async rename(id, input) {
    const known = this.now.classById.get(id);
    if (!known || input.value === known.name) return input.removeAttribute("aria-invalid");
    const sent = input.value;
    if (await this.perform({ do: "rename_class", class: id, name: sent })) {
      input.removeAttribute("aria-invalid");
      if (input.value === sent) input.value = this.now.classById.get(id)?.name ?? sent;
    } else input.setAttribute("aria-invalid", "true");
  }

  async merge(from) {
    const others = this.now.classes.filter((row) => row.id !== from.id);
    const choice = make("select", { id: "classes-merge-into", "aria-label": `the class that ${from.name} becomes part of`, onchange: () => say() }, ...others.map((row) => make("option", { value: row.id }, row.name)));
    const text = make("p", { id: "classes-merge-text" });
    const say = () => { text.textContent = mergeText(from, others.find((row) => row.id === Number(choice.value))); };
    say();
    const dialog = make("dialog", { class: "edge-dialog classes-dialog" },
      make("label", {}, `Merge ${from.name} into `, choice), text,
      make("form", { method: "dialog", class: "edge-row" },
        make("button", { value: "no", class: "edge-button" }, "Cancel"),
        make("button", { value: "yes", class: "edge-button danger" }, "Merge")));
    document.body.append(dialog);
    dialog.addEventListener("close", () => {
      dialog.remove();
      if (dialog.returnValue === "yes") this.perform({ do: "merge_classes", class: from.id, into: Number(choice.value) });
    });
    dialog.showModal();
  }

  async remove(row) {
    if (await confirmed(deleteText(row), "Delete")) this.perform({ do: "delete_class", class: row.id });
  }

  keyDown(event) {
    if (!isForTab(event, this.place) || event.repeat) return;
    if (event.key === "u") this.perform({ do: "undo" });
    else if (event.key === "r") this.perform({ do: "redo" });
    else return;
    event.preventDefault();
  }
}
