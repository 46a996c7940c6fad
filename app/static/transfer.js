// Import and export of labelled samples, on the Review tab.
import { act, bytes, hear, make } from "./common.js";

const LARGEST_UPLOAD = 500e6; // as the server says, too

export class Transfer {
  constructor(say) {
    this.say = say;
    this.mine = null; // the export that this page started, and will fetch
    this.path = make("input", { id: "import-path", placeholder: "/path/of/a/folder or a.zip", "aria-label": "folder or zip on the machine where the program runs", autocomplete: "off" });
    this.file = make("input", { id: "import-file", type: "file", accept: ".zip,application/zip", "aria-label": "zip file of this computer", onchange: () => this.upload() });
    this.start = make("button", { id: "import-start", class: "edge-button", type: "submit" }, "Look into it");
    this.job = null;
    this.exporting = make("button", { id: "export-start", class: "edge-button", type: "button", onclick: () => this.export() }, "Export a zip");
    this.cancel = make("button", { id: "transfer-cancel", class: "edge-button", type: "button", onclick: () => this.perform({ do: "cancel_transfer" }) }, "Cancel");
    this.split = make("select", { id: "import-split", "aria-label": "which split to import", onchange: () => this.perform({ do: "choose_split", number: this.job.number, split: this.split.value }) });
    this.take = make("button", { id: "import-take", class: "edge-button primary", type: "button", onclick: () => this.perform({ do: "take_import", number: this.job.number }) });
    this.undo = make("button", { id: "import-undo", class: "edge-button", type: "button", onclick: () => this.perform({ do: "undo_import", number: this.job.number }) }, "Undo this import");
    this.link = make("a", { id: "export-link", class: "edge-button", href: "/edge/export.zip", download: "edge-hpcr-samples.zip" }, "Download the zip");
    this.close = make("button", { id: "transfer-close", class: "edge-button", type: "button", "aria-label": "I have read it", onclick: () => { this.read = this.job.number; this.shown = null; this.show(this.job); } }, "×");
    this.bar = make("progress", { id: "transfer-progress", "aria-label": "progress" });
    this.text = make("span", { id: "transfer-text", role: "status", "aria-live": "polite" });
    this.reasons = make("ul", { id: "transfer-reasons", class: "review-reasons" });
    this.element = make("details", { id: "review-transfer", class: "review-transfer" },
      make("summary", {}, "Import and export"),
      make("p", {}, "An import takes a folder, or a zip, that holds a folder with images for each class. First you see what is in it. What is here already stays as it is."),
      make("form", { class: "edge-row", onsubmit: (event) => { event.preventDefault(); this.perform({ do: "import", path: this.path.value }); } },
        make("span", {}, "Folder on the program's machine"), this.path, this.start),
      make("div", { class: "edge-row" }, make("label", { for: "import-file" }, `Zip of this computer, up to ${bytes(LARGEST_UPLOAD)}`), this.file),
      make("div", { class: "edge-row" }, make("span", {}, "All labelled samples"), this.exporting));
    // With the actions, which stay on the screen: a person looks there, and not at the end of the page.
    this.progress = make("div", { id: "transfer", class: "review-progress", hidden: true },
      make("div", { class: "edge-row" }, this.bar, this.text, this.split, this.take, this.cancel, this.undo, this.link, this.close), this.reasons);
  }

  show(job) {
    const text = JSON.stringify(job);
    if (this.shown === text) return;
    this.shown = text;
    this.job = job;
    const running = job !== null && ["uploading", "looking", "running"].includes(job.phase), asking = job?.phase === "asking";
    for (const control of [this.start, this.file, this.exporting]) control.disabled = running;
    this.progress.hidden = !job || this.read === job.number;
    if (!job) return;
    this.bar.hidden = !running;
    this.cancel.hidden = !running && !asking;
    this.take.hidden = !asking;
    this.split.hidden = !asking || !job.found.splits.length;
    this.undo.hidden = !job.can_undo || running;
    this.link.hidden = !job.ready;
    this.close.hidden = running || asking;
    if (job.total) Object.assign(this.bar, { max: job.total, value: Math.min(job.done, job.total) });
    else this.bar.removeAttribute("value");
    this.text.textContent = running ? sentence(job) : asking ? `${job.name}: ${job.found.text}.` : `${job.kind === "import" ? "Import" : "Export"} of ${job.name}: ${job.message}`;
    this.text.classList.toggle("warning", job.phase === "failed");
    const lines = asking ? [job.found.classes.map(([name, count]) => `${name} ${count.toLocaleString("en")}`).join(", ") + (job.found.more_classes ? ` and ${job.found.more_classes} more classes` : "")] : job.reasons;
    this.reasons.replaceChildren(...lines.map((line) => make("li", {}, line)));
    if (asking) {
      this.take.textContent = `Import ${job.found.pictures.toLocaleString("en")} ${job.found.pictures === 1 ? "picture" : "pictures"}`;
      this.split.replaceChildren(...[...job.found.splits, "all"].map((name) => make("option", { value: name }, name === "all" ? "all of them" : `use ${name}`)));
      this.split.value = job.found.split;
      this.element.open = false;
    }
    if (job.number === this.mine && !running) {
      this.mine = null;
      if (job.ready) this.link.click();
    }
  }

  async perform(action) {
    try {
      this.say((await act(action)).message);
    } catch (error) {
      this.say(error.message, true);
    }
  }

  async export() {
    try {
      const answer = await act({ do: "export" });
      this.mine = answer.state.transfer.number;
      this.shown = null; // it may be done already
      this.show(answer.state.transfer);
    } catch (error) {
      this.say(error.message, true);
    }
  }

  async upload() {
    const file = this.file.files[0];
    this.file.value = "";
    if (!file) return;
    if (file.size > LARGEST_UPLOAD) return this.say(`${file.name} has ${bytes(file.size)}, more than ${bytes(LARGEST_UPLOAD)}: copy it to the program's machine and import it by its path`, true);
    this.say(`uploading ${file.name} …`);
    let answer;
    try {
      const response = await fetch(`/edge/import?${new URLSearchParams({ name: file.name })}`, { method: "POST", headers: { "Content-Type": "application/zip" }, body: file });
      answer = await response.json();
    } catch {
      answer = { error: `the upload of ${file.name} broke off: nothing was imported` };
    }
    if (answer.error) return this.say(answer.error, true);
    this.say("");
    hear(answer.state);
  }
}

function sentence(job) {
  if (job.phase === "uploading") return `uploading ${job.name}: ${bytes(job.done)}${job.total ? ` of ${bytes(job.total)}` : ""}`;
  if (job.phase === "looking") return `looking into ${job.name} …`;
  const done = job.total ? `${job.done.toLocaleString("en")} of ${job.total.toLocaleString("en")}` : "…";
  return `${job.kind === "import" ? "importing" : "exporting"} ${job.name}: ${done}`;
}
