// The first page, while the program is still starting: what is chosen here is done as soon as the real page is there.
import { make } from "./common.js";
import { BrowserCamera } from "./camera.js";
import { FIRST_CHOICE, choiceButtons } from "./sources.js";

const ASK_MS = 300;
const place = document.getElementById("teach"), message = make("p", { id: "message", role: "status" });
const camera = new BrowserCamera((problem) => { message.textContent = `⚠ ${problem}`; }, () => {});
const screen = make("div", { class: "teach-screen", id: "screen" }, camera.video);
const guide = make("p", { id: "guide" }, "A moment: the program is starting …");

async function choose(what) {
  if (what === "camera" && !(await camera.start())) return;
  sessionStorage[FIRST_CHOICE] = what;
  camera.video.hidden = what !== "camera";
  choices.remove();
  screen.classList.remove("choosing");
  guide.textContent = "A moment: the program is starting, and goes on with this …";
}

const choices = choiceButtons(choose);
if (place.dataset.choose === "yes") {
  screen.classList.add("choosing");
  screen.append(choices);
  guide.textContent = "Choose where the pictures come from.";
}
place.append(make("div", { class: "teach-columns beginning" }, make("section", { class: "teach-picture" }, screen, make("div", { class: "teach-notes" }, guide, message))));

/** The real page has the same address. */
async function wait() {
  const ready = await fetch("/healthz").then((answer) => answer.ok, () => false);
  if (ready) { camera.stop(); location.reload(); } else setTimeout(wait, ASK_MS);
}
wait();
