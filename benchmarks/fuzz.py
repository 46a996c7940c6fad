"""`python -m benchmarks.fuzz`: damaged input for everything that reads from outside; only clear refusals are good.

Hypothesis damages whole examples: bytes are replaced, cut out, doubled or cut off, and in JSON any value becomes any
other. A parser may take what it gets, or refuse it with an error that a person can read. Anything else, and anything
that takes more than five seconds, is a defect. The same targets run for a few examples each in `make test`.
"""

import io
import json
import os
import shutil
import sqlite3
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from PIL import Image
from typer import Option

from benchmarks.runner import check_writable, circumstances, keep_with_page, table
from edge_hpcr.commands import cli
from edge_hpcr.common.errors import UserError, one_of
from export.device.errors import Failed

REFUSALS = (UserError, Failed)
LONGEST_SECONDS = 30.0  # on a busy machine, where the helper that decodes pictures must start first
AT_ONCE = 200  # examples between two looks at the clock
SECONDS = 600.0
Parser = Callable[[Any], object]


@dataclass(frozen=True)
class Target:
    inputs: Callable[[], st.SearchStrategy[Any]]
    parser: Callable[[Path], Parser]  # made once, with a folder of its own


# Damage ---------------------------------------------------------------------------------------------------------------


@st.composite
def damaged(draw: st.DrawFn, examples: list[bytes]) -> bytes:
    """One of these, with up to six edits."""
    data = draw(st.sampled_from(examples))
    for _ in range(draw(st.integers(0, 6))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.integers(0, 40)))
        how = draw(st.integers(0, 3))
        if how == 0:
            data = data[:start] + draw(st.binary(max_size=40)) + data[end:]
        elif how == 1:
            data = data[:end] + data[start:]  # a piece twice
        elif how == 2:
            data = data[:start]
        else:
            data = data[:start] + draw(st.sampled_from(EXTREMES)) + data[start + 4 :]
    return data


EXTREMES = [
    bytes(4),
    b"\xff" * 4,
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\x7f",
    b"\x00\x00\x00\x80",
    b"\x80\x00\x00\x00",
]
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([2**63, -(2**63), 2**64, 10**400, 1e308, -0.0, 1e-320])
    | st.floats(allow_nan=True, allow_infinity=True)
    | st.text(max_size=20)
    | st.sampled_from(["", "\x00", "../..", "/etc/passwd", "\ud800", "a" * 5000, "1" * 5000]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def damaged_json(draw: st.DrawFn, examples: list[Any]) -> bytes:
    """One of these with up to three values replaced or removed; now and then the text itself is damaged, too."""
    value = json.loads(json.dumps(draw(st.sampled_from(examples))))
    for _ in range(draw(st.integers(0, 3))):
        value = _changed(draw, value)
    text = json.dumps(value).encode()
    return draw(damaged([text])) if draw(st.integers(0, 4)) == 0 else text


def _changed(draw: st.DrawFn, value: Any) -> Any:
    inside = isinstance(value, dict | list) and value
    if not inside or draw(st.integers(0, 5)) == 0:
        return draw(JSON)
    key = draw(st.sampled_from(sorted(value) if isinstance(value, dict) else range(len(value))))
    if draw(st.integers(0, 5)) == 0:
        del value[key]
    else:
        value[key] = _changed(draw, value[key])
    return value


def text(*examples: str) -> st.SearchStrategy[str]:
    """Any text, and damaged examples; also such that no file system and no terminal can show."""
    return st.text(max_size=60) | damaged([each.encode() for each in examples]).map(
        lambda data: data.decode(errors="surrogateescape")
    )


# What is read ---------------------------------------------------------------------------------------------------------


@cache
def pictures() -> list[bytes]:
    pixels = np.random.default_rng(0).integers(0, 256, (12, 10, 3), np.uint8)
    image, made = Image.fromarray(pixels), []
    for kind, options in (
        ("PNG", {}),
        ("JPEG", {}),
        ("JPEG", {"progressive": True}),
        ("GIF", {}),
        ("BMP", {}),
        ("WEBP", {}),
        ("TIFF", {}),
    ):
        file = io.BytesIO()
        image.save(file, kind, **options)
        made.append(file.getvalue())
    for mode in ("L", "LA", "P", "I;16", "1", "CMYK"):
        file = io.BytesIO()
        image.convert("L" if mode == "I;16" else mode.replace("LA", "RGBA")).convert(mode).save(
            file, "JPEG" if mode == "CMYK" else "PNG"
        )
        made.append(file.getvalue())
    return made


def _picture(folder: Path) -> Parser:
    from edge_hpcr.stream.decode import decode_image, starts_like_picture

    def parse(data: bytes) -> None:
        starts_like_picture(data)
        decode_image(data, "a picture", 1_000_000)

    return parse


def _zips() -> st.SearchStrategy[bytes]:
    made = []
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", method) as bundle:
            for number, picture in enumerate(pictures()[:2]):
                bundle.writestr(f"top/class {number}/{number}.png", picture)
        made.append(file.getvalue())
    return damaged(made)


def _zip(folder: Path) -> Parser:
    from edge_hpcr.workspace.labelled_files import check_source, open_source

    place = folder / "import.zip"

    def parse(data: bytes) -> None:
        place.write_bytes(data)
        check_source(place)
        with open_source(place, lambda path, reason: None) as files:
            for file in files:
                file.read()

    return parse


def manifests() -> list[Any]:
    digest = "0" * 64
    return [
        {
            **{
                "format": 2,
                "version": 3,
                "step": 12,
                "created": "2026-01-01T00:00:00+00:00",
                "feature_size": 160,
            },
            **{"file": "model.onnx", "bytes": 1000, "sha256": digest, "unknown_below": 0.4},
            "image": {"height": 8, "width": 8, "resize": "crop-area-v1"},
            "classes": [{"id": 1, "name": "mug", "colour": "#112233"}, {"id": 2, "name": "pen"}],
            "parity": {"max_score_difference": 1e-6},
            "variants": {
                "int8": {"file": "int8.onnx", "bytes": 10, "sha256": digest},
                "fp16": {"kept": False},
            },
        }
    ]


def _manifest(folder: Path) -> Parser:
    from export.device.manifest import parse_manifest

    return lambda data: parse_manifest(data, "manifest.json")


def _latest(folder: Path) -> Parser:
    from export.device.manifest import Latest

    return lambda data: Latest.parse(data, "latest.json")


@cache
def _model() -> bytes:
    from onnx import TensorProto, helper

    shape = helper.make_tensor_value_info("image", TensorProto.UINT8, ["N", 8, 8, 3])
    weights = helper.make_tensor("weights", TensorProto.FLOAT, [4], [1.0, 2.0, 3.0, 4.0])
    node = helper.make_node("Identity", ["image"], ["scores"])
    graph = helper.make_graph([node], "graph", [shape], [shape], [weights])
    return bytes(helper.make_model(graph).SerializeToString())


def _model_file(folder: Path) -> Parser:
    from export.device.one_file import check_one_file

    return lambda data: check_one_file(data, "model.onnx")


METADATA = {
    **{
        "format": "2",
        "created": "now",
        "edge_hpcr": "0.2.0",
        "version": "3",
        "step": "12",
        "unknown_below": "0.4",
    },
    **{
        "classes": '[{"id": 1, "name": "mug"}]',
        "image": '{"height": 8, "width": 8, "resize": "crop-area-v1"}',
    },
    **{"temperature": "1.5", "accuracy": "{}", "feature_size": "160", "proxies": "AAAA"},
}


def _metadata(folder: Path) -> Parser:
    from export.device.model_info import read_metadata

    return lambda values: read_metadata(values, "model.onnx")


def _reports() -> list[Any]:
    from edge_hpcr.live.accuracy import HeldOut, TestThenTrain

    return [
        {
            **{"pid": 7, "at": 1.8e9, "phase": "learning", "device": "cpu", "step": 12, "applied": 3},
            **{
                "labels_waiting": 0,
                "events_waiting": 0,
                "oldest_waiting_seconds": 0.0,
                "source_problem": None,
            },
            "memory": {"samples": 570, "bytes": {"image": 1, "total": 1_000_000}, "budget": 2_000_000},
            "test_then_train": TestThenTrain().summary(),
            "held_out": HeldOut().summary(),
            "suspicious": [{"sample_id": 3, "class_id": 1, "suggested": 2, "strength": 0.9}],
            "stream": {
                "name": "camera 0",
                "phase": "live",
                "message": "live",
                "frames": 3,
                "dropped": 0,
                "bad": 0,
            },
            "problems": ["a full disk"],
        }
    ]


def _status(folder: Path) -> Parser:
    from edge_hpcr.common.files import locked
    from edge_hpcr.live.status import describe, gather

    path = _workspace(folder)
    holding = locked(path / "lock", "busy")
    holding.__enter__()  # as a learner that runs: its report is believed

    def parse(data: bytes) -> None:
        (path / "status.json").write_bytes(data)
        json.dumps(gather(path), allow_nan=True)
        describe(gather(path))

    return parse


def _settings(folder: Path) -> Parser:
    from edge_hpcr.workspace.settings import Settings, upgrade_settings

    path = folder / "settings.json"

    def parse(data: bytes) -> None:
        path.write_bytes(data)
        Settings.load(path).report_unknown(path)
        upgrade_settings(path)
        Settings.load(path)

    return parse


def _some_settings() -> list[Any]:
    from edge_hpcr.workspace.settings import Settings

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "settings.json"
        Settings().save(path)
        return [json.loads(path.read_text())]


def _workspace(folder: Path) -> Path:
    """A small one: two classes, four labels, an undo."""
    from edge_hpcr.workspace.folder import Taken, Workspace

    path = folder / "workspace"
    with Workspace.open(path) as workspace:
        workspace.change_settings(backbone="reduced_resnet18", image_size=8)
        images = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 3), np.uint8)
        ids = workspace.take_many([Taken(image, f"frame {n}") for n, image in enumerate(images)])
        for number, name in enumerate(("mug", "pen")):
            workspace.journal.label(ids[2 * number : 2 * number + 2], workspace.journal.class_named(name))
        workspace.journal.undo()
    return path


def _events() -> st.SearchStrategy[tuple[int, bytes]]:
    with (
        tempfile.TemporaryDirectory() as folder,
        closing(sqlite3.connect(_workspace(Path(folder)) / "journal.sqlite")) as db,
    ):
        bodies = [json.loads(body) for (body,) in db.execute("SELECT body FROM events")]
    return st.tuples(st.integers(1, len(bodies)), damaged_json(bodies))


def _event(folder: Path) -> Parser:
    from edge_hpcr.workspace.queries import reading
    from edge_hpcr.workspace.verify import verify_workspace

    path = _workspace(folder)

    def parse(given: tuple[int, bytes]) -> None:
        seq, body = given
        with closing(sqlite3.connect(path / "journal.sqlite")) as db:
            (before,) = db.execute("SELECT body FROM events WHERE seq = ?", (seq,)).fetchone()
            db.execute("UPDATE events SET body = ? WHERE seq = ?", (body.decode(errors="replace"), seq))
            db.commit()
            try:
                verify_workspace(path)
                with reading(path / "journal.sqlite") as journal:
                    journal.events_after(0)
            finally:
                db.execute("UPDATE events SET body = ? WHERE seq = ?", (before, seq))
                db.commit()

    return parse


def _journals() -> st.SearchStrategy[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        path = _workspace(Path(folder))
        return damaged([(path / "journal.sqlite").read_bytes()])


def _journal(folder: Path) -> Parser:
    from edge_hpcr.live.status import gather
    from edge_hpcr.workspace.folder import Workspace
    from edge_hpcr.workspace.verify import verify_workspace

    whole = _workspace(folder)

    def parse(data: bytes) -> None:
        path = folder / "damaged"
        shutil.copytree(whole, path)
        try:
            (path / "journal.sqlite").write_bytes(data)
            for look in (gather, verify_workspace, lambda path: Workspace.open(path).close()):
                with suppress(*REFUSALS):
                    look(path)
        finally:
            shutil.rmtree(path)

    return parse


@cache
def _backup_file() -> bytes:
    from edge_hpcr.workspace.backup import back_up

    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "backup.zip"
        back_up(_workspace(Path(folder)), target)
        return target.read_bytes()


def _backups() -> st.SearchStrategy[bytes]:
    """The archive as bytes, and whole ones with a damaged list of files."""
    from edge_hpcr.workspace.backup import INDEX

    with zipfile.ZipFile(io.BytesIO(_backup_file())) as bundle:
        contents = {name: bundle.read(name) for name in bundle.namelist()}

    def packed(listed: bytes) -> bytes:
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as bundle:
            for name, content in {**contents, INDEX: listed}.items():
                bundle.writestr(name, content)
        return file.getvalue()

    return damaged([_backup_file()]) | damaged_json([json.loads(contents[INDEX])]).map(packed)


def _backup(folder: Path) -> Parser:
    from edge_hpcr.workspace.backup import restore

    def parse(data: bytes) -> None:
        (folder / "backup.zip").write_bytes(data)
        try:
            restore(folder / "backup.zip", folder / "restored")
        finally:
            shutil.rmtree(folder / "restored", ignore_errors=True)
            assert {path.name for path in folder.iterdir()} == {"backup.zip"}, (
                "something was left, or led out"
            )

    return parse


def _source(folder: Path) -> Parser:
    from edge_hpcr.stream import open_stream

    empty = folder / "empty"
    empty.mkdir()

    def parse(spec: str) -> None:
        # Nothing that leads to a camera, another host or this machine's own folders.
        if (
            spec.lstrip().startswith(("/", "~", ".."))
            or (spec.isdecimal() and len(spec) < 5)
            or "127" in spec
        ):
            return
        before = Path.cwd()
        os.chdir(empty)
        try:
            open_stream(spec, on_bad_file=lambda path, reason: None).close()
        finally:
            os.chdir(before)

    return parse


SOURCES = [
    "workbench",
    "workbench:3",
    "watch:folder",
    "digits",
    "film.mp4",
    "12345",
    "gopher://x",
    "rtsps3://u:p@h",
]


def _actions() -> list[Any]:
    return [
        {"do": "label", "frames": [1, 2], "class": 1},
        {"do": "label_samples", "samples": [1, 2], "class": 1},
        {"do": "label_samples_as", "samples": [3], "name": "mug"},
        {"do": "new_class", "name": "cup", "frames": [1]},
        {"do": "rename_class", "class": 1, "name": "beaker"},
        {"do": "recolour_class", "class": 1, "colour": "#112233"},
        {"do": "merge_classes", "class": 1, "into": 2},
        {"do": "delete_class", "class": 2},
        {"do": "delete_samples", "samples": [4]},
        {"do": "dismiss", "samples": [5]},
        {"do": "hold", "held": True, "frame": 3},
        {"do": "clear_problem", "problem": "x"},
        {"do": "undo"},
        {"do": "redo"},
        {"do": "cancel_transfer"},
    ]


def _action(folder: Path) -> Parser:
    from app.actions import perform
    from app.studio import Studio
    from edge_hpcr.workspace.folder import Workspace

    studio = Studio(Workspace.open(_workspace(folder)))

    def parse(body: bytes) -> None:
        try:
            json.dumps(perform(studio, body).message)
        finally:
            studio.state(fresh=True, since=body.decode(errors="replace"))

    return parse


def _queries() -> st.SearchStrategy[dict[str, str]]:
    names = st.sampled_from(["view", "page", "class", "search", "doubts", "stay", "selected"])
    values = text("queue", "labelled", "0", "1", "1,2,3", "mug", "frame 1", "99999999999999999999")
    # As a server reads them: what is no UTF-8 is replaced.
    readable = values.map(lambda value: value.encode(errors="replace").decode())
    return st.dictionaries(names, readable, max_size=5)


def _query(folder: Path) -> Parser:
    from app.review import page
    from app.studio import Studio
    from edge_hpcr.workspace.folder import Workspace

    studio = Studio(Workspace.open(_workspace(folder)))
    return lambda query: json.dumps(page(studio, query))


def _header(folder: Path) -> Parser:
    from app import security

    def parse(value: str) -> None:
        security._read_basic(value)
        security._host_name(value)
        security._from_elsewhere(
            {"type": "http", "method": "GET"}, {"origin": value, "sec-fetch-site": value}, value
        )

    return parse


def _size(folder: Path) -> Parser:
    from edge_hpcr.common.units import parse_bytes, parse_setting

    def parse(value: str) -> None:
        with suppress(UserError):
            parse_setting(value)
        parse_bytes(value)

    return parse


def _name(folder: Path) -> Parser:
    from edge_hpcr.workspace.records import clean_name, folded

    return lambda value: folded(clean_name(value))


def _pickles() -> st.SearchStrategy[bytes]:
    import pickle

    content = {
        "data": np.arange(24, dtype=np.uint8).reshape(2, 12),
        "labels": [1, 2],
        "names": ["mug", b"pen"],
    }
    return damaged([pickle.dumps(content, protocol=number) for number in range(6)])


def _pickle(folder: Path) -> Parser:
    from edge_hpcr.bench.datasets.safe_pickle import read_pickle

    path = folder / "data_batch"

    def parse(data: bytes) -> None:
        path.write_bytes(data)
        read_pickle(path)

    return parse


def _checkpoints() -> st.SearchStrategy[tuple[int, bytes]]:
    with tempfile.TemporaryDirectory() as folder:
        files = _checkpoint_files(Path(folder))
        contents = [path.read_bytes() for path in files]
    return st.one_of(
        *(st.tuples(st.just(number), damaged([content])) for number, content in enumerate(contents))
    )


def _checkpoint_files(folder: Path) -> list[Path]:
    from edge_hpcr.learner.learner import Learner, LearnerConfig
    from edge_hpcr.learner.memory import MemoryConfig

    place = folder / "checkpoint"
    learner = Learner(LearnerConfig(height=8, width=8, nf=1, memory=MemoryConfig(samples=5)), "cpu")
    images = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3), np.uint8)
    learner.observe(images, [1, 2, 1, 2])
    learner.save(place, {"applied": 3})
    return sorted(path for path in place.iterdir() if path.is_file())


def _checkpoint(folder: Path) -> Parser:
    from edge_hpcr.learner.learner import Learner

    files = _checkpoint_files(folder)

    def parse(given: tuple[int, bytes]) -> None:
        number, data = given
        before = files[number].read_bytes()
        try:
            files[number].write_bytes(data)
            Learner.load(files[number].parent, "cpu")
        finally:
            files[number].write_bytes(before)

    return parse


TARGETS: dict[str, Target] = {
    "pictures": Target(lambda: damaged(pictures()) | st.binary(max_size=200), _picture),
    "zips": Target(_zips, _zip),
    "manifest.json": Target(lambda: damaged_json(manifests()), _manifest),
    "latest.json": Target(
        lambda: damaged_json([{"format": 1, "version": 3, "folder": "v3", "manifest_sha256": "0" * 64}]),
        _latest,
    ),
    "model files": Target(lambda: damaged([_model()]) | st.binary(max_size=200), _model_file),
    "model metadata": Target(
        lambda: st.fixed_dictionaries({key: st.just(value) | text(value) for key, value in METADATA.items()}),
        _metadata,
    ),
    "status.json": Target(lambda: damaged_json(_reports()), _status),
    "settings.json": Target(lambda: damaged_json(_some_settings()), _settings),
    "events of the journal": Target(_events, _event),
    "journal files": Target(_journals, _journal),
    "backups": Target(_backups, _backup),
    "checkpoints": Target(_checkpoints, _checkpoint),
    "sources": Target(lambda: text(*SOURCES), _source),
    "requests of the page": Target(lambda: damaged_json(_actions()), _action),
    "queries of the page": Target(_queries, _query),
    "headers": Target(lambda: text("Basic YW5uYTpwYXNzd29yZA==", "127.0.0.1:7860", "[::1]:7860"), _header),
    "sizes and settings": Target(lambda: text("2MB", "1.5 GiB", "alpha=0.1", "name='x'"), _size),
    "class names": Target(lambda: text("mug", "Tasse", "كوب", "👩‍🔧", "a" * 200), _name),
    "pickles of CIFAR": Target(_pickles, _pickle),
}


# Running --------------------------------------------------------------------------------------------------------------


def checked(parser: Parser) -> Parser:
    """The parser; its refusals are as good as an answer, and slowness is not."""

    def parse(data: Any) -> None:
        begun = time.monotonic()
        with suppress(*REFUSALS):
            parser(data)
        assert time.monotonic() - begun < LONGEST_SECONDS, "it took too long"

    return parse


@contextmanager
def ready(name: str) -> Iterator[tuple[st.SearchStrategy[Any], Parser]]:
    with tempfile.TemporaryDirectory(prefix="edge-hpcr-fuzz-") as folder:
        yield TARGETS[name].inputs(), checked(TARGETS[name].parser(Path(folder)))


def run(inputs: st.SearchStrategy[Any], parser: Parser, examples: int, number: int) -> None:
    """So many examples; the smallest that fails is shown."""
    quiet = settings(
        max_examples=examples,
        deadline=None,
        database=None,
        print_blob=True,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    seed(number)(quiet(given(inputs)(parser)))()


def fuzz_for(name: str, seconds: float, first_seed: int) -> dict[str, Any]:
    count, defects = 0, []

    with ready(name) as (inputs, parser):
        begun = time.monotonic()

        def counted(data: Any) -> None:
            nonlocal count
            count += 1
            parser(data)

        number = first_seed
        while time.monotonic() - begun < seconds and len(defects) < 3:
            try:
                run(inputs, counted, AT_ONCE, number)
            except Exception as error:
                defects.append(f"seed {number}: {type(error).__name__}: {error}"[:500])
            number += 1
    spent = round(time.monotonic() - begun, 1)
    return {"examples": count, "seconds": spent, "first_seed": first_seed, "defects": defects}


commands = cli.new_commands()


@commands.command()
def fuzz(
    target: Annotated[str, Option(help=f"all, or one of {', '.join(TARGETS)}")] = "all",
    seconds: Annotated[float, Option(help="for each")] = SECONDS,
    first_seed: Annotated[int, Option("--seed", metavar="K")] = 0,
    out: Annotated[Path, Option(metavar="FILE", help="where to keep it")] = Path("results/fuzz.json"),
) -> int:
    """Feed damaged input to everything that reads from outside. 1 when something else than a clear refusal came."""
    one_of("target", target, (*TARGETS, "all"))
    check_writable(out)
    found = (
        json.loads(out.read_text())["targets"] if out.exists() else {}
    )  # each target is kept beside the others
    with circumstances() as machine:
        for name in TARGETS if target == "all" else [target]:
            found[name] = fuzz_for(name, seconds, first_seed)
            print(f"{name}: {found[name]}", flush=True)
    passed = not any(each["defects"] for each in found.values())
    rows = [
        [name, f"{each['examples']:,}", f"{each['seconds']:.0f}", str(len(each["defects"]))]
        for name, each in found.items()
    ]
    keep_with_page(
        out,
        {"targets": found, "passed": passed, **machine},
        [table(["what is read", "damaged examples", "seconds", "defects"], rows)],
        "python -m benchmarks.fuzz",
    )
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(cli.run(commands, "python -m benchmarks.fuzz"))
