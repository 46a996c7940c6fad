"""Start and stop: the workspace is opened, the learner runs, and Gradio serves the page."""

from __future__ import annotations

import inspect
import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from app.security import BodyLimit, Credentials, Guard, internal_error, own_token
from app.tls import EVERYWHERE, fingerprint, own_addresses, own_certificate
from edge_hpcr.common.errors import UserError
from edge_hpcr.common.listener import Listener
from edge_hpcr.workspace.workspace import Workspace


class Server:
    """The app as a whole, from opening the workspace to closing it."""

    def __init__(
        self,
        workspace: Path,
        host: str = "127.0.0.1",
        port: int = 7860,
        credentials: Credentials | None = None,
        *,
        phone: bool = False,
    ) -> None:
        """`phone` serves by https, with a certificate of its own."""
        _refuse_taken(host, port)
        # For uploads on their way. Gradio's default is shared by all of its apps, and served to whoever asks.
        prefix = f"edge-hpcr-page-{os.getpid()}-"
        self._temporary = tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True)
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
        )
        self.host, self.port, self._credentials = host, port, credentials
        self._page: Any = None
        self.workspace = Workspace.open(workspace)
        try:
            layout = self.workspace.layout
            self.token = own_token(layout.token) if credentials is None else None
            self.certificate = own_certificate(layout.certificate, host) if phone else None
            with _no_stubs_from_gradio():
                import gradio  # noqa: F401

            from app.studio import Studio

            self.studio = Studio(self.workspace)
        except BaseException:
            self.workspace.close()
            raise

    @property
    def address(self) -> str:
        scheme = "https" if self.certificate else "http"
        return f"{scheme}://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}/"

    @property
    def link(self) -> str:
        """The address for the first visit with a browser."""
        return f"{self.address}?token={self.token}" if self.token else self.address

    @property
    def phone_addresses(self) -> list[str]:
        """Where a phone finds the page, the most likely address first; none if it cannot."""
        if self.certificate is None:
            return []
        hosts = own_addresses() if self.host == EVERYWHERE else [self.host]
        return [f"https://{host}:{self.port}/" for host in hosts]

    def invitation(self) -> dict[str, Any]:
        """What a page shows somebody whose phone shall be the camera."""
        address, *others = [*self.phone_addresses, ""][:3]
        if not address or self.certificate is None:
            return {"address": ""}
        import segno

        return {
            "address": address,
            "others": [*filter(None, others)],
            "code": segno.make_qr(address).svg_data_uri(scale=5, border=4, dark="#000", light="#fff"),
            "fingerprint": fingerprint(self.certificate),
        }

    def start(self) -> None:
        """Serve, in threads of its own."""
        from gradio import http_server
        from starlette.middleware import Middleware

        from app import page
        from app.routes import routes

        class Guarded(http_server.Server):
            def run(self, sockets: list[socket.socket] | None = None) -> None:
                with Listener(self.config.host, self.config.port) as listener:
                    super().run([listener])

        http_server.Server = Guarded  # type: ignore[misc]  # Gradio has no option for it
        page.show_shape_early()
        self._page = page.build(self.studio)
        self.studio.start()
        self._page.queue(default_concurrency_limit=8)
        certificate = str(self.certificate) if self.certificate else None
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
            ssl_certfile=certificate,
            ssl_keyfile=certificate,
            ssl_verify=False,  # when Gradio asks itself whether it has started
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
                    Middleware(BodyLimit),
                ],
                "routes": routes(self.studio, self.invitation),
            },
        )
        self.studio.opened = lambda path: self._page.blocked_paths.append(str(path))

    def stop(self) -> int:
        """Save and end; nothing that was acknowledged depends on it. Returns how many labels could not be stored."""
        try:
            if self._page is not None:
                self._page.close(verbose=False)
            return self.studio.stop()
        finally:
            self._temporary.cleanup()


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
