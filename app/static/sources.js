// Where pictures come from: three big choices while there is no source, and the same ones folded away afterwards.
import { PAGE, make } from "./common.js";
import { chosen } from "./camera.js";
import { phoneInvitation } from "./phone.js";
import { MOST_AT_ONCE } from "./pictures.js";

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

export const FIRST_CHOICE = "edgeFirstChoice"; // in the session's storage: made before the program had started

/** Three big buttons; `choose` is told camera, pictures or demonstration. */
export function choiceButtons(choose) {
  const choice = (id, name, title, sentence) => make("button", { id, class: "source-choice", type: "button", onclick: () => choose(name) },
    drawing(name), make("strong", {}, title), make("span", {}, sentence));
  return make("div", { id: "choices", class: "source-choices", role: "group", "aria-label": "where pictures come from" },
    choice("source-browser", "camera", "Camera", "Hold things up to this device's camera and name them."),
    choice("source-pictures", "pictures", "Pictures", "Teach with photographs that you have already."),
    choice("source-demonstration", "demonstration", "Try the demonstration", "Parts on a workbench. Nothing of it stays."));
}

export class Sources {
  /** `teach` performs actions, says sentences, and has the camera. */
  constructor(teach) {
    this.teach = teach;
    this.choices = choiceButtons((what) => this.choose(what));
    this.state = make("span", { id: "source-state" });
    this.cameras = make("select", { id: "camera-choice", "aria-label": "which camera", hidden: true, onchange: () => { Object.assign(chosen, { device: this.cameras.value, name: this.cameras.selectedOptions[0].text }); this.useCamera(); } });
    this.mirror = make("input", { type: "checkbox", id: "camera-mirror", onchange: () => { chosen.mirror = this.mirror.checked; this.teach.showMirror(); } });
    this.mirror.checked = chosen.mirror;
    this.mirrorLabel = make("label", { class: "source-mirror", hidden: true }, this.mirror, " mirror");
    this.change = make("button", { id: "source-change", class: "edge-button", type: "button", "aria-expanded": "false", onclick: () => this.toggle() }, "Change source");
    this.stop = make("button", { id: "source-stop", class: "edge-button", type: "button", title: "let no source run", onclick: () => this.useNone() }, "Stop");
    this.row = make("div", { class: "edge-row teach-source" }, this.state, this.cameras, this.mirrorLabel, teach.region.open, teach.region.clear, this.stop, this.change);
    this.pictures = this.pictureDialog();
    this.element = make("section", { class: "teach-sources", "aria-label": "source" }, this.row, teach.region.form, this.pictures, phoneInvitation());
    this.place = make("div", { class: "source-changing", hidden: true });
    this.element.append(this.place);
  }

  toggle(open = this.place.hidden) {
    this.place.hidden = !open;
    this.change.setAttribute("aria-expanded", String(open));
  }

  // Choosing -----------------------------------------------------------------------------------------------------------

  choose(what) { ({ camera: () => this.useCamera(), pictures: () => this.pictures.showModal(), demonstration: () => this.demonstrate() })[what]?.(); }

  /** What was chosen while the program was still starting. */
  chooseFirst() {
    const what = sessionStorage[FIRST_CHOICE];
    delete sessionStorage[FIRST_CHOICE];
    if (what) this.choose(what);
  }

  use(source, labels = "none", page = "") { return this.teach.perform({ do: "source", source, labels, page }); }

  /** `quietly`: after a reload, when nobody has pressed anything; then the camera is this page's already. */
  async useCamera(quietly = false) {
    const camera = this.teach.camera;
    if (!(await camera.start())) return;
    if (!quietly && !(await this.use("browser", "none", PAGE))) { camera.stop(); return; }
    if (!chosen.used) chosen.device = "";
    camera.begin();
    this.toggle(false);
    this.teach.endPile();
    await this.listCameras();
  }

  async useNone() {
    this.teach.camera.stop();
    this.teach.endPile();
    await this.teach.perform({ do: "close_source" });
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
    this.teach.say("the demonstration is being set up …");
    await this.teach.perform({ do: "demonstrate" }); // the page then loads itself again
  }

  // Pictures -----------------------------------------------------------------------------------------------------------

  pictureDialog() {
    const name = make("input", { id: "pictures-name", maxlength: 100, placeholder: "what they show", "aria-label": "what the pictures show", autocomplete: "off", required: true });
    const files = (id, label) => make("input", { id, type: "file", accept: "image/*", multiple: true, "aria-label": label });
    const ofClass = files("pictures-of-class", "pictures of one thing"), mixed = files("pictures-mixed", "pictures to go through");
    const dialog = make("dialog", { id: "pictures", class: "edge-dialog", "aria-label": "Pictures" });
    mixed.addEventListener("change", () => { dialog.close(); if (mixed.files.length) this.teach.lookThrough(mixed.files); mixed.value = ""; });
    const add = make("form", { class: "edge-row", onsubmit: async (event) => {
      event.preventDefault();
      const chosenFiles = [...ofClass.files];
      if (!chosenFiles.length) { ofClass.click(); return; }
      dialog.close();
      await this.teach.addPictures(chosenFiles, { name: name.value });
      name.value = ofClass.value = "";
    } }, name, ofClass, make("button", { class: "edge-button primary", type: "submit", id: "pictures-add" }, "Add"));
    this.path = make("input", { id: "source-text", placeholder: "camera number (0), rtsp://…, video file, folder, watch:FOLDER", "aria-label": "source", autocomplete: "off" });
    this.folderLabels = make("input", { type: "checkbox", id: "source-labels" });
    const other = make("form", { class: "edge-row", onsubmit: async (event) => {
      event.preventDefault();
      this.teach.camera.stop();
      dialog.close();
      await this.use(this.path.value, this.folderLabels.checked ? "folders" : "none");
    } }, this.path, make("label", {}, this.folderLabels, " sub-folders name the classes"), make("button", { class: "edge-button", id: "source-use", type: "submit" }, "Use"));
    dialog.append(
      make("h3", {}, "Pictures"),
      make("h4", {}, "Of one thing"), make("p", {}, `Name it, and choose up to ${MOST_AT_ONCE} pictures of it. Or drop them onto its card.`), add,
      make("h4", {}, "Of many things"), make("p", {}, "Look at them one after the other, and name each."), mixed,
      make("p", { class: "quiet" }, "Sorted into folders, or in a zip? Import them on the Review tab."),
      make("details", { id: "another-source" }, make("summary", {}, "Another source: a folder, a video or a camera of the computer that runs this program"), other),
      make("form", { method: "dialog" }, make("button", { class: "edge-button" }, "Close")));
    return dialog;
  }

  // Showing ------------------------------------------------------------------------------------------------------------

  /** The choices are in the picture's place while there is nothing else to show. */
  show(now, screen, pile) {
    const demonstration = now.demonstration, camera = this.teach.camera;
    const empty = !pile && !camera.running && now.source.phase === "closed" && !now.source.message && !demonstration;
    const home = empty ? screen : this.place;
    if (this.choices.parentElement !== home) home.append(this.choices);
    if (empty) this.toggle(false);
    screen.classList.toggle("choosing", empty);
    this.change.hidden = this.stop.hidden = empty || demonstration;
    this.cameras.hidden = !camera.running || !this.manyCameras;
    this.mirrorLabel.hidden = !camera.running;
    const { name, message, phase, dropped } = now.source;
    const text = pile ? pile.text : phase === "closed" && !message ? "" : `${name}: ${message}${dropped && !camera.running ? `, ${dropped} skipped` : ""}`;
    if (this.state.textContent !== text) this.state.textContent = text;
    this.state.className = pile || ["live", "closed", "ended"].includes(phase) ? "" : "warning";
    return empty;
  }
}
