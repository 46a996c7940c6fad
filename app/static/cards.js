// A card for every class: its key and colour, how many labels it has, its newest pictures, and how often it is recognised.
import { counted, get, keyOf, make } from "./common.js";

const MOST_WITH_PICTURES = 60; // classes whose cards show pictures
const HEALTH_MS = 2000;
export const NONE_OF_THESE = "none of these"; // a class like any other, but what is taken for it is shown as unknown

export class Cards {
  constructor(teach) {
    this.teach = teach;
    this.element = make("div", { id: "class-buttons", role: "group", "aria-label": "label the picture as" });
    this.pictures = new Map(); // class id: its newest samples
    this.asked = new Map(); // class id: the row for which they were asked
    this.rows = new Map(); // class id: how it is doing
    this.table = make("tbody", {});
    const head = ["class", "labels", "right", "taken for", "what to do"].map((text) => make("th", { scope: "col" }, text));
    this.health = make("details", { id: "health", hidden: true }, make("summary", {}, "How each class is doing"),
      make("table", { class: "health-table" }, make("thead", {}, make("tr", {}, ...head)), this.table));
    this.enlarged = make("dialog", { id: "enlarged", class: "edge-dialog", "aria-label": "a picture of a class" });
  }

  show(now, last) {
    if (this.classes !== now.classes || this.last !== last) this.draw(now, last);
    this.askForPictures(now);
    this.askForHealth(now);
  }

  draw(now, last) {
    const before = this.element.children;
    // Thousands of cards take long to make: those that show what they shall stay.
    now.classes.forEach((each, index) => {
      const signature = JSON.stringify([each, each.id === last]);
      const old = before[index];
      if (old?.dataset.signature === signature) return;
      const card = this.card(each, signature, last);
      const focused = old?.contains(document.activeElement) && old.dataset.classId === card.dataset.classId;
      if (old) old.replaceWith(card); else this.element.append(card);
      if (focused) card.querySelector(".class-button").focus();
    });
    while (before.length > now.classes.length) this.element.lastChild.remove();
    this.element.classList.toggle("many", now.classes.length > MOST_WITH_PICTURES);
    [this.classes, this.last] = [now.classes, last];
  }

  card(each, signature, last) {
    const button = make("button", {
      class: `class-button${each.id === last ? " last" : ""}`, type: "button", title: `label the picture as ${each.name}`, "data-class-id": each.id,
      onclick: () => this.teach.label(each.id),
    }, ...keyOf(each), make("bdi", { class: "class-name" }, each.name), make("span", { class: "class-count" }, String(each.labels)));
    const card = make("div", { class: "class-card", "data-class-id": each.id, "data-signature": signature, style: `--class-colour:${each.colour}` },
      button, make("div", { class: "card-pictures" }), make("span", { class: "card-right" }));
    this.takeDrops(card, each);
    this.fillPictures(card, each);
    this.fillRight(card, each.id);
    return card;
  }

  takeDrops(card, each) {
    card.addEventListener("dragover", (event) => { event.preventDefault(); card.classList.add("dropping"); });
    card.addEventListener("dragleave", () => card.classList.remove("dropping"));
    card.addEventListener("drop", (event) => {
      event.preventDefault();
      card.classList.remove("dropping");
      this.teach.addPictures([...event.dataTransfer.files], { id: each.id, name: each.name });
    });
  }

  cardOf(id) { return this.element.querySelector(`.class-card[data-class-id="${id}"]`); }

  // Pictures -----------------------------------------------------------------------------------------------------------

  async askForPictures(now) {
    const wanted = now.classes.slice(0, MOST_WITH_PICTURES).filter((row) => this.asked.get(row.id) !== row);
    if (!wanted.length || this.asking) return;
    this.asking = true;
    try {
      const found = await get(`/edge/newest?classes=${wanted.map((row) => row.id).join(",")}`);
      for (const row of wanted) {
        this.asked.set(row.id, row);
        this.pictures.set(row.id, found[row.id] ?? []);
        const card = this.cardOf(row.id);
        if (card) this.fillPictures(card, row);
      }
    } catch { /* asked again with the next state */ } finally { this.asking = false; }
  }

  fillPictures(card, each) {
    const place = card.querySelector(".card-pictures"), ids = this.pictures.get(each.id) ?? [];
    if (place.dataset.ids === String(ids)) return;
    place.dataset.ids = String(ids);
    place.replaceChildren(...ids.map((id) => make("button", { class: "card-picture", type: "button", "data-sample": id, "aria-label": `picture ${id} of ${each.name}: look at it, or delete it`, onclick: () => this.enlarge(id, each) },
      make("img", { src: `/edge/sample/${id}`, alt: "", draggable: "false" }))));
  }

  enlarge(id, each) {
    const remove = make("button", { id: "delete-picture", class: "edge-button danger", type: "button", onclick: () => { this.enlarged.close(); this.teach.perform({ do: "delete_samples", samples: [id] }); } }, "Delete this picture");
    this.enlarged.replaceChildren(make("h3", {}, make("bdi", {}, each.name)), make("img", { src: `/edge/sample/${id}`, alt: `picture ${id} of ${each.name}` }),
      make("div", { class: "edge-row" }, remove, make("button", { class: "edge-button", type: "button", onclick: () => this.enlarged.close() }, "Close")));
    this.enlarged.showModal();
  }

  // How they are doing -------------------------------------------------------------------------------------------------

  async askForHealth(now) {
    const key = JSON.stringify(now.verdict) + now.version;
    if (this.healthOf === key || performance.now() - (this.healthAt ?? -HEALTH_MS) < HEALTH_MS) return;
    [this.healthOf, this.healthAt] = [key, performance.now()];
    const { classes } = await get("/edge/health").catch(() => ({ classes: [] }));
    this.rows = new Map(classes.map((row) => [row.id, row]));
    for (const row of classes) { const card = this.cardOf(row.id); if (card) this.fillRight(card, row.id); }
    this.health.hidden = classes.length < 2;
    const name = (id) => now.classById.get(id)?.name ?? "";
    const most = Math.max(1, ...classes.map((row) => row.labels));
    const places = new Map(now.classes.map((row, place) => [row.id, place]));
    classes.sort((one, other) => places.get(one.id) - places.get(other.id));
    this.table.replaceChildren(...classes.map((row) => make("tr", {},
      make("th", { scope: "row" }, make("bdi", {}, row.name)),
      make("td", {}, make("meter", { min: 0, max: most, value: row.labels, "aria-label": counted(row.labels, "label") }), ` ${row.labels}`),
      make("td", {}, row.samples ? `${row.right} of ${row.samples}` : "not yet"),
      make("td", {}, make("bdi", {}, name(row.taken_for))), make("td", {}, row.advice || "nothing"))));
  }

  fillRight(card, id) {
    const row = this.rows.get(id);
    card.querySelector(".card-right").textContent = row?.samples ? `${row.right} of ${row.samples} right` : "";
  }
}
