// The Classes tab: rename, merge and delete classes.
import { button, confirmed, counted, isForTab, isShown, make, perform, setChildren } from "./common.js";
import { backAndForth } from "./history.js";

export class Classes {
  constructor(place) {
    this.place = place;
    this.message = make("p", { id: "classes-message", class: "tab-message", role: "status", "aria-live": "polite" });
    this.body = make("tbody");
    this.empty = make("p", { class: "empty" },
      "There is no class yet. Show something on the Teach tab, and give it a name.");
    this.table = make("table", { id: "classes-table", class: "edge-table stacked" },
      make("thead", {}, make("tr", {}, ...["Key", "Name", "Labels", "Held out", "Change"].map((title) => make("th", { scope: "col" }, title)))),
      this.body);
    this.place.replaceChildren(
      make("div", { class: "edge-row" }, ...backAndForth("classes-", (action) => this.perform(action), (event) => isForTab(event, this.place))),
      this.message, this.empty, this.table);
  }

  perform(action) { return perform(action, this.message); }

  // Showing the state --------------------------------------------------------------------------------------------------

  show(now) {
    this.now = now;
    if (!isShown(this.place)) return;
    this.empty.hidden = now.classes.length > 0;
    this.table.hidden = !now.classes.length;
    const before = new Map([...this.body.children].map((row) => [Number(row.dataset.class), row]));
    setChildren(this.body, now.classes.map((known) => {
      const row = before.get(known.id), facts = JSON.stringify([known, now.classes.length > 1]);
      // What somebody is about to change stays theirs until they are done.
      return row?.dataset.facts === facts || row?.matches(":focus-within, :has([aria-invalid])") ? row : this.makeRow(known, facts);
    }));
  }

  makeRow(known, facts) {
    const name = make("input", {
      class: "classes-name", autocomplete: "off", value: known.name, title: known.name, "aria-label": `name of ${known.name}`,
      onchange: () => this.rename(known.id, name),
    });
    name.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      name.value = this.now.classById.get(known.id).name;
      name.removeAttribute("aria-invalid");
    });
    const cell = (title, ...content) => make("td", { "data-label": title }, ...content);
    const tool = (what, does, action, kind) => button(null, `${what}…`, () => action.call(this, this.now.classById.get(known.id)),
      { class: `edge-button ${kind}`, "aria-label": does });
    const merge = tool("Merge", `merge ${known.name} into another class`, this.merge, "classes-merge");
    merge.disabled = this.now.classes.length < 2;
    return make("tr", { "data-class": known.id, "data-facts": facts },
      cell("Key", make("kbd", { class: "classes-key", style: `--class-colour:${known.colour}` }, known.key)),
      cell("Name", name),
      cell("Labels", known.labels.toLocaleString("en")),
      cell("Held out", known.held_out.toLocaleString("en")),
      make("td", { class: "classes-tools narrow" }, merge, tool("Delete", `delete ${known.name}`, this.remove, "danger classes-delete")));
  }

  // Actions ------------------------------------------------------------------------------------------------------------

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
    const choice = make("select", { id: "classes-merge-into", "aria-label": `the class that ${from.name} becomes part of` }, ...others.map((row) => make("option", { value: row.id }, row.name)));
    const text = `Its ${counted(from.labels, "label")} will be of that class, and ${from.name} is gone. Press u to undo.`;
    const question = [make("label", {}, `Merge ${from.name} into `, choice), make("br"), text];
    if (await confirmed(question, "Merge")) this.perform({ do: "merge_classes", class: from.id, into: Number(choice.value) });
  }

  async remove(row) {
    const text = `Deletes the class ${row.name} and its ${counted(row.labels, "labelled sample")}. The learner forgets it. Undo brings it back as long as the images are kept.`;
    if (await confirmed(text, "Delete")) this.perform({ do: "delete_class", class: row.id });
  }
}
