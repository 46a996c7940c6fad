// Pictures on their way to the server: made as small as it keeps them, and given a number by which they can be labelled.
import { state } from "./common.js";

const LONGEST_SIDE = 512, SMALL_SIDE = 64; // what the server would keep of it
export const MOST_AT_ONCE = 100;

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
export async function bring(picture, { name = "", ask = false } = {}) {
  const query = new URLSearchParams({ name, ask: ask ? "1" : "0", room: state.now?.room ?? "" });
  const response = await fetch(`/edge/picture?${query}`, { method: "POST", body: await picture });
  const answer = await response.json().catch(() => ({ error: `the server answered ${response.status}` }));
  if (answer.error) throw new Error(answer.error);
  return answer;
}

export async function bringFile(file, ask = false) {
  let bitmap;
  try {
    bitmap = await createImageBitmap(file);
  } catch {
    throw new Error(`${file.name} is no picture that this browser can read`);
  }
  return bring(jpeg(bitmap, bitmap.width, bitmap.height), { name: file.name, ask });
}

/** The numbers of those files that are pictures, and the names of the others. */
export async function bringFiles(files) {
  const numbers = [], bad = [];
  for (const file of [...files].slice(0, MOST_AT_ONCE))
    try { numbers.push((await bringFile(file)).number); } catch (error) { bad.push(error.message); }
  return { numbers, bad, left: Math.max(0, files.length - MOST_AT_ONCE) };
}

/** Pictures that are looked at one after the other; each is asked about when it is its turn, since the learner learns meanwhile. */
export class Pile {
  constructor(files, changed) {
    this.files = [...files];
    this.changed = changed;
    this.at = -1;
    this.next();
  }

  get over() { return this.at >= this.files.length; }
  get text() { return `picture ${this.at + 1} of ${this.files.length}: ${this.files[this.at]?.name ?? ""}`; }

  next() {
    if (this.url) URL.revokeObjectURL(this.url);
    this.at += 1;
    this.answer = null;
    const file = this.files[this.at];
    if (!file) { this.url = null; this.changed(); return; }
    this.url = URL.createObjectURL(file);
    this.number = bringFile(file, true).then((answer) => { this.answer = answer; this.changed(); return answer.number; });
    this.number.catch((error) => { this.changed(error.message); });
    this.changed();
  }
}
