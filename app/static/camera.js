// This browser's camera: shown on the page as it is, while its frames go to the server as fast as that takes them.
import { PAGE, ask } from "./common.js";
import { jpeg } from "./pictures.js";

const PAUSE_MS = 100, RETRY_MS = 1000;

const REASONS = {
  NotAllowedError: "the browser did not allow the camera: allow it in the address bar, then try again",
  NotFoundError: "this browser finds no camera: plug one in, or choose another source",
  OverconstrainedError: "that camera is not there any more: choose another one",
  NotReadableError: "the camera is used by another program: end that, then try again",
};
const NO_CAMERA = "browsers give their camera only to pages on this machine or over https: open the page as 127.0.0.1, or use a camera of the computer";
const GONE = "the camera has gone: plug it in, then choose the camera again";
const TAKEN = "another page has taken the camera over: choose the camera here to take it back";

/** Which camera the person has chosen, remembered by the browser. */
export const chosen = {
  get device() { return localStorage.edgeCamera ?? ""; },
  set device(id) { localStorage.edgeCamera = id; },
  get name() { return localStorage.edgeCameraName ?? ""; },
  set name(name) { localStorage.edgeCameraName = name; },
  get used() { return "edgeCamera" in localStorage; },
};

export class BrowserCamera {
  /** `report` gets sentences for the person, `gone` is called when the camera stops by itself. */
  constructor(report, gone) {
    Object.assign(this, { report, gone, media: null, region: null });
    this.video = document.createElement("video");
    Object.assign(this.video, { id: "preview", muted: true, playsInline: true, hidden: true });
    this.video.setAttribute("aria-label", "the camera's picture");
    document.addEventListener("visibilitychange", () => this.wake());
  }

  get running() { return this.media !== null; }

  /** Open the camera and show its picture; `begin` lets the server have it. */
  async start() {
    if (this.running && this.device === chosen.device) return true;
    if (!navigator.mediaDevices?.getUserMedia) { this.report(NO_CAMERA); return false; }
    const which = chosen.device ? { deviceId: { exact: chosen.device } } : { facingMode: "environment" };
    const wanted = { width: { ideal: 640 }, height: { ideal: 480 }, frameRate: { ideal: 30 } };
    let media;
    try {
      media = await navigator.mediaDevices.getUserMedia({ video: { ...wanted, ...which } });
    } catch (error) {
      if (error.name === "OverconstrainedError" && chosen.device) { chosen.device = await this.sameByName(); return this.start(); }
      this.report(REASONS[error.name] ?? `the camera cannot be used: ${error.message}`);
      return false;
    }
    this.stop();
    this.media = media;
    chosen.device = this.device = chosen.device; // from now on it is used, also without a choice
    this.video.srcObject = media;
    this.video.play().catch(() => {}); // not waited for: a camera may take long to its first picture
    for (const track of media.getVideoTracks()) track.addEventListener("ended", () => { if (this.media === media) this.lose(GONE); });
    return true;
  }

  /** Frames go to the server from now on. */
  begin() {
    this.sending = this.media;
    this.send(this.media);
    navigator.wakeLock?.request("screen").then((lock) => { this.lock = lock; }).catch(() => {}); // a phone shall not sleep meanwhile
  }

  stop() {
    this.media?.getTracks().forEach((track) => track.stop());
    this.media = this.sending = null;
    this.video.srcObject = null;
    this.lock?.release().catch(() => {});
    this.lock = null;
  }

  lose(why) {
    this.stop();
    this.report(why);
    this.gone();
  }

  /** A phone that has slept gives the camera back only if it is asked again. */
  async wake() {
    if (document.hidden || !this.sending) return;
    const live = this.media?.getVideoTracks().some((track) => track.readyState === "live" && !track.muted);
    if (live) { this.video.play().catch(() => {}); return; }
    this.media = null;
    if (await this.start()) { this.begin(); return; }
    this.stop(); // or its last picture would go on to the server
    this.gone();
  }

  /** Some browsers give their cameras other ids every time; if none has the name either, any camera will do. */
  async sameByName() {
    const found = await this.devices();
    return found.find((each) => each.label === chosen.name && each.deviceId !== chosen.device)?.deviceId ?? "";
  }

  async devices() {
    const all = (await navigator.mediaDevices?.enumerateDevices?.().catch(() => [])) ?? [];
    return all.filter((each) => each.kind === "videoinput" && each.deviceId);
  }

  /** For as long as this is the camera in use: after a stop and a start the frames before go no further. */
  async send(media) {
    if (this.sending !== media || !media) return;
    let pause = PAUSE_MS;
    try {
      const picture = document.hidden ? null : await this.grab();
      if (picture && this.sending === media) {
        const { taken } = await ask(`/edge/camera?page=${PAGE}`, picture);
        if (taken && this.sending === media) { this.lose(TAKEN); return; }
      }
    } catch {
      pause = RETRY_MS; // the program may just be starting again
    }
    setTimeout(() => this.send(media), pause);
  }

  /** What the video shows at this moment. */
  grab() {
    const { videoWidth: width, videoHeight: height } = this.video;
    const [, , across, down] = this.region ?? [0, 0, 1, 1];
    return width ? jpeg(this.video, width, height, Math.max(width * across, height * down)) : null;
  }
}
