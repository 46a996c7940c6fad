// Units of the page's scripts, without a page: `node --test tests/scripts`; tests/test_app_scripts.py runs them.
import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";

globalThis.sessionStorage = {};
globalThis.localStorage = {};
globalThis.location = { reload() { reloads += 1; } };
globalThis.document = { addEventListener() {}, createElement: () => element(), querySelector: () => null };
globalThis.window = { addEventListener() {} };
let reloads = 0;

/** As much of an element as a unit needs. */
function element() {
  return { attributes: {}, children: [], style: {}, setAttribute(name, value) { this.attributes[name] = value; }, addEventListener() {}, append(...more) { this.children.push(...more); } };
}

const common = await import("../../app/static/common.js");
const { RegionFrame } = await import("../../app/static/region.js");

const row = (id, more = {}) => ({ id, name: `class ${id}`, ...more });
const answer = (classes, more = {}) => ({ version: "v-1", whole: false, classes, room: "own", ...more });

beforeEach(() => { common.state.now = null; common.state.version = ""; reloads = 0; });

test("how sure an answer is stands there only if it was measured", () => {
  assert.equal(common.sureness(0.93, true), " 93 %");
  assert.equal(common.sureness(0.93, false), "");
});

test("what has changed is put into the classes that are known already", () => {
  common.hear(answer([row(1), row(2)], { whole: true }));
  common.hear(answer([row(2, { name: "renamed" }), row(3)]));
  assert.deepEqual(common.state.now.classes.map(({ name }) => name), ["class 1", "renamed", "class 3"]);
  assert.equal(common.state.now.classById.get(2).name, "renamed");
});

test("classes stand in the order of their making, and the first ten have the digits as keys", () => {
  common.hear(answer([11, 3, 1, 2, 4, 5, 6, 7, 8, 9, 10].map((id) => row(id)), { whole: true }));
  const { now } = common.state;
  assert.deepEqual(now.classes.map(({ id }) => id), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
  assert.equal(now.classes.map(({ key }) => key).join(), "1,2,3,4,5,6,7,8,9,0,");
  assert.equal(common.classOfKey(now, "0").id, 10);
  common.hear(answer([row(2), row(3)], { whole: true }));
  assert.equal(common.classOfKey(common.state.now, "1").id, 2, "a digit is a place");
});

test("a page that is shown another workspace loads itself again", () => {
  common.hear(answer([row(1)], { whole: true }));
  common.hear(answer([row(1)], { whole: true, room: "parts-7" }));
  assert.equal(reloads, 1);
  assert.equal(common.state.now.room, "own");
});

test("actions are sent one after the other, and one that fails holds up none", async () => {
  const sent = [];
  globalThis.fetch = async (path, { body }) => {
    sent.push(JSON.parse(body).do);
    return { json: async () => (sent.length === 1 ? { error: "no" } : { message: "done" }) };
  };
  const first = common.act({ do: "label" }), second = common.act({ do: "undo" });
  await assert.rejects(first, /no/);
  assert.equal((await second).message, "done");
  assert.deepEqual(sent, ["label", "undo"]);
});

/** A server that answers a path when it is told to, and a place for messages. */
function slowServer() {
  const asked = [], place = { ...element(), classList: { toggle() {} } };
  globalThis.fetch = (path) => new Promise((resolve) => asked.push({ path, resolve }));
  const answerTo = async (start, said) => {
    while (!asked.some(({ path }) => path.startsWith(start))) await null;
    const [{ resolve }] = asked.splice(asked.findIndex(({ path }) => path.startsWith(start)), 1);
    resolve({ json: async () => said });
  };
  return { place, answerTo };
}

test("the answer to an earlier action hides nothing newer, unless it is a refusal", async () => {
  const { place, answerTo } = slowServer();
  for (const [said, shown] of [[{ message: "undone" }, "no camera"], [{ error: "the disk is full" }, "the disk is full"]]) {
    const undo = common.perform({ do: "undo" }, place);
    common.tell(place, "no camera", true);
    await answerTo("/edge/act", said);
    await undo;
    assert.equal(place.textContent, shown);
  }
});

test("a state that was asked for before an action's answer came does not take its place", async () => {
  const { place, answerTo } = slowServer();
  const look = common.look(), hold = common.perform({ do: "hold" }, place);
  await answerTo("/edge/act", { message: "held", state: answer([], { frame: "held" }) });
  await hold;
  await answerTo("/edge/state", answer([], { frame: "live" }));
  await look;
  assert.equal(common.state.now.frame, "held");
  const again = common.look();
  await answerTo("/edge/state", answer([], { frame: "live" }));
  await again;
  assert.equal(common.state.now.frame, "live");
});

test("a key is for a tab that is shown, and not for a field or a browser's shortcut", () => {
  const place = { offsetParent: {} }, field = { closest: () => ({}) }, page = { closest: () => null };
  assert.ok(common.isForTab({ target: page }, place));
  assert.ok(!common.isForTab({ target: page, ctrlKey: true }, place));
  assert.ok(!common.isForTab({ target: field }, place));
  assert.ok(!common.isForTab({ target: page }, { offsetParent: null }));
});

/** A picture of 400 x 200 in the middle of a screen of 400 x 300. */
function regionFrame() {
  const video = { hidden: false, videoWidth: 400, videoHeight: 200, clientWidth: 400, clientHeight: 300 };
  const frame = new RegionFrame({ camera: { video } });
  frame.screen = { clientLeft: 0, clientTop: 0, getBoundingClientRect: () => ({ left: 10, top: 20 }) };
  return frame;
}

test("a rectangle is drawn in shares of the picture, without the bars beside it", () => {
  const frame = regionFrame();
  frame.start = frame.point({ clientX: 310, clientY: 220 });
  assert.deepEqual(frame.start, [0.75, 0.75]);
  assert.deepEqual(frame.drawn({ clientX: 110, clientY: 120 }), [0.25, 0.25, 0.5, 0.5]);
  assert.deepEqual(frame.point({ clientX: -50, clientY: 900 }), [0, 1], "outside is at the edge");
});

test("the outline is where it was drawn", () => {
  const frame = regionFrame();
  frame.place([0.75, 0.25, 0.25, 0.5]);
  assert.deepEqual(frame.outline.style, { left: "300px", top: "100px", width: "100px", height: "100px" });
});
