// A phone as the camera: the page's address for it, as a QR code, and what the phone will say about the certificate.
import { ask, make } from "./common.js";

const COMMAND = "python -m app --phone --auth NAME:PASSWORD-FILE";

/** A part of the page that is folded; it asks for the address when it is opened, since a machine's addresses change. */
export function phoneInvitation() {
  const content = make("div", { id: "phone-content" });
  const show = async () => {
    const { address, others = [], code, fingerprint } = await ask("/edge/phone").catch(() => ({ address: "" }));
    if (!address) {
      content.replaceChildren(make("p", {}, "A phone gives its camera only to https pages that it can reach. End the program and start it like this:"), make("pre", {}, make("code", {}, COMMAND)));
      return;
    }
    content.replaceChildren(
      make("img", { id: "phone-code", src: code, alt: `QR code of ${address}` }),
      make("div", {},
        make("p", {}, "Point the phone's camera at the code, or open ", make("a", { id: "phone-address", href: address }, address), others.length ? ` (or ${others.join(", ")})` : "", " on it. The phone must be in the same network."),
        make("p", { id: "phone-warning" }, make("strong", {}, "The phone will warn about the certificate"), ": this program has made it itself, so no authority that the phone knows vouches for it. The connection is encrypted all the same. If the fingerprint below is the one that the phone shows, nobody is in between: choose Advanced or Details, then Continue."),
        make("p", {}, "SHA-256: ", make("code", { class: "phone-fingerprint" }, fingerprint)),
        make("p", {}, "Then give the user's name and the password, and choose Camera on the phone: its picture is learned here.")));
  };
  return make("details", { id: "phone", ontoggle: (event) => { if (event.target.open) show(); } }, make("summary", {}, "Use a phone as the camera"), content);
}
