// Run a model on raw images with onnxruntime-node: node clients_node.js PACKAGES REQUEST; the request is a JSON file
// [{model, images, count, height, width}], the answer JSON on stdout, a picture at a time.
const { readFileSync } = require("fs");
const ort = require(`${process.argv[2]}/node_modules/onnxruntime-node`);

async function run({ model, images, count, height, width }) {
  const session = await ort.InferenceSession.create(model, { intraOpNumThreads: 1 });
  const bytes = readFileSync(images);
  const size = height * width * 3;
  const found = { scores: [], similarity: [], ms: [] };
  for (let place = 0; place < count; place++) {
    const data = new Uint8Array(bytes.subarray(place * size, (place + 1) * size));
    const began = performance.now();
    const outputs = await session.run({ image: new ort.Tensor("uint8", data, [1, height, width, 3]) });
    found.ms.push(performance.now() - began);
    found.scores.push(Array.from(outputs.scores.data));
    found.similarity.push(outputs.similarity.data[0]);
  }
  return found;
}

(async () => {
  const answers = [];
  for (const request of JSON.parse(readFileSync(process.argv[3]))) answers.push(await run(request));
  process.stdout.write(JSON.stringify(answers));
})();
