"""`python -m app`: the page on which a learner is taught."""

from __future__ import annotations

import gc
import logging
import signal
import sys
import threading
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from app.security import ENVIRONMENT, LOCAL, read_credentials, refuse_open_address
from app.tls import EVERYWHERE, fingerprint
from edge_hpcr.commands.cli import examples, new_commands, run
from edge_hpcr.common.errors import Failed
from edge_hpcr.common.text import many
from edge_hpcr.workspace.layout import last_used

EXAMPLES = f"""
examples:
  python -m app                                       the workspace ./workspace, on http://127.0.0.1:7860
  python -m app --workspace parts --port 8000
  python -m app --workspace parts --host 0.0.0.0 --auth anna:password.txt  for other machines, too
  python -m app --workspace parts --phone --auth anna:password.txt         a phone as the camera: the page shows a QR code

The printed link holds a token, which other users of this machine do not have; once opened, the browser remembers it.
The password is the first line of the file; or set {ENVIRONMENT}=user:password. Closing the browser stops nothing;
Ctrl-C saves and ends, and the same command continues where it was. /healthz answers 200 once the page is ready.
"""


commands = new_commands()


@commands.command(epilog=examples(EXAMPLES))
def app(
    workspace: Annotated[
        Path | None,
        Option(metavar="W", help="its folder; made if missing", show_default="the last one, or ./workspace"),
    ] = None,
    host: Annotated[str, Option(metavar="H", help="address to listen on")] = "127.0.0.1",
    port: Annotated[int, Option(min=1, max=65535, metavar="P", help="port to listen on")] = 7860,
    auth: Annotated[
        str | None,
        Option(metavar="USER:FILE", help="ask for this user and the password in the file's first line"),
    ] = None,
    phone: Annotated[
        bool,
        Option("--phone", help="let a phone be the camera: https on this machine's addresses; needs --auth"),
    ] = False,
) -> int:
    """Teach a learner on a web page: show it something, name it, and it has learned it."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s: %(message)s")
    credentials = read_credentials(auth)
    refuse_open_address(host, credentials, phone)
    if phone and host in LOCAL:
        host = EVERYWHERE
    return serve(workspace or last_used(Path()), host, port, credentials, phone=phone)


def serve(workspace: Path, *arguments: Any, **options: Any) -> int:
    print("Edge HPCR starts; the first time on a machine takes a little longer …", flush=True)
    gc.disable()  # what is imported stays: looking for garbage among it takes a tenth of the start
    from app.server import Server  # its imports take a moment, and --help needs none of them

    server = Server(workspace, *arguments, **options)
    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())
    try:
        for sentence in server.workspace.report:
            print(f"app: {sentence}", file=sys.stderr)
        server.start()
        gc.freeze()
        gc.enable()
        if server.certificate:
            print(f"Its certificate's SHA-256 is {fingerprint(server.certificate)}")
        for address in server.phone_addresses:
            print(f"On a phone or another machine: {address}")
        shown = server.link
        if (
            server.token and not sys.stdout.isatty()
        ):  # a log is read by others: there the token stays where it is kept
            shown = f"{server.address}?token=… (the token is in {server.workspace.layout.token})"
        print(f"Open {shown} in a browser. Ctrl-C saves and ends.", flush=True)
        stopping.wait()
        print("saving …", flush=True)
    finally:
        unstored = server.stop()
    if unstored:
        raise Failed(f"{many(unstored, 'label')} could not be stored: make room, and show their source again")
    if server.studio.own.live.failed:
        raise Failed(server.studio.own.live.problems[-1])
    return 0


if __name__ == "__main__":
    sys.exit(run(commands, "python -m app"))
