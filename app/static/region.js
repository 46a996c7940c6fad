// The part of the picture that is looked at: a rectangle drawn on it. It belongs to the source, not to the page.
import { button, make } from "./common.js";

const within = (share) => Math.min(1, Math.max(0, share));

export class RegionFrame {
  /** `teach` has the screen with the picture, and performs actions. */
  constructor(teach) {
    this.teach = teach;
    this.start = null; // where the rectangle that is being drawn begins
    this.outline = make("div", { id: "region", hidden: true });
    this.open = button("region-draw", "Crop …", () => this.toggle(), { "aria-expanded": "false", title: "learn and answer only what is inside a rectangle" });
    this.clear = button("region-clear", "Whole picture", () => this.send(null), { title: "learn and answer the whole picture again" });
    this.hint = make("p", { id: "region-hint", class: "edge-row", hidden: true }, "Draw a rectangle on the picture.", button(null, "Cancel", () => this.toggle(false)));
  }

  /** Listen to the pointer on the picture. */
  watch(screen) {
    this.screen = screen;
    screen.addEventListener("pointerdown", (event) => {
      if (this.hint.hidden || !(this.start = this.point(event))) return;
      event.preventDefault();
      screen.setPointerCapture(event.pointerId);
    });
    screen.addEventListener("pointermove", (event) => { if (this.start) this.place(this.drawn(event)); });
    screen.addEventListener("pointerup", (event) => {
      if (!this.start) return;
      const region = this.drawn(event);
      this.start = null;
      this.send(region);
    });
    screen.addEventListener("pointercancel", () => { this.start = null; });
    document.addEventListener("keydown", (event) => { if (event.key === "Escape" && !this.hint.hidden) this.toggle(false); });
    window.addEventListener("resize", () => this.place(this.teach.now?.source.region));
  }

  toggle(open = this.hint.hidden) {
    this.hint.hidden = !open;
    this.start = null;
    this.open.setAttribute("aria-expanded", String(open));
    this.screen.classList.toggle("drawing", open);
  }

  async send(region) {
    const done = await this.teach.perform({ do: "set_region", source: this.teach.now.source.name, region });
    if (done) this.toggle(false);
    else this.place(this.teach.now.source.region);
  }

  show(now, visible) {
    this.open.hidden = !visible;
    this.clear.hidden = !visible || !now.source.region;
    if (!visible && !this.hint.hidden) this.toggle(false);
    if (!this.start) this.place(visible ? now.source.region : null);
  }

  // Where things are on the screen -------------------------------------------------------------------------------------

  /** The picture without the bars beside it, in pixels of the screen; null while there is none. */
  area() {
    const video = this.teach.camera.video, shown = video.hidden ? this.teach.picture : video;
    const width = shown.videoWidth ?? shown.naturalWidth, height = shown.videoHeight ?? shown.naturalHeight;
    if (shown.hidden || !width || !height) return null;
    const scale = Math.min(shown.clientWidth / width, shown.clientHeight / height);
    return {
      left: (shown.clientWidth - width * scale) / 2, top: (shown.clientHeight - height * scale) / 2,
      width: width * scale, height: height * scale,
    };
  }

  /** The pointer's place as shares of the picture. */
  point(event) {
    const area = this.area();
    if (!area) return null;
    const box = this.screen.getBoundingClientRect();
    return [within((event.clientX - box.left - this.screen.clientLeft - area.left) / area.width), within((event.clientY - box.top - this.screen.clientTop - area.top) / area.height)];
  }

  drawn(event) {
    const end = this.point(event) ?? this.start;
    const [left, top] = [0, 1].map((side) => Math.min(this.start[side], end[side]));
    return [left, top, Math.abs(end[0] - this.start[0]), Math.abs(end[1] - this.start[1])];
  }

  place(region) {
    const area = region ? this.area() : null;
    this.outline.hidden = !area;
    if (!area) return;
    const [left, top, width, height] = region;
    Object.assign(this.outline.style, {
      left: `${area.left + left * area.width}px`, top: `${area.top + top * area.height}px`,
      width: `${width * area.width}px`, height: `${height * area.height}px`,
    });
  }
}
