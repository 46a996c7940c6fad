// A card for every class: its key and colour, how many labels it has, and its newest pictures.
import { ask, button, keyOf, make, openDialog, setChildren } from "./common.js";

const MOST_WITH_PICTURES = 60; // classes whose cards show pictures
export const NONE_OF_THESE = "none of these"; // a class like any other, but what is taken for it is shown as unknown

export class Cards {
  constructor(teach) {
    this.teach = teach;
    this.element = make("div", { id: "class-buttons", role: "group", "aria-label": "label the picture as" });
    this.pictures = new Map(); // class id: its newest samples
    this.asked = new Map(); // class id: the row for which they were asked
  }

  show(now, last) {
    if (this.classes !== now.classes || this.last !== last) this.draw(now, last);
    this.askForPictures(now);
  }

  draw(now, last) {
    const focused = document.activeElement?.closest(".class-card")?.dataset.classId;
    // Thousands of cards take long to make: those that show what they shall stay.
    const before = new Map([...this.element.children].map((card) => [card.dataset.signature, card]));
    setChildren(this.element, now.classes.map((each) => {
      const signature = JSON.stringify([each, each.id === last]);
      return before.get(signature) ?? this.card(each, signature, last);
    }));
    if (focused) this.cardOf(focused)?.querySelector(".class-button").focus();
    this.element.classList.toggle("many", now.classes.length > MOST_WITH_PICTURES);
    [this.classes, this.last] = [now.classes, last];
  }

  card(each, signature, last) {
    const button = make("button", {
      class: `class-button${each.id === last ? " last" : ""}`, type: "button", title: `label the picture as ${each.name}; hold to record`, "data-class-id": each.id,
      // Held down, it records. A press of Enter on it has no pointer.
      onpointerdown: (event) => { if (event.button === 0) this.teach.beginBurst(each.id); },
      onclick: (event) => { if (!event.detail) this.teach.label(each.id); },
      oncontextmenu: (event) => event.preventDefault(), // a long press of a finger
    }, ...keyOf(each), make("bdi", { class: "class-name" }, each.name), make("span", { class: "class-count" }, String(each.labels)));
    const card = make("div", { class: "class-card", "data-class-id": each.id, "data-signature": signature, style: `--class-colour:${each.colour}` },
      button, make("div", { class: "card-pictures" }));
    this.fillPictures(card, each);
    return card;
  }

  cardOf(id) { return this.element.querySelector(`.class-card[data-class-id="${id}"]`); }

  // Pictures -----------------------------------------------------------------------------------------------------------

  async askForPictures(now) {
    const wanted = now.classes.slice(0, MOST_WITH_PICTURES).filter((row) => this.asked.get(row.id) !== row);
    if (!wanted.length || this.asking) return;
    this.asking = true;
    try {
      const found = await ask(`/edge/newest?classes=${wanted.map((row) => row.id).join(",")}`);
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
    place.replaceChildren(...ids.map((id) => make("button", { class: "card-picture", type: "button", "data-sample": id, "aria-label": `picture ${id} of ${each.name}: look at it, move or delete it`, onclick: () => this.enlarge(id, each) },
      make("img", { src: `/edge/sample/${id}?thing`, alt: "", draggable: "false" }))));
  }

  enlarge(id, each) {
    const perform = (action) => { dialog.close(); this.teach.perform(action); };
    const others = this.classes.filter((row) => row.id !== each.id);
    const dialog = openDialog({ id: "enlarged", "aria-labelledby": "enlarged-title" },
      make("h2", { id: "enlarged-title" }, make("bdi", {}, each.name)), make("div", { class: "review-large-picture" }, make("img", { src: `/edge/sample/${id}`, alt: `picture ${id} of ${each.name}` })),
      make("div", { class: "edge-row review-classes", role: "group", "aria-label": "move it to another class" }, others.length ? "Move to " : "",
        ...others.map((row) => make("button", { class: "class-button review-class-button", type: "button", style: `--class-colour:${row.colour}`, onclick: () => perform({ do: "label_samples", samples: [id], class: row.id }) }, make("bdi", {}, row.name)))),
      make("div", { class: "edge-row" },
        button("delete-picture", "Delete this picture", () => perform({ do: "delete_samples", samples: [id] }), { class: "edge-button danger" }),
        button(null, "Close", () => dialog.close())));
  }
}
