// Classify pictures with an exported model in a browser: onnxruntime-web (the global `ort`) and nothing else.

// [target, source]: how much each source pixel of a row counts in each pixel of the result, as lists of [place, weight].
function weights(source, target, shrinks) {
  const scale = source / target;
  return Array.from({ length: target }, (_, place) => {
    if (!shrinks) { // the two nearest; beyond the edge, the edge
      const middle = Math.min(Math.max((place + 0.5) * scale - 0.5, 0), source - 1);
      const first = Math.floor(middle);
      return [[first, 1 - (middle - first)], [Math.min(first + 1, source - 1), middle - first]];
    }
    const found = []; // the share of the area that a pixel of the result covers
    for (let at = Math.floor(place * scale); at < Math.min(source, Math.ceil((place + 1) * scale)); at++) {
      found.push([at, (Math.min(at + 1, (place + 1) * scale) - Math.max(at, place * scale)) / scale]);
    }
    return found;
  });
}

function roundHalfToEven(value) {
  const whole = Math.round(value);
  return value % 1 === 0.5 && whole % 2 ? whole - 1 : whole;
}

// An ImageData of any size as the model's input: the middle, shrunk by area or grown linearly.
// The canvas can resize, too, but every browser does it in another way.
export function resized(picture, height, width) {
  const cropRows = Math.min(picture.height, Math.max(1, roundHalfToEven(picture.width * height / width)));
  const cropColumns = Math.min(picture.width, Math.max(1, roundHalfToEven(picture.height * width / height)));
  const top = Math.floor((picture.height - cropRows) / 2);
  const left = Math.floor((picture.width - cropColumns) / 2);
  const shrinks = cropRows >= height && cropColumns >= width;
  const across = weights(cropColumns, width, shrinks);
  const down = weights(cropRows, height, shrinks);
  const rows = new Float64Array(cropRows * width * 3); // every row at the width of the result
  for (let y = 0; y < cropRows; y++) {
    for (let x = 0; x < width; x++) {
      for (const [at, weight] of across[x]) {
        const from = ((top + y) * picture.width + left + at) * 4; // RGBA
        for (let channel = 0; channel < 3; channel++) {
          rows[(y * width + x) * 3 + channel] += weight * picture.data[from + channel];
        }
      }
    }
  }
  const result = new Uint8Array(height * width * 3);
  const line = width * 3;
  for (let y = 0; y < height; y++) {
    for (let place = 0; place < line; place++) {
      let sum = 0;
      for (const [at, weight] of down[y]) sum += weight * rows[at * line + place];
      result[y * line + place] = Math.min(255, Math.max(0, roundHalfToEven(sum)));
    }
  }
  return result;
}

// The pixels of an <img> or a <video> as they are.
export function pixels(element) {
  const canvas = document.createElement("canvas");
  canvas.width = element.videoWidth || element.naturalWidth;
  canvas.height = element.videoHeight || element.naturalHeight;
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(element, 0, 0);
  return context.getImageData(0, 0, canvas.width, canvas.height);
}

async function readJson(address) {
  const answer = await fetch(address);
  if (!answer.ok) throw new Error(`${address}: the server answers ${answer.status}`);
  return answer.json();
}

async function readPicture(address) {
  const image = new Image();
  image.src = address;
  await image.decode();
  return pixels(image);
}

// An exported version: its folder, of which `address` ends with "/", holds the model and manifest.json.
export class Model {
  static async load(address) {
    const manifest = await readJson(`${address}manifest.json`);
    const session = await ort.InferenceSession.create(`${address}${manifest.file}`, { executionProviders: ["wasm"] });
    return Object.assign(new Model(), { address, manifest, session });
  }

  // Scores and similarity of one image that has the model's size.
  async outputs(image) {
    const { height, width } = this.manifest.image;
    const found = await this.session.run({ image: new ort.Tensor("uint8", image, [1, height, width, 3]) });
    return { scores: found.scores.data, similarity: found.similarity.data[0] };
  }

  async answer(picture) {
    const { height, width } = this.manifest.image;
    const { scores, similarity } = await this.outputs(resized(picture, height, width));
    const best = scores.indexOf(Math.max(...scores));
    const threshold = this.manifest.unknown_below;
    const unknown = threshold !== null && similarity < threshold;
    return { name: this.manifest.classes[best].name, score: scores[best], unknown };
  }

  // How far the answers to the golden sample are from the trainer's; throws if too far.
  async check() {
    const golden = await readJson(`${this.address}golden.json`);
    const { height, width } = this.manifest.image;
    const differences = {};
    for (const what of ["input", "image"]) {
      const picture = await readPicture(`${this.address}${golden[what]}`);
      const { scores, similarity } = await this.outputs(resized(picture, height, width));
      const apart = golden.scores.map((score, place) => Math.abs(score - scores[place]));
      differences[what] = Math.max(...apart, Math.abs(golden.similarity - similarity));
      if (!(differences[what] <= golden.tolerance[what])) {
        throw new Error(`the golden ${what} is answered otherwise than by the trainer, by ${differences[what].toFixed(4)}`);
      }
    }
    return differences;
  }
}
