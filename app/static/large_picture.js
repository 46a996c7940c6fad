// A sample of the Review tab large: what the learner says of it, and the same keys as on the grid.
import { keyOf, keyed, make, percent } from "./common.js";

export class LargePicture {
  constructor(review) {
    this.review = review;
    const button = (id, children, onclick, extra = {}) => make("button", { id, class: "edge-button", type: "button", onclick, ...extra }, ...children);
    this.picture = make("div", { class: "review-large-picture" });
    this.text = make("p", { id: "review-large-text", class: "review-large-text" });
    this.guesses = make("ol", { class: "review-large-guesses", "aria-label": "what the learner says" });
    this.classes = make("div", { class: "review-classes", role: "group", "aria-label": "label it as" });
    this.accept = button("review-large-accept", keyed("Accept the guess", "Enter"), () => review.acceptGuesses(), { class: "edge-button primary" });
    this.dialog = make("dialog", { id: "review-large", class: "edge-dialog review-large", "aria-label": "the picture, large" },
      make("div", { class: "review-large-sides" }, this.picture,
        make("div", { class: "review-large-facts" }, this.text, this.guesses, this.classes)),
      make("div", { class: "edge-row" },
        button("review-large-previous", ["←"], () => review.move(-1), { "aria-label": "previous picture" }),
        button("review-large-next", ["→"], () => review.move(1), { "aria-label": "next picture" }),
        this.accept,
        button("review-large-close", keyed("Close", "Esc"), () => this.dialog.close())));
    this.dialog.addEventListener("click", (event) => {
      if (event.target === this.dialog) this.dialog.close(); // beside it
      else if (event.detail) event.target.closest("button")?.blur();
    });
    this.dialog.addEventListener("close", () => review.cells.get(review.current)?.face.focus());
  }

  get isOpen() {
    return this.dialog.open;
  }

  /** Whether a key press is meant for the picture, and not for one of the dialog's buttons. */
  hears(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return false;
    return ![" ", "Enter"].includes(event.key) || !event.target.closest?.("button");
  }

  open(id) {
    // Keys are about the picture that is seen, not about others that were selected before.
    this.review.select([...this.review.selected], false);
    this.review.setCurrent(id);
    if (!this.dialog.isConnected) document.body.append(this.dialog);
    this.show();
    if (!this.dialog.open) this.dialog.showModal();
    document.activeElement?.blur(); // Enter accepts; it must not press the first button
  }

  /** The samples have changed: the picture that is shown now, or none. */
  refresh() {
    if (!this.isOpen) return;
    if (this.review.current === null) this.dialog.close();
    else this.show();
  }

  show() {
    const { review } = this, sample = review.samples.find((each) => each.id === review.current);
    if (!sample) return;
    const known = review.now.classById, own = known.get(sample.class), facts = JSON.stringify([sample, own, review.shownClasses]);
    if (facts === this.shown) return;
    this.shown = facts;
    if (this.picture.dataset.sample !== String(sample.id)) {
      this.picture.dataset.sample = sample.id;
      this.picture.replaceChildren(sample.image ? make("img", { src: `/edge/sample/${sample.id}`, class: sample.small ? "small" : "", alt: `sample ${sample.id}` }) : "the image is no longer kept");
    }
    this.text.replaceChildren(own ? make("span", {}, "labelled ", make("strong", { dir: "auto" }, own.name), sample.author ? ` by ${sample.author}` : "") : "no label yet",
      make("br"), `sample ${sample.id}, ${sample.origin}${sample.held_out ? ", kept for measuring" : ""}`);
    this.guesses.replaceChildren(...(sample.unknown ? [make("li", {}, "unknown: like none of the classes")] : (sample.guess ?? []).filter(([id]) => known.has(id)).map(([id, share]) => make("li", { class: "answer" },
      make("span", { class: "answer-name", dir: "auto" }, known.get(id).name),
      ...(sample.calibrated ? [make("span", { class: "answer-bar", "aria-hidden": "true" }, make("span", { style: `width: ${100 * share}%; background: ${known.get(id).colour}` })),
        make("span", { class: "answer-share" }, percent(share))] : [])))));
    this.classes.replaceChildren(...review.now.classes.map((row) => make("button", {
      class: `class-button review-class-button${row.id === sample.class ? " last" : ""}`, type: "button", style: `--class-colour: ${row.colour}`, onclick: () => review.label(row.id),
    }, ...keyOf(row), make("span", { class: "class-name", dir: "auto" }, row.name))));
    this.accept.disabled = review.view === "queue" ? !review.guessOf(sample) : !sample.suggested;
  }
}
