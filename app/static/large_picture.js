// A sample of the Review tab large: what the learner says of it, and the same keys as on the grid.
import { button, keyed, make, sureness } from "./common.js";

export class LargePicture {
  constructor(review) {
    this.review = review;
    this.picture = make("div", { class: "review-large-picture" });
    this.text = make("p", { id: "review-large-text" });
    this.accept = button("review-large-accept", keyed("Accept the guess", "Enter"), () => review.acceptGuesses(), { class: "edge-button primary" });
    this.dialog = make("dialog", { id: "review-large", class: "edge-dialog review-large", "aria-label": "the picture, large" },
      this.picture, this.text,
      make("div", { class: "edge-row" },
        button("review-large-previous", "←", () => review.move(-1), { "aria-label": "previous picture" }),
        button("review-large-next", "→", () => review.move(1), { "aria-label": "next picture" }),
        this.accept,
        button("review-large-close", keyed("Close", "Esc"), () => this.dialog.close())));
    this.dialog.addEventListener("click", (event) => { if (event.target === this.dialog) this.dialog.close(); }); // beside it
    this.dialog.addEventListener("close", () => review.cells.get(review.current)?.face.focus());
  }

  get isOpen() { return this.dialog.open; }

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
    const known = review.now.classById, own = known.get(sample.class);
    if (this.picture.dataset.sample !== String(sample.id)) {
      this.picture.dataset.sample = sample.id;
      this.picture.replaceChildren(sample.image ? make("img", { src: `/edge/sample/${sample.id}`, class: sample.small ? "small" : "", alt: `sample ${sample.id}` }) : "the image is no longer kept");
    }
    const guesses = (sample.guess ?? []).filter(([id]) => known.has(id)).flatMap(([id, share], place) => [place ? ", " : "", make("bdi", {}, known.get(id).name), sureness(share, sample.calibrated)]);
    this.text.replaceChildren(...(own ? ["labelled ", make("strong", { dir: "auto" }, own.name)] : ["no label yet"]),
      "; the learner says ", ...(sample.unknown ? ["unknown: like none of the classes"] : guesses.length ? guesses : ["…"]), make("br"),
      `sample ${sample.id}, ${sample.origin}${sample.held_out ? ", kept for measuring" : ""}`);
    this.accept.disabled = review.view !== "queue" || !review.guessOf(sample);
  }
}
