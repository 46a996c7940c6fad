"""Start and stop: the workspace is opened, the learner runs, and Gradio serves the page."""

from __future__ import annotations

import inspect
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from app.body_limit import LARGEST_UPLOAD, BodyLimit
from app.door import Door
from app.security import LOCAL, Credentials, Guard, internal_error, own_token
from app.temporary import own_folder
from app.tls import ANY, AUTO, Certificate, own_addresses, own_certificate
from edge_hpcr.common.errors import UserError
from edge_hpcr.stream.rules import Rules
from edge_hpcr.workspace.folder import Workspace

LOG = logging.getLogger(__name__)
RENEW_SECONDS = 60.0  # between two looks at the certificate and at this machine's addresses


class Server:
    """The app as a whole, from opening the workspace to closing it."""

    def __init__(
        self,
        workspace: Path,
        host: str = "127.0.0.1",
        port: int = 7860,
        credentials: Credentials | None = None,
        *,
        token: bool = True,
        trusted_proxy: str | None = None,
        tls: str | None = None,
        tls_key: Path | None = None,
        rules: Rules | None = None,
        announce: Callable[[str], None] | None = None,
    ) -> None:
        """`announce` is told the link as soon as it can be opened, which is before everything is loaded."""
        certificate = None if tls in (None, AUTO) else Certificate(Path(tls), tls_key or Path(tls)).check()
        self._refuse_taken(host, port)
        # For uploads on their way. Gradio's default is shared by all of its apps, and served to whoever asks.
        self._temporary = own_folder("page")
        self.temporary = Path(self._temporary.name)
        # Gradio asks itself whether it has started; a proxy would be another host.
        own = f"127.0.0.1,localhost,::1,{host}"
        # Before Gradio is imported: it reads them then.
        os.environ.update(
            NO_PROXY=",".join(filter(None, (os.environ.get("NO_PROXY"), own))),
            no_proxy=",".join(filter(None, (os.environ.get("no_proxy"), own))),
            GRADIO_TEMP_DIR=str(self.temporary),
            GRADIO_ANALYTICS_ENABLED="False",
            HF_HUB_DISABLE_TELEMETRY="1",
            GRADIO_SSR_MODE="False",
            # uvicorn would believe whatever anybody on this machine says about where he is.
            FORWARDED_ALLOW_IPS=trusted_proxy or "",
        )
        self.host, self.port, self._credentials = host, port, credentials
        self._page: Any = None
        self._door: Door | None = None
        self.workspace = Workspace.open(workspace)
        try:
            layout = self.workspace.layout
            self.token = own_token(layout.token) if token and credentials is None else None
            self.certificate = own_certificate(layout.certificate, host) if tls == AUTO else certificate
            self._makes_certificate, self._looked_at = tls == AUTO, time.monotonic()
            if announce is not None:
                self._open_door(announce)
            with _no_stubs_from_gradio():
                import gradio  # noqa: F401

            from app.studio import Studio

            self.studio = Studio(self.workspace, rules)
        except BaseException:
            self._close_door()
            self.workspace.close()
            raise

    def _open_door(self, announce: Callable[[str], None]) -> None:
        # Others would have to come by https, or to give a password, which the door cannot ask for.
        if self.certificate is None and self._credentials is None and self.host in LOCAL:
            self._door = Door(self.host, self.port, choose=not self.workspace.settings.source)
            announce(self.address + self.ticket)

    def _close_door(self) -> None:
        if self._door is not None:
            self._door.close()
        self._door = None

    @property
    def address(self) -> str:
        scheme = "https" if self.certificate else "http"
        return f"{scheme}://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}/"

    def addresses_for_others(self) -> list[str]:
        """Where a phone finds the page by https, the most likely address first; none if it cannot."""
        if self.certificate is None or self.host in LOCAL:
            return []
        hosts = own_addresses() if self.host in ANY else [self.host]
        if self.host == ANY[0]:  # which listens on IPv4 alone
            hosts = [each for each in hosts if ":" not in each]
        return [f"https://{f'[{each}]' if ':' in each else each}:{self.port}/" for each in hosts]

    def invitation(self) -> dict[str, Any]:
        """What a page shows somebody whose phone shall be the camera."""
        address, *others = [*self.addresses_for_others(), ""][:3]
        if not address or self.certificate is None:
            return {"address": ""}
        import segno

        code = segno.make_qr(address).svg_data_uri(scale=5, border=4, dark="#000", light="#fff")
        own = self._makes_certificate
        return {
            "address": address,
            "others": [*filter(None, others)],
            "code": code,
            "own_certificate": own,
            "fingerprint": self.certificate.fingerprint() if own else "",
        }

    def follow_addresses(self) -> None:
        """Renew a certificate of its own that is about to end, or that does not name an address of today; now and then."""
        if not self._makes_certificate or time.monotonic() - self._looked_at < RENEW_SECONDS:
            return
        self._looked_at = time.monotonic()
        try:
            self.certificate = own_certificate(self.workspace.layout.certificate, self.host)
            # For connections from now on: a context may be given another chain while it is in use.
            self._page.server.config.ssl.load_cert_chain(*self.certificate)
        except (UserError, OSError) as error:
            LOG.warning("the certificate was not renewed: %s", error)

    @staticmethod
    def _refuse_taken(host: str, port: int) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                raise UserError(
                    f"cannot listen on {host}:{port}: {error.strerror}; choose another with --host and --port"
                ) from error

    def start(self) -> str:
        """Serve, in threads of its own; returns the address."""
        from starlette.middleware import Middleware

        from app import page
        from app.connections import PunctualProtocol
        from app.routes import routes

        self._page = page.build(self.studio)
        self.studio.start()
        self._page.queue(default_concurrency_limit=8)
        self._close_door()
        self._page.launch(
            server_name=self.host,
            server_port=self.port,
            prevent_thread_lock=True,
            quiet=True,
            share=False,
            inbrowser=False,
            show_error=True,
            footer_links=[],
            run_history=False,
            enable_monitoring=False,
            mcp_server=False,
            pwa=False,
            ssr_mode=False,
            ssl_certfile=str(self.certificate.file) if self.certificate else None,
            ssl_keyfile=str(self.certificate.key) if self.certificate else None,
            ssl_verify=False,  # when Gradio asks itself whether it has started
            max_file_size=LARGEST_UPLOAD,
            blocked_paths=[str(self.workspace.path.resolve())],
            theme=page.theme(),
            head=page.HEAD,
            app_kwargs={
                "openapi_url": None,
                "docs_url": None,
                "redoc_url": None,
                "exception_handlers": {Exception: internal_error},
                "middleware": [
                    Middleware(Guard, self._credentials, self.token, self.port),
                    Middleware(BodyLimit, self.temporary),
                ],
                "routes": routes(self.studio, self.invitation),
            },
        )
        self.studio.opened = lambda path: self._page.blocked_paths.append(str(path))
        # Made by Gradio, which passes no such option on; uvicorn looks at it for each connection.
        self._page.server.config.http_protocol_class = PunctualProtocol
        return self.address

    @property
    def ticket(self) -> str:
        """What to put behind the address for the first visit with a browser."""
        return f"?token={self.token}" if self.token else ""

    def stop(self) -> int:
        """Save and end; nothing that was acknowledged depends on it. Returns how many labels could not be stored."""
        self._close_door()
        try:
            if self._page is not None:
                self._page.close(verbose=False)
            return self.studio.stop()
        finally:
            self.studio.own.workspace.close()  # which may be another than at the start
            self._temporary.cleanup()


@contextmanager
def _no_stubs_from_gradio() -> Iterator[None]:
    """
    Each time that it is imported, Gradio parses its own sources to write stub files for editors beside them: half of
    its import, two seconds of every start. A component without a source file gets none, so for that while none has.
    """
    getfile = inspect.getfile

    def getfile_but_for_stubs(object: Any) -> str:
        if sys._getframe(1).f_globals.get("__name__") == "gradio.component_meta":
            raise OSError("no stubs are wanted")
        return getfile(object)

    inspect.getfile = getfile_but_for_stubs
    try:
        yield
    finally:
        inspect.getfile = getfile
