// Import and export of labelled samples, on the Review tab.
import { act, bytes, hear, make } from "./common.js";

const LARGEST_UPLOAD = 500e6; // as the server says, too

export class Transfer {
  constructor(say) {
    this.say = say;
    this.mine = null; // the export that this page started, and will fetch
    this.path = make("input", { id: "import-path", placeholder: "/path/of/a/folder or a.zip", "aria-label": "folder or zip on the machine where the program runs", autocomplete: "off" });
    this.file = make("input", { id: "import-file", type: "file", accept: ".zip,application/zip", "aria-label": "zip file of this computer", onchange: () => this.upload() });
    this.start = make("button", { id: "import-start", class: "edge-button", type: "submit" }, "Import");
    this.exporting = make("button", { id: "export-start", class: "edge-button", type: "button", onclick: () => this.export() }, "Export a zip");
    this.cancel = make("button", { id: "transfer-cancel", class: "edge-button", type: "button", hidden: true, onclick: () => this.perform({ do: "cancel_transfer" }) }, "Cancel");
    this.link = make("a", { id: "export-link", class: "edge-button", href: "/edge/export.zip", download: "edge-hpcr-samples.zip", hidden: true }, "Download the zip");
    this.bar = make("progress", { id: "transfer-progress", hidden: true, "aria-label": "progress" });
    this.text = make("span", { id: "transfer-text", role: "status", "aria-live": "polite" });
    this.reasons = make("ul", { id: "transfer-reasons", class: "review-reasons" });
    this.element = make("details", { id: "review-transfer", class: "review-transfer" },
      make("summary", {}, "Import and export"),
      make("p", {}, "An import takes a folder, or a zip, that holds a folder with images for each class. What is here already stays as it is."),
      make("form", { class: "edge-row", onsubmit: (event) => { event.preventDefault(); this.perform({ do: "import", path: this.path.value }); } },
        make("span", {}, "Folder on the program's machine"), this.path, this.start),
      make("div", { class: "edge-row" }, make("label", { for: "import-file" }, `Zip of this computer, up to ${bytes(LARGEST_UPLOAD)}`), this.file),
      make("div", { class: "edge-row" }, make("span", {}, "All labelled samples"), this.exporting, this.link),
      make("div", { class: "edge-row review-progress" }, this.bar, this.text, this.cancel), this.reasons);
  }

  show(job) {
    const text = JSON.stringify(job);
    if (this.shown === text) return;
    this.shown = text;
    const running = job !== null && ["uploading", "running"].includes(job.phase);
    for (const control of [this.start, this.file, this.exporting]) control.disabled = running;
    this.cancel.hidden = this.bar.hidden = !running;
    this.link.hidden = !job?.ready;
    if (!job) return;
    if (running) this.element.open = true;
    if (job.total) Object.assign(this.bar, { max: job.total, value: Math.min(job.done, job.total) });
    else this.bar.removeAttribute("value");
    this.text.textContent = running ? sentence(job) : `${job.kind === "import" ? "Import" : "Export"} of ${job.name}: ${job.message}`;
    this.text.classList.toggle("warning", job.phase === "failed");
    this.reasons.replaceChildren(...job.reasons.map((reason) => make("li", {}, reason)));
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
    this.say(`${file.name} has arrived: its progress is below the samples`);
    hear(answer.state);
  }
}

function sentence(job) {
  if (job.phase === "uploading") return `uploading ${job.name}: ${bytes(job.done)}${job.total ? ` of ${bytes(job.total)}` : ""}`;
  const done = job.total ? `${job.done.toLocaleString("en")} of ${job.total.toLocaleString("en")}` : "looking at it …";
  return `${job.kind === "import" ? "importing" : "exporting"} ${job.name}: ${done}`;
}
