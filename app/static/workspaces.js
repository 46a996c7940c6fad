// The workspaces in the folder of the open one: open another, or make one. The page is loaded anew then.
import { act, get, make, tell } from "./common.js";

export async function openWorkspaces() {
  const message = make("p", { id: "workspaces-message", role: "status", "aria-live": "polite" });
  const name = make("input", { id: "workspace-name", maxlength: 80, placeholder: "name of a new one", "aria-label": "name of the new workspace", autocomplete: "off", dir: "auto" });
  const list = make("ul", { class: "workspaces-list" });
  const folder = make("p", {});
  const dialog = make("dialog", { id: "workspaces", class: "edge-dialog", "aria-label": "Workspaces", onclose: () => dialog.remove() },
    make("h3", {}, "Workspaces"), folder, list,
    make("form", { id: "workspace-new", class: "edge-row", onsubmit: (event) => { event.preventDefault(); change({ do: "new_workspace", name: name.value }); } },
      name, make("button", { class: "edge-button primary", type: "submit" }, "Make and open")),
    message,
    make("form", { method: "dialog" }, make("button", { class: "edge-button" }, "Close")));

  /** Opening one takes some seconds: its network is loaded, and the other is saved. */
  async function change(action) {
    const controls = [...dialog.querySelectorAll("button, input")];
    for (const control of controls) control.disabled = true;
    tell(message, "saving this one and opening the other …");
    try {
      await act(action);
    } catch (error) {
      tell(message, error.message, true);
      for (const control of controls) control.disabled = false;
    }
  }

  document.body.append(dialog);
  dialog.showModal();
  try {
    const found = await get("/edge/workspaces");
    folder.textContent = `In ${found.folder}. What learns in the open one is saved and stops when another is opened.`;
    list.replaceChildren(...found.names.map((each) => make("li", { "data-workspace": each }, make("bdi", {}, each),
      each === found.open ? make("span", {}, "open") : make("button", { class: "edge-button", type: "button", "aria-label": `open ${each}`, onclick: () => change({ do: "open_workspace", name: each }) }, "Open"))));
  } catch (error) {
    tell(message, error.message, true);
  }
}
