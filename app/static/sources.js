// Where pictures come from: choices in the picture's place, while there is no source or when another one is wanted.
import { PAGE, button, make } from "./common.js";
import { chosen } from "./camera.js";
import { phoneInvitation } from "./phone.js";
import { openPictures } from "./pictures.js";

const SVG = "http://www.w3.org/2000/svg";
const DRAWINGS = {
  camera: "M8 18h10l4-6h20l4 6h10v34H8z M32 24a11 11 0 1 0 .01 0z M32 30a5 5 0 1 0 .01 0z",
  pictures: "M6 14h40v32H6z M14 40l10-13 8 9 5-6 9 10 M38 22a3 3 0 1 0 .01 0z M18 14V8h40v32H46",
  demonstration: "M4 44h56v8H4z M14 44V30h14v14 M40 26l8 4.6v9.2L40 44l-8-4.2v-9.2z M40 32a4 4 0 1 0 .01 0z M21 30V18l8-6",
};

function drawing(name) {
  const svg = document.createElementNS(SVG, "svg"), path = document.createElementNS(SVG, "path");
  svg.setAttribute("viewBox", "0 0 64 60");
  svg.setAttribute("aria-hidden", "true");
  path.setAttribute("d", DRAWINGS[name]);
  svg.append(path);
  return svg;
}

export class Sources {
  /** `teach` performs actions, says sentences, and has the camera. */
  constructor(teach) {
    this.teach = teach;
    this.back = button("source-keep", "Back", () => this.toggle(false));
    this.choices = make("div", { class: "source-panel" }, this.choiceButtons(), this.otherSource(), this.back);
    this.isOpen = false;
    this.state = make("span", { id: "source-state" });
    this.cameras = make("select", { id: "camera-choice", "aria-label": "which camera", hidden: true, onchange: () => { Object.assign(chosen, { device: this.cameras.value, name: this.cameras.selectedOptions[0].text }); this.useCamera(); } });
    this.change = button("source-change", "Change source", () => this.toggle(), { "aria-expanded": "false" });
    this.stop = button("source-stop", "Stop", () => this.useNone(), { title: "let no source run" });
    this.row = make("div", { class: "edge-row teach-source" }, this.state, this.cameras, teach.tryButton, teach.file, teach.region.open, teach.region.clear, this.stop, this.change);
    this.element = make("section", { class: "teach-sources", "aria-label": "source" }, this.row, teach.region.hint, phoneInvitation());
    // A camera of this page that has stopped.
    this.stopped = make("p", { id: "camera-stopped", hidden: true }, this.stoppedText = make("span"), " ", button("camera-start", "Start camera", () => this.useCamera(), { class: "edge-button primary" }));
  }

  toggle(open = !this.isOpen) {
    this.isOpen = open;
    this.change.setAttribute("aria-expanded", String(open));
    if (this.teach.now) this.teach.show(this.teach.now);
  }

  // Choosing -----------------------------------------------------------------------------------------------------------

  choiceButtons() {
    const choice = (id, name, choose, title, sentence) => make("button", { id, class: "source-choice", type: "button", onclick: choose },
      drawing(name), make("strong", {}, title), make("span", {}, sentence));
    return make("div", { id: "choices", class: "source-choices", role: "group", "aria-label": "where pictures come from" },
      choice("source-browser", "camera", () => this.useCamera(), "Camera", "Hold things up to this device's camera and name them."),
      choice("source-pictures", "pictures", openPictures, "Pictures", "Teach with pictures that you have: a folder, a zip or files."),
      choice("source-demonstration", "demonstration", () => this.demonstrate(), "Try the demonstration", "Parts on a workbench. Nothing is saved."));
  }

  use(source, labels = "none", page = "") { return this.teach.perform({ do: "source", source, labels, page }); }

  /** `quietly`: after a reload, when nobody has pressed anything; then the camera is this page's already. */
  async useCamera(quietly = false) {
    const camera = this.teach.camera;
    if (!(await camera.start())) return;
    if (!quietly && !(await this.use("browser", "none", PAGE))) { camera.stop(); return; }
    camera.begin();
    this.toggle(false);
    await this.listCameras();
  }

  async useNone() {
    this.teach.camera.stop();
    await this.use("");
  }

  async listCameras() {
    const found = await this.teach.camera.devices();
    const now = this.teach.camera.media?.getVideoTracks()[0]?.getSettings?.().deviceId ?? "";
    this.cameras.replaceChildren(...found.map((each, index) => make("option", { value: each.deviceId }, each.label || `camera ${index + 1}`)));
    if (found.some((each) => each.deviceId === now)) this.cameras.value = now;
    this.manyCameras = found.length > 1;
  }

  async demonstrate() {
    this.teach.camera.stop();
    this.teach.say("starting the demonstration …");
    await this.teach.perform({ do: "demonstrate" }); // the page then loads itself again
  }

  otherSource() {
    this.path = make("input", { id: "source-text", placeholder: "0, rtsp://…, film.mp4, /a/folder, watch:/a/folder", "aria-label": "source", autocomplete: "off" });
    this.folderLabels = make("input", { type: "checkbox", id: "source-labels" });
    const form = make("form", { class: "edge-row", onsubmit: async (event) => {
      event.preventDefault();
      this.teach.camera.stop();
      if (await this.use(this.path.value, this.folderLabels.checked ? "folders" : "none")) this.toggle(false);
    } }, this.path, make("label", {}, this.folderLabels, " sub-folders name the classes"), make("button", { class: "edge-button", id: "source-use", type: "submit" }, "Use"));
    const others = "Another source: a camera or folder on the server, a network camera, a video";
    return make("details", { id: "another-source" }, make("summary", {}, others), form);
  }

  // Showing ------------------------------------------------------------------------------------------------------------

  /** The choices are in the picture's place while there is nothing else to show, or when they are asked for. */
  show(now, screen) {
    const demonstration = now.demonstration, camera = this.teach.camera, { name, message, phase, dropped, browser } = now.source;
    const empty = !camera.running && phase === "closed" && !message && !demonstration && !now.frame?.held;
    const choosing = empty || this.isOpen;
    if (this.choices.parentElement !== screen) screen.append(this.choices, this.stopped);
    this.choices.hidden = !choosing;
    this.back.hidden = empty;
    screen.classList.toggle("choosing", choosing);
    const stopped = browser && !camera.running && phase !== "live" && !choosing && !now.frame?.held;
    this.stopped.hidden = !stopped;
    this.teach.tryButton.hidden = !now.classes.length;
    if (stopped) this.stoppedText.textContent = `The camera ${message}.`;
    screen.classList.toggle("stale", stopped);
    this.change.hidden = this.stop.hidden = empty || demonstration;
    this.cameras.hidden = !camera.running || !this.manyCameras;
    const text = phase === "closed" && !message ? "" : `${name}: ${message}${dropped && !camera.running ? `, ${dropped} skipped` : ""}`;
    if (this.state.textContent !== text) this.state.textContent = text;
    this.state.className = stopped || ["live", "closed", "ended"].includes(phase) ? "" : "warning";
    return choosing;
  }
}
