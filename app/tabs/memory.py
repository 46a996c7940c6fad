"""The Memory tab: what the budget is spent on, what the memory holds, and what another budget or encoding would hold."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any

import gradio as gr
import numpy as np
import psutil

from app.charts import Bar, bars, empty, stacked_bar
from app.studio import Studio
from app.tabs.accuracy import ClassLook, looks
from app.tabs.parts import QUIET, Shown, follow_when_shown, saying_errors
from app.tabs.settings import size_text
from edge_hpcr.common.errors import UserError, one_of
from edge_hpcr.common.units import format_bytes, parse_bytes
from edge_hpcr.learner.codec import CODECS, LATENT, encode, typical_bytes
from edge_hpcr.learner.rows import slot_overhead

MOST_THUMBNAILS = 24
MOST_MEASURED = 60  # images, to guess an encoding's size
ALL = "all classes"
# The paper's table "The memory (data) on different datasets for HPCR": numbers kept per sample, over those of its image.
PAPER_OVERHEAD = {"CIFAR10": 1.06, "CIFAR100": 1.08, "MiniImageNet": 1.03, "TinyImageNet": 1.07}
PARTS = (
    ("{kept}s", "#0072b2", ("image",)),
    ("features", "#e69f00", ("features",)),
    ("logits", "#cc79a7", ("logits",)),
    ("labels and bookkeeping", "#009e73", ("label", "bookkeeping")),
    ("the method's statistics", "#56b4e9", ("method",)),
)
ENCODINGS = {
    "raw": "raw: pixels as they are",
    "webp": "webp: pixels change a little",
    "jpeg": "jpeg: pixels change a little",
    "png": "png: packed, pixels stay as they are",
    LATENT: "latent: what the frozen part of the network says of an image",
}
PLACEHOLDER = '<span class="memory-gone" role="img" aria-label="{text}" title="{text}">no picture</span>'
INTRODUCTION = (
    "The memory is a sample of everything that was taught, kept for replay inside a fixed budget. When it is full, a random "
    "sample leaves for a new one; with the method edge, one of the class that holds most."
)
NOTHING_HELD = (
    "The memory is empty. Teach something on the Teach tab: what is learned is kept here for replay."
)

ORIGINALS_SHOWN = (
    "The memory holds no pictures but what the frozen part of the network says of them, in numbers. "
    "These are the pictures that the numbers were made from."
)
STATISTICS_HELD = "The memory is empty: this method keeps statistics of the samples, not the samples. They count in the bytes above."


# What it is now -------------------------------------------------------------------------------------------------------


def kept(codec: str) -> str:
    """What the memory keeps of a sample, besides logits and features."""
    return "latent" if codec == LATENT else "image"


def budget_bar(facts: dict[str, Any]) -> str:
    """The status's facts about the memory as one bar in bytes."""
    sizes, budget, what = facts["bytes"], facts["budget"], kept(facts["codec"])
    used = [
        (name.format(kept=what), colour, sum(sizes.get(key, 0) for key in keys))
        for name, colour, keys in PARTS
    ]
    parts = [(*part, format_bytes(part[2])) for part in used if part[2]]
    title = (
        f"{format_bytes(sizes['total'])} of {format_bytes(budget)} used by "
        f"{facts['samples']:,} {'sample' if facts['samples'] == 1 else 'samples'}"
    )
    return stacked_bar(parts, budget, title, format_bytes(max(0, budget - sizes["total"])))


def overhead_text(facts: dict[str, Any]) -> str:
    """What logits and features add here, and the paper's figures for its datasets."""
    overhead, what = facts["overhead"], kept(facts["codec"])
    paper = ", ".join(f"{name} {ratio:.2f}" for name, ratio in PAPER_OVERHEAD.items())
    return (
        "<details><summary>For researchers: what logits and features add</summary>"
        f"<p>HPCR keeps logits and features with every {what}. Counted in numbers, as the paper counts, a sample here takes "
        f"<b>{overhead['numbers']:.2f}</b> times its {what}; in real bytes, with 16-bit logits and features, it takes "
        f"<b>{overhead['bytes']:.2f}</b> times what it would without them. "
        f"The paper's figures, in numbers: {paper} "
        "(HPCR, table “The memory (data) on different datasets for HPCR”).</p></details>"
    )


def class_bars(counts: dict[int, int], classes: Sequence[ClassLook]) -> str:
    total = sum(counts.values()) or 1
    rows = []
    for look in classes:
        count = counts.get(look.id, 0)
        rows.append(Bar(look.name, look.colour, count, f"{count:,} ({100 * count / total:.0f} %)"))
    return bars(rows, most=None, title="Samples of each class")


@dataclass(frozen=True)
class Content:
    """A look into the memory, taken between two steps."""

    counts: dict[int, int]  # samples, by class id
    ids: list[int]
    images: np.ndarray | None  # None: the memory keeps latents, which show nothing
    classes: list[int]


def look_into(studio: Studio, class_id: int | None, most: int, seed: int = 0) -> Content:
    """The samples of each class, and some of them drawn at random, of one class or of all."""

    def look() -> Content:
        memory, ids = studio.live.learner.memory, np.array(studio.live.learner.class_ids, np.int64)
        counts = dict(zip(ids.tolist(), memory.class_counts().tolist(), strict=True))
        own = ids[memory.labels()]
        slots = np.flatnonzero((own == class_id) | (class_id is None))
        # Not the memory's generator: drawing from it would change what it learns next.
        chosen = np.random.default_rng(seed).permutation(slots)[:most]
        replay = memory.at(chosen)
        images = None if memory.config.codec == LATENT else replay.inputs.astype(np.uint8)
        return Content(counts, replay.ids.tolist(), images, own[chosen].tolist())

    return studio.between_steps(look)


def thumbnails(studio: Studio, content: Content, classes: Sequence[ClassLook]) -> str:
    if not content.ids:
        return empty("There is nothing of it in the memory now.")
    names = {look.id: look.name for look in classes}
    pictures = []
    for place, (sample_id, class_id) in enumerate(zip(content.ids, content.classes, strict=True)):
        name = escape(names.get(class_id, f"class {class_id}"))
        text = f"{name}, sample {sample_id}"
        if content.images is not None:  # what is held, as small and as changed by its encoding as it is
            copied = base64.b64encode(encode(content.images[place], "png")).decode()
            picture = _picture(f"data:image/png;base64,{copied}", f"{text}, as the memory holds it")
        elif _has_file(studio, sample_id):
            picture = _picture(f"/edge/sample/{sample_id}", f"{text}, the picture that it was made from")
        else:
            picture = PLACEHOLDER.format(text=f"{text}, its picture was dropped to keep the disk budget")
        pictures.append(f'<figure>{picture}<figcaption dir="auto">{name}</figcaption></figure>')
    note = f"<p>{ORIGINALS_SHOWN}</p>" if content.images is None else ""
    return f'{note}<div class="memory-pictures">{"".join(pictures)}</div>'


def _picture(source: str, text: str) -> str:
    return f'<img src="{source}" loading="lazy" alt="{text}" title="{text}">'


def _has_file(studio: Studio, sample_id: int) -> bool:
    try:
        return studio.journal.sample(sample_id).has_image
    except UserError:
        return False


# What another budget or encoding would hold ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Costs:
    """What a sample costs now: enough to say what any budget and encoding would hold."""

    samples: int  # held now
    classes: int
    budget: int
    codec: str
    fixed: int  # bytes per sample, beside its image, with the present encoding
    image_bytes: dict[str, int]  # of an average image, by encoding that can be chosen
    guessed: bool  # no image is held yet

    def row_bytes(self, codec: str) -> int:
        return self.fixed - slot_overhead(self.codec) + slot_overhead(codec) + self.image_bytes[codec]


@dataclass(frozen=True)
class Plan:
    """About what a budget and an encoding would hold.

    >>> costs = Costs(100, 2, 1000, "raw", 2, {"raw": 8, "png": 4}, False)
    >>> Plan(costs, 500, "raw").stays, Plan(costs, 2000, "raw").drops
    (50, 0)
    """

    costs: Costs
    budget: int
    codec: str

    @property
    def holds(self) -> int:
        return self.budget // self.costs.row_bytes(self.codec)

    @property
    def stays(self) -> int:
        return min(self.costs.samples, self.holds)

    @property
    def drops(self) -> int:
        return self.costs.samples - self.stays

    @property
    def smallest(self) -> int:
        """Bytes that are needed for one sample of each class."""
        return self.costs.row_bytes(self.codec) * max(1, self.costs.classes)

    @property
    def possible(self) -> bool:
        return self.budget >= self.smallest


def measure(studio: Studio) -> Costs:
    """Encode some of the memory's images in every way, and count."""

    def look() -> tuple[Costs, int, np.ndarray, tuple[int, ...], int]:
        memory, config = studio.live.learner.memory, studio.live.learner.memory.config
        costs = Costs(
            *(len(memory), memory.num_classes, config.bytes or 0, config.codec, memory.row_bytes(0)),
            {},
            not len(memory),
        )
        slots = np.random.default_rng(0).permutation(len(memory))[:MOST_MEASURED]
        total = memory.byte_breakdown()["image"]
        inputs = memory.at(slots).inputs
        images = inputs if config.codec == LATENT else inputs.astype(np.uint8)  # a rival edits them as floats
        return costs, config.quality, images, memory.input_shape, total

    costs, quality, images, shape, total = studio.between_steps(look)
    if costs.codec == LATENT:  # the network decides, and every latent has the same size
        return replace(costs, image_bytes={LATENT: typical_bytes(shape, LATENT)}, guessed=False)
    if costs.guessed:
        return replace(costs, image_bytes={codec: typical_bytes(shape, codec) for codec in CODECS})
    sizes = {codec: sum(len(encode(image, codec, quality)) for image in images) for codec in CODECS}
    means = {codec: -(-size // len(images)) for codec, size in sizes.items()}
    return replace(costs, image_bytes=means | {costs.codec: -(-total // costs.samples)})


def plan_text(wanted: Plan) -> str:
    """What the memory would keep, in a sentence."""
    costs = wanted.costs
    if not wanted.possible:
        classes = "one sample" if costs.classes <= 1 else f"one sample of each of {costs.classes} classes"
        return (
            f"{format_bytes(wanted.budget)} is too little: {classes} needs about {format_bytes(wanted.smallest)} "
            f"as {wanted.codec}. Give a larger budget{'' if wanted.codec == LATENT else ', or choose a smaller encoding'}."
        )
    guess = " This is a guess until the first image is held." if costs.guessed else ""
    now = f"The memory holds {costs.samples:,} now"
    if wanted.drops:
        return (
            f"{now}; about {wanted.stays:,} would stay and about {wanted.drops:,} would be dropped, chosen at random. "
            f"Dropped samples are no longer replayed.{guess}"
        )
    return f"{now}; with this it could hold about {wanted.holds:,}, and nothing would be dropped.{guess}"


def preview(wanted: Plan) -> str:
    """The sentence, and every encoding beside the chosen one."""
    costs, rows = wanted.costs, []
    for codec in costs.image_bytes:
        each = Plan(costs, wanted.budget, codec)
        said = (("chosen", codec == wanted.codec), ("now", codec == costs.codec))
        marks = ", ".join(word for word, true in said if true)
        rows.append(
            f"<tr{' class=chosen' if codec == wanted.codec else ''}><th scope=row>{codec}"
            f"{marks and f' ({marks})'}</th><td>{costs.image_bytes[codec]:,} B</td>"
            f"<td>{costs.row_bytes(codec):,} B</td>"
            f"<td>{f'{each.holds:,}' if each.possible else 'too few'}</td></tr>"
        )
    warning = ' class="warning"' if wanted.drops or not wanted.possible else ""
    return (
        f'<p{warning} role="status">{escape(plan_text(wanted))}</p><div class="memory-table"><table>'
        f"<caption>About what {format_bytes(wanted.budget)} would hold</caption>"
        f"<thead><tr><th>encoding</th><th>bytes per {kept(costs.codec)}</th><th>bytes per sample</th><th>samples</th></tr>"
        f"</thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def parse_request(budget: str, codec: str) -> tuple[int, str]:
    size = parse_bytes(str(budget or ""))
    machine = psutil.virtual_memory().total
    if size > machine:
        raise UserError(
            f"a budget of {format_bytes(size)} is more than this machine's memory of {format_bytes(machine)}"
        )
    one_of("encoding", codec, ENCODINGS)
    return size, codec


def apply(studio: Studio, budget: int, codec: str) -> str:
    """Change the memory and its settings; returns a sentence about it. A large memory takes a while."""
    held, holds = studio.live.resize_memory(budget, codec).result()
    dropped = f"{held - holds:,} were dropped" if held > holds else "none was dropped"
    size = format_bytes(budget) + ("" if codec == LATENT else f", images as {codec}")
    return f"The memory is now {size}: it holds {holds:,} samples, {dropped}."


# The tab --------------------------------------------------------------------------------------------------------------


def shown(studio: Studio) -> Shown:
    """What the memory holds and what it is spent on."""

    def facts() -> tuple[Any, ...]:
        status = studio.live.status()
        return status["memory"], studio.journal.last_seq, status["step"]

    def make(facts: tuple[Any, ...]) -> tuple[str]:
        memory, *_ = facts
        try:
            held = empty(STATISTICS_HELD if memory["bytes"].get("method") else NOTHING_HELD)
            if memory["samples"]:
                held = class_bars(look_into(studio, None, 0).counts, looks(studio))
        except UserError as error:  # a stopped learner: its memory's bytes are still known
            held = empty(f"The samples of each class are not known now: {error}.")
        spent = f"<div>{budget_bar(memory)}{overhead_text(memory)}</div>"
        return (f'<p>{INTRODUCTION}</p><div class="memory-sides">{spent}<div>{held}</div></div>',)

    return Shown(facts, make)


class Actions:
    """What the tab's controls do."""

    def __init__(self, studio: Studio) -> None:
        self._studio = studio
        self._draw = np.random.default_rng()

    @saying_errors
    def show_some(self, chosen: Any) -> tuple[Any, str]:
        return self._pictures(chosen, 0)

    @saying_errors
    def show_others(self, chosen: Any) -> tuple[Any, str]:
        return self._pictures(chosen, int(self._draw.integers(2**31)))

    def _pictures(self, chosen: Any, seed: int) -> tuple[Any, str]:
        classes = looks(self._studio)
        class_id = chosen if chosen in {look.id for look in classes} else None
        content = look_into(self._studio, class_id, MOST_THUMBNAILS, seed)
        choices: list[tuple[str, Any]] = [(ALL, ALL), *((look.name, look.id) for look in classes)]
        dropdown = gr.Dropdown(choices=choices, value=ALL if class_id is None else class_id)
        return dropdown, thumbnails(self._studio, content, classes)

    def current(self) -> list[str]:
        memory = self._studio.live.status()["memory"]
        return [size_text(memory["budget"]), memory["codec"]]

    def choice(self) -> Any:
        """With a trunk there is nothing to choose."""
        return gr.Dropdown(interactive=self.current()[1] != LATENT)

    @saying_errors
    def forecast(self, size: str, encoding: str) -> tuple[str, Any]:
        """Also closes a question that was about other values."""
        try:
            request = parse_request(size, encoding)
        except UserError as error:  # somebody is still typing: a sentence in its place, no alarm
            return f'<p class="warning" role="status">{escape(str(error))}</p>', gr.Row(visible=False)
        return preview(Plan(measure(self._studio), *request)), gr.Row(visible=False)

    @saying_errors
    def request_for(self, size: str, encoding: str) -> list[Any]:
        return [*self._change(size, encoding, confirmed=False), [size, encoding]]

    @saying_errors
    def confirm(self, size: str, encoding: str) -> list[Any]:
        return [*self._change(size, encoding, confirmed=True), [size, encoding]]

    @saying_errors
    def leave(self) -> list[Any]:
        return [*self.current(), self.current()]

    def _change(self, size: str, encoding: str, confirmed: bool) -> tuple[Any, Any, Any]:
        """What to say, the forecast, and whether to ask."""
        request = parse_request(size, encoding)
        wanted = Plan(measure(self._studio), *request)
        if not wanted.possible:
            raise UserError(plan_text(wanted))
        if request == (wanted.costs.budget, wanted.costs.codec):
            return "<p>It is so already.</p>", preview(wanted), gr.Row(visible=False)
        if wanted.drops and not confirmed:
            return "", preview(wanted), gr.Row(visible=True)
        done = f'<p role="status">{escape(apply(self._studio, *request))}</p>'
        return done, preview(Plan(measure(self._studio), *request)), gr.Row(visible=False)


def build(studio: Studio, tab: gr.Tab) -> None:
    actions = Actions(studio)
    size, encoding = actions.current()
    facts = gr.HTML(elem_id="memory-facts")
    with gr.Column():
        gr.HTML("<h3>Another budget or encoding</h3>")
        with gr.Row():
            budget = gr.Textbox(
                size, label="Budget", info="like 500 KB or 2 MB", elem_id="memory-budget", min_width=240
            )
            encodings = [(text, name) for name, text in ENCODINGS.items()]
            label = "Encoding of the images"
            codec = gr.Dropdown(
                encodings,
                value=encoding,
                label=label,
                elem_id="memory-codec",
                min_width=240,
                interactive=encoding != LATENT,
                info="With a pre-trained backbone the memory keeps latents, whatever else is set.",
            )
        forecast = gr.HTML(elem_id="memory-preview")
        use = gr.Button("Apply", variant="primary", elem_id="memory-apply", scale=0, min_width=140)
        with gr.Row(visible=False) as question:
            sure = gr.Button(
                "Yes, drop them and apply", variant="stop", elem_id="memory-confirm", scale=0, min_width=280
            )
            leave = gr.Button("Leave it as it is", elem_id="memory-cancel", scale=0, min_width=180)
        done = gr.HTML(elem_id="memory-done")
    with gr.Column():
        gr.HTML("<h3>What it holds</h3>")
        with gr.Row(elem_classes="memory-choice"):
            which = gr.Dropdown([ALL], value=ALL, label="Of", elem_id="memory-class", scale=0, min_width=220)
            others = gr.Button("Show others", elem_id="memory-others", scale=0, min_width=160)
        pictures = gr.HTML(elem_id="memory-pictures")

    shown(studio).keep_fresh(tab, [facts])
    tab.select(actions.show_some, which, [which, pictures], **QUIET)
    tab.select(actions.choice, None, codec, **QUIET)
    opened, known = follow_when_shown(tab, [budget, codec], actions.current, QUIET)
    opened.then(actions.forecast, [budget, codec], [forecast, question], **QUIET)
    which.input(actions.show_some, which, [which, pictures], **QUIET)
    others.click(actions.show_others, which, [which, pictures], **QUIET)
    gr.on(
        [budget.change, codec.change], actions.forecast, [budget, codec], [forecast, question],
        trigger_mode="always_last", **QUIET,
    )  # fmt: skip
    use.click(actions.request_for, [budget, codec], [done, forecast, question, known], **QUIET)
    sure.click(actions.confirm, [budget, codec], [done, forecast, question, known], **QUIET)
    leave.click(actions.leave, None, [budget, codec, known], **QUIET)
