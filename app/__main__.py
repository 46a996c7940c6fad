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

from app.security import ENVIRONMENT, LOCAL, check_proxy, read_credentials, refuse_open_address
from app.tls import ANY, AUTO
from edge_hpcr.commands.cli import examples, new_commands, run
from edge_hpcr.common.errors import Failed, UserError
from edge_hpcr.common.text import many
from edge_hpcr.stream.rules import SOURCES_UNDER, Rules, checked_folders

EXAMPLES = f"""
examples:
  python -m app                                       the workspace ./workspace, on http://127.0.0.1:7860
  python -m app --workspace parts --port 8000
  python -m app --workspace parts --host 0.0.0.0 --auth anna:password.txt --tls auto     for other machines, too
  python -m app --workspace parts --phone --auth anna:password.txt         a phone as the camera: the page shows a QR code

The printed link holds a token, which other users of this machine have not got; once opened, the browser remembers it.
The password is the first line of the file; or set {ENVIRONMENT}=user:password. Closing the browser stops nothing;
Ctrl-C saves and ends, and the same command continues where it was. /healthz answers 200 once the page is ready.
"""


commands = new_commands()


@commands.command(epilog=examples(EXAMPLES))
def app(
    workspace: Annotated[Path, Option(metavar="W", help="its folder; made if missing")] = Path("workspace"),
    host: Annotated[str, Option(metavar="H", help="address to listen on")] = "127.0.0.1",
    port: Annotated[int, Option(min=1, max=65535, metavar="P", help="port to listen on")] = 7860,
    auth: Annotated[
        str | None,
        Option(metavar="USER:FILE", help="ask for this user and the password in the file's first line"),
    ] = None,
    no_token: Annotated[
        bool, Option("--no-token", help="let in all users of this machine, not only who has the printed link")
    ] = False,
    phone: Annotated[
        bool,
        Option("--phone", help="let a phone be the camera: https on this machine's addresses; needs --auth"),
    ] = False,
    tls: Annotated[
        str | None,
        Option(metavar="auto|FILE", help="https, with the certificate in the file or one of its own"),
    ] = None,
    tls_key: Annotated[
        Path | None,
        Option(metavar="FILE", help="the certificate's key", show_default="in the same file"),
    ] = None,
    trusted_proxy: Annotated[
        str | None,
        Option(
            metavar="ADDRESS", help="believe this proxy's X-Forwarded-For and -Proto", show_default="none"
        ),
    ] = None,
    sources_under: Annotated[
        list[Path] | None,
        Option(metavar="DIR", help=SOURCES_UNDER, show_default="anywhere"),
    ] = None,
    allow_private_sources: Annotated[
        bool | None,
        Option(
            "--allow-private-sources/--no-private-sources",
            help="cameras of this machine and its network by address",
            show_default="only when the page is for this machine alone",
        ),
    ] = None,
) -> int:
    """Teach a learner on a web page: show it something, name it, and it has learned it."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s: %(message)s")
    credentials = read_credentials(auth)
    refuse_open_address(host, trusted_proxy, credentials, phone)
    if phone:
        host, tls = ANY[0] if host in LOCAL else host, tls or AUTO
    if trusted_proxy:
        check_proxy(trusted_proxy)
    if tls_key and tls in (None, AUTO):
        raise UserError("--tls-key: name its certificate too, with --tls FILE")
    alone = host in LOCAL and trusted_proxy is None
    rules = source_rules(alone, sources_under, allow_private_sources)
    options = {"token": not no_token, "trusted_proxy": trusted_proxy, "tls": tls, "tls_key": tls_key}
    return serve(workspace, host, port, credentials, rules=rules, **options)


def source_rules(alone: bool, under: list[Path] | None, private: bool | None) -> Rules:
    """What a page may choose as its source. Who reaches it from elsewhere must not look around in this network by it."""
    return Rules(checked_folders(under), alone if private is None else private)


def serve(workspace: Path, *arguments: Any, **options: Any) -> int:
    print("Edge HPCR starts; the first time on a machine takes a little longer …", flush=True)
    gc.disable()  # what is imported stays: looking for garbage among it takes a tenth of the start
    from app.server import Server  # its imports take a moment, and --help needs none of them

    told: list[str] = []

    def announce(link: str) -> None:
        told.append(link)
        print(f"Open {link} in a browser. Ctrl-C saves and ends.", flush=True)

    server = Server(workspace, *arguments, announce=announce, **options)
    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())
    try:
        for sentence in server.workspace.report:
            print(f"app: {sentence}", file=sys.stderr)
        address = server.start()
        gc.freeze()
        gc.enable()
        from app import charts

        charts.prepare()
        if server.certificate:
            print(f"Its certificate's SHA-256 is {server.certificate.fingerprint()}")
        for address in server.addresses_for_others():
            print(f"On a phone or another machine: {address}")
        print("Ready.", flush=True) if told else announce(address + server.ticket)
        while not stopping.wait(1.0):
            server.follow_addresses()
        print("saving …", flush=True)
    finally:
        unstored = server.stop()
    if unstored:
        raise Failed(f"{many(unstored, 'label')} could not be stored: make room, and show their source again")
    return 0


if __name__ == "__main__":
    sys.exit(run(commands, "python -m app"))
