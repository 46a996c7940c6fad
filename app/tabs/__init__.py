"""What the tabs that are made of Gradio's components share."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import wraps
from html import escape
from typing import Any, ParamSpec, TypeVar

import gradio as gr

from edge_hpcr.common.errors import UserError

LOG = logging.getLogger(__name__)
P = ParamSpec("P")
R = TypeVar("R")
QUIET: Any = {"show_progress": "hidden", "api_visibility": "private"}
WRONG = "something went wrong here; the program's log says what"
PLAIN: Any = {"padding": False, "apply_default_css": False}  # for gr.HTML


def empty(sentence: str) -> str:
    """A sentence in the place of what a tab has not got yet: what to do, or what is awaited."""
    return f'<p class="empty">{escape(sentence)}</p>'


def saying_errors(handler: Callable[P, R]) -> Callable[P, R]:
    """Errors reach the person as a sentence, and the log as a traceback."""

    @wraps(handler)
    def handle_or_say(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return handler(*args, **kwargs)
        except gr.Error:
            raise
        except UserError as error:
            raise gr.Error(str(error), print_exception=False) from error
        except Exception as error:
            LOG.exception("%s failed", handler.__qualname__)
            raise gr.Error(WRONG, print_exception=False) from error

    return handle_or_say


class Texts:
    """The texts of a tab, made once for all pages and only when the facts behind them have changed."""

    def __init__(self, facts: Callable[[], Any], make: Callable[[Any], tuple[str, ...]]) -> None:
        self._facts, self._make = facts, make
        self._lock = threading.Lock()
        self._key = ""
        self._texts: tuple[str, ...] = ()

    def now(self) -> tuple[str, tuple[str, ...]]:
        """A key that changes with the texts, and the texts."""
        with self._lock:
            facts = self._facts()
            key = str(hash(str(facts)))
            if key != self._key:
                self._texts = self._make(facts)
                self._key = key
            return self._key, self._texts

    def keep_fresh(self, tab: gr.Tab, outputs: list[Any], seconds: float = 2.0) -> None:
        """Show the texts when the tab is opened, and new ones while it is shown."""
        seen = gr.State("")  # the key of what a page shows
        timer = gr.Timer(seconds, active=False)

        @saying_errors
        def refresh(key: str) -> list[Any]:
            fresh, texts = self.now()
            return [fresh, *texts] if fresh != key else [gr.skip()] * (1 + len(texts))

        for event in (timer.tick, tab.select):
            event(refresh, seen, [seen, *outputs], **QUIET)

        def switch(event: gr.SelectData) -> gr.Timer:
            """The tabs that are not shown cost nothing."""
            return gr.Timer(active=event.value == tab.label)

        tabs: Any = tab.parent
        tabs.select(switch, None, timer, queue=False, **QUIET)
