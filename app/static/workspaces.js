// The workspaces in the folder of the open one: open another, or make one. The page is loaded anew then.
import { act, button, closeButton, ask, make, openDialog, tell } from "./common.js";

export async function openWorkspaces() {
  const found = await ask("/edge/workspaces");
  const message = make("p", { id: "workspaces-message", role: "status", "aria-live": "polite" });
  const name = make("input", { id: "workspace-name", maxlength: 80, placeholder: "name of a new one", "aria-label": "name of the new workspace", autocomplete: "off", dir: "auto" });
  const dialog = openDialog({ id: "workspaces", "aria-label": "Workspaces" },
    make("h2", {}, "Workspaces"),
    make("p", {}, `In ${found.folder}. The open workspace is saved and closed when another one is opened.`),
    make("ul", { class: "edge-list" }, ...found.names.map((each) => make("li", { "data-workspace": each }, make("bdi", {}, each),
      each === found.open ? make("span", {}, "open") : button(null, "Open", () => change(each), { "aria-label": `open ${each}` })))),
    make("form", { id: "workspace-new", class: "edge-row", onsubmit: (event) => { event.preventDefault(); change(name.value.trim()); } },
      name, make("button", { class: "edge-button primary", type: "submit" }, "Open")),
    message, closeButton());

  /** Opening one takes some seconds: its network is loaded, and the other is saved. */
  async function change(workspace) {
    const controls = [...dialog.querySelectorAll("button, input")];
    for (const control of controls) control.disabled = true;
    tell(message, "saving this one and opening the other …");
    try {
      await act({ do: "open_workspace", name: workspace });
    } catch (error) {
      tell(message, error.message, true);
      for (const control of controls) control.disabled = false;
    }
  }
}
