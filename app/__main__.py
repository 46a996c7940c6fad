"""`python -m app`: the page on which a learner is taught."""

from __future__ import annotations

import argparse
import gc
import logging
import signal
import sys
import threading
from pathlib import Path

from app.security import ENVIRONMENT, Credentials, read_credentials, refuse_open_address
from edge_hpcr.commands.cli import OneLineParser
from edge_hpcr.common.errors import UserError

EXAMPLES = f"""\
examples:
  python -m app                                       the workspace ./workspace, on http://127.0.0.1:7860
  python -m app --workspace parts --port 8000
  python -m app --workspace parts --host 0.0.0.0 --auth anna:password.txt     for other machines, too

The password is the first line of the file; or set {ENVIRONMENT}=user:password. Closing the browser stops nothing;
Ctrl-C saves and ends, and the same command continues where it was. /healthz answers 200 once the page is ready.
"""


def main(arguments: list[str] | None = None) -> int:
    parser = OneLineParser(
        prog="python -m app",
        description="Teach a learner on a web page: show it something, name it, and it has learned it.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--workspace",
        type=Path,
        default=Path("workspace"),
        metavar="W",
        help="its folder; made if missing (default: ./workspace)",
    )
    parser.add_argument(
        "--host", default="127.0.0.1", metavar="H", help="address to listen on (default: 127.0.0.1)"
    )
    parser.add_argument("--port", type=_port, default=7860, metavar="P", help="port (default: 7860)")
    parser.add_argument(
        "--auth", metavar="USER:FILE", help="ask for this user and the password in the file's first line"
    )
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s: %(message)s")
    try:
        credentials = read_credentials(options.auth)
        refuse_open_address(options.host, credentials)
        return serve(options.workspace, options.host, options.port, credentials)
    except UserError as error:
        print(f"app: {error}", file=sys.stderr)
        return 2


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} is no port: give a number from 1 to 65535")
    return int(text)


def serve(workspace: Path, host: str, port: int, credentials: Credentials | None) -> int:
    print("Edge HPCR starts; the first time on a machine takes a little longer …", flush=True)
    gc.disable()  # what is imported stays: looking for garbage among it takes a tenth of the start
    from app.server import Server  # PyTorch and Gradio take seconds, and --help needs neither

    server = Server(workspace, host, port, credentials)
    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())
    try:
        for sentence in server.workspace.report:
            print(f"app: {sentence}", file=sys.stderr)
        address = server.start()
        gc.freeze()
        gc.enable()
        print(f"Open {address} in a browser. Ctrl-C saves and ends.", flush=True)
        while not stopping.wait(1.0):
            pass
        print("saving …", flush=True)
    finally:
        server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
