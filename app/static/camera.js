// This browser's camera: its frames go to the server one at a time, as fast as the server takes them.

const LONGEST_SIDE = 512; // what the server would keep of it
const QUALITY = 0.9, PAUSE_MS = 100, RETRY_MS = 1000, STARTING_MS = 5000;

const REASONS = {
  NotAllowedError: "the browser did not allow the camera: allow it in the address bar, then try again",
  NotFoundError: "this browser finds no camera: plug one in, or choose another source",
  NotReadableError: "the camera is used by another program: end that, then try again",
};

export class BrowserCamera {
  constructor(report) {
    this.report = report;
    this.media = null;
  }

  get running() { return this.media !== null; }

  /** Not yet known to the server, perhaps. */
  get justStarted() { return performance.now() - this.startedAt < STARTING_MS; }

  async start() {
    if (this.running) return true;
    if (!navigator.mediaDevices?.getUserMedia) {
      this.report("browsers give their camera only to pages on this machine or over https: open the page as 127.0.0.1, or use a camera of the computer");
      return false;
    }
    try {
      this.media = await navigator.mediaDevices.getUserMedia({ video: { width: { ideal: 640 }, height: { ideal: 480 }, facingMode: "environment" } });
    } catch (error) {
      this.report(REASONS[error.name] ?? `the camera cannot be used: ${error.message}`);
      return false;
    }
    this.startedAt = performance.now();
    this.video = document.createElement("video");
    Object.assign(this.video, { muted: true, playsInline: true, srcObject: this.media });
    await this.video.play().catch(() => {});
    for (const track of this.media.getVideoTracks())
      track.addEventListener("ended", () => { this.stop(); this.report("the camera has gone: plug it in, then press the button again"); });
    this.canvas = document.createElement("canvas");
    this.send(this.media);
    return true;
  }

  stop() {
    this.media?.getTracks().forEach((track) => track.stop());
    this.media = null;
  }

  /** For as long as this is the camera in use: after a stop and a start the frames before go no further. */
  async send(media) {
    if (this.media !== media) return;
    let pause = PAUSE_MS;
    try {
      const picture = await this.grab();
      if (picture) {
        const response = await fetch("/edge/camera", { method: "POST", body: picture });
        if (!response.ok) throw new Error(String(response.status));
      }
    } catch {
      pause = RETRY_MS; // the program may just be starting again
    }
    setTimeout(() => this.send(media), pause);
  }

  grab() {
    const { videoWidth: width, videoHeight: height } = this.video;
    if (!width) return null;
    const scale = Math.min(1, LONGEST_SIDE / Math.max(width, height));
    Object.assign(this.canvas, { width: Math.round(width * scale), height: Math.round(height * scale) });
    this.canvas.getContext("2d").drawImage(this.video, 0, 0, this.canvas.width, this.canvas.height);
    return new Promise((resolve) => this.canvas.toBlob(resolve, "image/jpeg", QUALITY));
  }
}
