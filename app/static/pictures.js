// Pictures on their way to the server: one at a time for a label or an answer, and many by the dialog *Pictures*.
import { act, ask, button, closeButton, counted, make, state, tell } from "./common.js";

const LONGEST_SIDE = 512, SMALL_SIDE = 64; // what the server would keep of it
const LARGEST_UPLOAD = 500e6; // as the server says, too

/** Draws at once, so that it is this very frame; resolves to a JPEG, or a PNG where every pixel counts. `longest` is the
 * longer side of the part that the server will cut out. */
export function jpeg(source, width, height, longest = Math.max(width, height)) {
  const scale = Math.min(1, LONGEST_SIDE / longest);
  const canvas = document.createElement("canvas");
  Object.assign(canvas, { width: Math.max(1, Math.round(width * scale)), height: Math.max(1, Math.round(height * scale)) });
  canvas.getContext("2d").drawImage(source, 0, 0, canvas.width, canvas.height);
  const small = Math.max(canvas.width, canvas.height) <= SMALL_SIDE;
  return new Promise((resolve, reject) => canvas.toBlob(
    (blob) => (blob ? resolve(blob) : reject(new Error("this picture cannot be read"))), small ? "image/png" : "image/jpeg", 0.9));
}

/** Give the server a picture; resolves to its number and, if asked for, the answer. */
export async function bring(picture, { name = "", answered = false } = {}) {
  const query = new URLSearchParams({ name, ask: answered ? "1" : "0", room: state.now?.room ?? "" });
  return ask(`/edge/picture?${query}`, await picture);
}

export async function bringFile(file) {
  let bitmap;
  try {
    bitmap = await createImageBitmap(file);
  } catch {
    throw new Error(`${file.name} is no picture that this browser can read`);
  }
  return bring(jpeg(bitmap, bitmap.width, bitmap.height), { name: file.name, answered: true });
}

// Many of them -------------------------------------------------------------------------------------------------------

/** The files of what was dropped, with their paths: those of a folder, too. */
async function dropped(items) {
  const found = [];
  const walk = async (entry) => {
    if (entry instanceof File) { found.push([entry, entry.name]); return; }
    if (entry.isFile) {
      found.push([await new Promise((resolve, reject) => entry.file(resolve, reject)), entry.fullPath.slice(1)]);
      return;
    }
    const reader = entry.createReader();
    const some = () => new Promise((resolve, reject) => reader.readEntries(resolve, reject));
    for (let part = await some(); part.length; part = await some())
      for (const each of part) await walk(each);
  };
  // All entries first: they last only for this moment.
  for (const entry of [...items].map((item) => item.webkitGetAsEntry() ?? item.getAsFile()).filter(Boolean)) await walk(entry);
  return found;
}

/** The dialog: drop or choose pictures, a folder or a zip; see what was found; take it. */
class Pictures {
  constructor() {
    const files = (id, kind) => make("input", { id, type: "file", multiple: true, hidden: true, "aria-label": "pictures", ...kind, onchange: (event) => this.chosen(event.target) });
    const any = files("pictures-files", { accept: "image/*,.zip,application/zip" }), folder = files("pictures-folder", { webkitdirectory: true });
    this.bar = make("progress", { id: "import-progress", "aria-label": "progress" });
    this.text = make("span", { id: "transfer-text", role: "status", "aria-live": "polite" });
    this.take = button("import-take", "", () => this.act({ do: "take_import", number: this.job.number }), { class: "edge-button primary" });
    this.cancel = button("import-cancel", "Cancel", () => this.act({ do: "cancel_import" }));
    this.review = button("pictures-review", "Label them on Review", () => { this.dialog.close(); document.getElementById("tab-review-button")?.click(); }, { class: "edge-button primary" });
    this.lines = make("ul", { class: "edge-list" });
    this.progress = make("div", { class: "review-progress", hidden: true },
      make("div", { class: "edge-row" }, this.bar, this.text, this.take, this.cancel, this.review), this.lines);
    this.message = make("p", { id: "pictures-message", role: "status", "aria-live": "polite" });
    this.drop = make("div", { id: "pictures-drop" },
      make("p", {}, make("strong", {}, "Drop pictures, a folder or a zip here")),
      make("div", { class: "edge-row" }, button("pictures-choose", "Choose pictures or a zip …", () => any.click(), { class: "edge-button primary" }), button("pictures-choose-folder", "Choose a folder …", () => folder.click())));
    this.dialog = make("dialog", { id: "pictures", class: "edge-dialog", "aria-labelledby": "pictures-title" },
      make("h2", { id: "pictures-title" }, "Pictures"), this.drop, any, folder,
      make("p", { class: "quiet" }, "Folders become classes. Pictures without a folder wait for a label on Review."),
      this.message, this.progress, closeButton());
    state.listeners.push((now) => this.show(now));
  }

  open() {
    if (!this.dialog.isConnected) document.body.append(this.dialog);
    if (this.dialog.open) return;
    tell(this.message, "");
    if (state.now) this.show(state.now);
    this.dialog.showModal();
  }

  async act(action) {
    tell(this.message, "");
    await act(action).catch((error) => tell(this.message, error.message, true));
  }

  chosen(input) {
    this.upload([...input.files].map((file) => [file, file.webkitRelativePath || file.name]));
    input.value = "";
  }

  async upload(files) {
    const size = files.reduce((sum, [file]) => sum + file.size, 0);
    if (!files.length) return;
    if (size > LARGEST_UPLOAD) { tell(this.message, "These are larger than 500 MB: run python -m edge_hpcr samples W import PATH on the server.", true); return; }
    tell(this.message, `Uploading ${counted(files.length, "file")} …`);
    const form = new FormData();
    for (const [file, path] of files) form.append("files", file, path);
    try {
      await ask("/edge/import", form);
      tell(this.message, "");
    } catch (error) {
      tell(this.message, error instanceof TypeError ? "The upload broke off: nothing was imported." : error.message, true);
    }
  }

  show(now) {
    const job = now.import, text = JSON.stringify([job, now.queue > 0]);
    if (!job || this.shown === text) return;
    Object.assign(this, { job, shown: text });
    const running = ["looking", "running"].includes(job.phase), asking = job.phase === "asking";
    this.progress.hidden = false;
    this.bar.hidden = !running;
    this.cancel.hidden = !running && !asking;
    this.take.hidden = !asking;
    this.review.hidden = job.phase !== "done" || !now.queue;
    if (job.total) Object.assign(this.bar, { max: job.total, value: job.done });
    else this.bar.removeAttribute("value");
    const done = job.total ? `${job.done.toLocaleString("en")} of ${job.total.toLocaleString("en")} imported` : "importing …";
    const said = { looking: "looking …", asking: job.found.text, running: done };
    this.text.textContent = `${job.name}: ${said[job.phase] ?? job.message}`;
    this.text.classList.toggle("warning", job.phase === "failed");
    this.lines.replaceChildren(...(asking ? [job.found.classes] : job.reasons).map((line) => make("li", {}, line)));
    if (asking) this.take.textContent = `Import ${counted(job.found.pictures, "picture")}`;
  }
}

let pictures = null;
export function openPictures() {
  pictures ??= new Pictures();
  pictures.open();
}

// Files that are dropped anywhere on the page mean this dialog: the browser would leave the page and show them.
document.addEventListener("dragover", (event) => {
  if (!event.dataTransfer?.types.includes("Files")) return;
  event.preventDefault();
  openPictures();
  pictures.drop.classList.add("over");
});
document.addEventListener("drop", async (event) => {
  if (!event.dataTransfer?.types.includes("Files")) return;
  event.preventDefault();
  openPictures();
  pictures.drop.classList.remove("over");
  pictures.upload(await dropped(event.dataTransfer.items));
});
