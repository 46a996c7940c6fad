"""`python -m benchmarks.fuzz`: damaged input for everything that reads from outside; only clear refusals are good.

Hypothesis damages whole examples: bytes are replaced, cut out, doubled or cut off, and in JSON any value becomes any
other. What reads it is asked as a user asks it: by a command, over HTTP, or by the function that others call. It may take
what it gets, or refuse it in a sentence. Anything else, and anything that takes long, is a defect.
"""

import hashlib
import io
import json
import shutil
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from contextlib import ExitStack, redirect_stderr, redirect_stdout, suppress
from functools import cache
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import httpx
import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from PIL import Image
from typer import Option

from benchmarks.devices import OWN, TOKEN, report
from benchmarks.product import QUICK_NETWORK, free_port, running, running_app, until, write_noise
from benchmarks.runner import Out, check_writable, circumstances, keep_with_page
from edge_hpcr.bench.report import markdown
from edge_hpcr.commands import cli
from edge_hpcr.common.errors import Failed, UserError, one_of

LONGEST_SECONDS = 30.0  # on a busy machine
AT_ONCE = 200  # examples between two looks at the clock
SECONDS = 600.0
Parser = Callable[[Any], object]
# Opens what is needed in a folder of its own; gives the inputs, and what reads them.
Target = Callable[[Path, ExitStack], tuple[st.SearchStrategy[Any], Parser]]


# Damage ---------------------------------------------------------------------------------------------------------------


@st.composite
def damaged(draw: st.DrawFn, examples: list[bytes]) -> bytes:
    """One of these, with up to six edits."""
    data = draw(st.sampled_from(examples))
    for _ in range(draw(st.integers(0, 6))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.integers(0, 40)))
        put = draw(st.binary(max_size=40) | st.sampled_from(EXTREMES))
        edited = [
            data[:start] + put + data[end:],
            data[:end] + data[start:],
            data[:start],
        ]  # else, twice, cut off
        data = draw(st.sampled_from(edited))
    return data


EXTREMES = [bytes(4), b"\xff" * 4, b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f", b"\x00\x00\x00\x80"]
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


# What is read ----------------------------------------------------------------------------------------------------------


@cache
def pictures() -> list[bytes]:
    pixels = np.random.default_rng(0).integers(0, 256, (12, 10, 3), np.uint8)
    image = Image.fromarray(pixels)
    kinds = [("RGB", kind) for kind in ("PNG", "JPEG", "GIF", "BMP", "WEBP")]
    made = []
    for mode, kind in [*kinds, ("L", "PNG"), ("RGBA", "PNG"), ("P", "PNG"), ("CMYK", "JPEG")]:
        file = io.BytesIO()
        image.convert(mode).save(file, kind)
        made.append(file.getvalue())
    return made


# Who reads it ---------------------------------------------------------------------------------------------------------


def command(*arguments: object) -> None:
    """A command in this process; an exit code says whether it was done, refused or has failed in a sentence."""
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as said:
        code = cli.main([str(each) for each in arguments])
    assert code in (0, 1, 2) and "Traceback" not in said.getvalue(), said.getvalue()[-500:]


@cache
def template() -> Path:
    """A workspace with two classes, an undo, a checkpoint and a model."""
    folder = Path(tempfile.mkdtemp(prefix="edge-hpcr-fuzz-"))
    write_noise(folder / "pictures", 2, 3)
    learn = ("learn", "--workspace", folder / "w", "--source", folder / "pictures", "--labels", "folders")
    command(*learn, *QUICK_NETWORK, "--no-rehearsal")
    command("export", "--workspace", folder / "w")
    command("undo", folder / "w")
    command("backup", folder / "w", folder / "backup.zip")
    return folder


def damaged_file(place: str, inputs: st.SearchStrategy[bytes], *looks: tuple[str, ...]) -> Target:
    """A file of a workspace, and commands that read it; W stands for the workspace. Each sees a fresh copy."""

    def target(folder: Path, stack: ExitStack) -> tuple[st.SearchStrategy[Any], Parser]:
        def parse(content: bytes) -> None:
            shutil.rmtree(folder / "w", ignore_errors=True)
            shutil.copytree(template() / "w", folder / "w")
            (next((folder / "w").glob(place), None) or folder / "w" / place).write_bytes(content)
            for look in looks:
                command(*(str(folder / each) if each == "w" else each for each in look))

        return inputs, parse

    return target


def whole_file(place: str) -> st.SearchStrategy[bytes]:
    return st.deferred(lambda: damaged([next((template() / "w").glob(place)).read_bytes()]))


def whole_json(place: str) -> st.SearchStrategy[bytes]:
    return st.deferred(lambda: damaged_json([json.loads(next((template() / "w").glob(place)).read_bytes())]))


def zips(folder: Path, stack: ExitStack) -> tuple[st.SearchStrategy[Any], Parser]:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as bundle:
        for number, picture in enumerate(pictures()[:2]):
            bundle.writestr(f"top/class {number}/{number}.png", picture)

    def parse(data: bytes) -> None:
        (folder / "import.zip").write_bytes(data)
        command("samples", folder / "w", "import", folder / "import.zip")
        shutil.rmtree(folder / "w", ignore_errors=True)

    return damaged([file.getvalue()]), parse


def backups(folder: Path, stack: ExitStack) -> tuple[st.SearchStrategy[Any], Parser]:
    def parse(data: bytes) -> None:
        (folder / "backup.zip").write_bytes(data)
        command("restore", folder / "backup.zip", folder / "restored")
        shutil.rmtree(folder / "restored", ignore_errors=True)
        assert {path.name for path in folder.iterdir()} == {"backup.zip"}, "something was left, or led out"

    return damaged([(template() / "backup.zip").read_bytes()]), parse


def models(folder: Path, stack: ExitStack) -> tuple[st.SearchStrategy[Any], Parser]:
    """What a device loads: the pointer, the manifest, and the model's file."""
    import onnx

    from export.device.model import Classifier

    exports = shutil.copytree(template() / "w" / "exports", folder / "exports")
    model = onnx.load(exports / "v000001" / "model.onnx")
    del model.metadata_props[:]
    version = exports / "v000001"
    files = {
        path: path.read_bytes()
        for path in (exports / "latest.json", version / "manifest.json", version / "model.onnx")
    }

    def publish(data: bytes) -> None:
        """Put a file in the model's place, with a manifest that says so."""
        manifest = json.loads(files[version / "manifest.json"])
        manifest |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        (version / "manifest.json").write_text(json.dumps(manifest))
        (version / "model.onnx").write_bytes(data)

    def parse(given: tuple[str, Any]) -> None:
        place, content = given
        where = version
        if place == "file":
            publish(content)
        else:
            where = exports
            (exports / place).write_bytes(content)
        try:
            Classifier.load(where)
        finally:
            for path, before in files.items():
                path.write_bytes(before)

    small = model.SerializeToString()
    return st.one_of(
        *(
            st.tuples(st.just(place), damaged_json([json.loads((exports / place).read_bytes())]))
            for place in ("latest.json", "v000001/manifest.json")
        ),
        st.tuples(st.just("file"), damaged([small[:20_000], small])),
    ), parse


def decoding(folder: Path, stack: ExitStack) -> tuple[st.SearchStrategy[Any], Parser]:
    from edge_hpcr.stream.decode import decode_image

    return damaged(pictures()) | st.binary(max_size=200), lambda data: decode_image(data, "a picture")


def page(folder: Path, stack: ExitStack) -> tuple[st.SearchStrategy[Any], Parser]:
    """Requests and queries of the app's page."""
    shutil.copytree(template() / "w", folder / "w")
    app = stack.enter_context(running_app(folder / "w"))
    token = (folder / "w" / "token").read_text().strip()
    own = {"Authorization": f"Bearer {token}"}
    client = stack.enter_context(httpx.Client(base_url=app.address, timeout=60))
    names = st.sampled_from(
        ["view", "page", "class", "search", "doubts", "stay", "selected", "since", "share"]
    )
    values = text("queue", "labelled", "0", "1", "1,2,3", "mug", "99999999999999999999")
    paths = st.sampled_from(["/edge/samples", "/edge/state", "/edge/newest"])

    def parse(given: tuple[str, Any]) -> None:
        kind, content = given
        if kind == "act":
            answer = client.post("/edge/act", content=content, headers=own)
        elif kind == "picture":
            answer = client.post("/edge/picture?ask=1", content=content, headers=own)
        else:
            asked = {name: value.encode(errors="replace") for name, value in content[1].items()}
            answer = client.get(content[0], params=asked, headers=own)
        assert answer.status_code < 500, answer.text[:300]

    return st.one_of(
        st.tuples(st.just("act"), damaged_json(ACTIONS)),
        st.tuples(st.just("picture"), damaged(pictures())),
        st.tuples(st.just("query"), st.tuples(paths, st.dictionaries(names, values, max_size=5))),
    ), parse


ACTIONS: list[Any] = [
    {"do": "label", "frames": [1, 2], "class": 1},
    {"do": "label_samples", "samples": [1, 2], "class": 1},
    {"do": "label_samples", "samples": [3], "name": "mug"},
    {"do": "new_class", "name": "cup", "frames": [1]},
    {"do": "rename_class", "class": 1, "name": "beaker"},
    {"do": "merge_classes", "class": 1, "into": 2},
    {"do": "delete_class", "class": 2},
    {"do": "dismiss", "samples": [5]},
    {"do": "hold", "held": True, "frame": 3},
    {"do": "undo"},
    {"do": "redo"},
]
REPORT: Any = json.loads(report("cam-1"))


def fleet(folder: Path, stack: ExitStack) -> tuple[st.SearchStrategy[Any], Parser]:
    """Reports, frames and paths of devices."""
    shutil.copytree(template() / "w", folder / "w")
    (folder / "token").write_text(TOKEN)
    port = free_port()
    where = ("--workspace", folder / "w", "--port", port, "--token", folder / "token")
    stack.enter_context(running("export", "serve", *where, log=folder / "log"))
    own = {**OWN, "Reason": "unsure"}
    client = stack.enter_context(httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=own, timeout=60))

    def ready() -> bool:
        with suppress(httpx.HTTPError):
            return client.get("/healthz").status_code == 200
        return False

    until(ready, "the server")

    def parse(given: tuple[str, Any]) -> None:
        kind, content = given
        if kind == "path":
            answer = client.get("/" + quote(content.encode(errors="replace")))
        else:
            answer = client.post(f"/devices/cam-1/{kind}", content=content)
        assert answer.status_code < 500 or answer.status_code == 507, answer.text[:300]

    return st.one_of(
        st.tuples(st.just("report"), damaged_json([REPORT])),
        st.tuples(st.just("frames/1"), damaged(pictures())),
        st.tuples(
            st.just("path"), text("latest.json", "v000001/model.onnx", "../settings.json", "devices/x/report")
        ),
    ), parse


CHECKS = (("status", "w", "--json"), ("verify", "w"))
TARGETS: dict[str, Target] = {
    "pictures": decoding,
    "zips": zips,
    "backups": backups,
    "models": models,
    "status.json": damaged_file("status.json", whole_json("status.json"), CHECKS[0]),
    "settings.json": damaged_file(
        "settings.json", whole_json("settings.json"), *CHECKS, ("classes", "w", "list")
    ),
    "journal files": damaged_file("journal.sqlite", whole_file("journal.sqlite"), *CHECKS, ("undo", "w")),
    "checkpoints": damaged_file("checkpoints/*/*.json", whole_file("checkpoints/*/*.json"), *CHECKS),
    "requests of the page": page,
    "requests of devices": fleet,
}


# Running --------------------------------------------------------------------------------------------------------------


def checked(parser: Parser) -> Parser:
    """The parser; its refusals are as good as an answer, and slowness is not."""

    def parse(data: Any) -> None:
        begun = time.monotonic()
        with suppress(UserError, Failed):
            parser(data)
        assert time.monotonic() - begun < LONGEST_SECONDS, "it took too long"

    return parse


def fuzz_for(name: str, seconds: float, first_seed: int) -> dict[str, Any]:
    """Examples for so long; of what fails the smallest is shown."""
    count, defects, number = 0, list[str](), first_seed
    with tempfile.TemporaryDirectory(prefix="edge-hpcr-fuzz-") as folder, ExitStack() as stack:
        inputs, parser = TARGETS[name](Path(folder), stack)
        quiet = settings(
            max_examples=AT_ONCE,
            deadline=None,
            database=None,
            print_blob=True,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        )
        begun = time.monotonic()

        def counted(data: Any) -> None:
            nonlocal count
            if time.monotonic() - begun < seconds or not count:
                count += 1
                checked(parser)(data)

        while time.monotonic() - begun < seconds and len(defects) < 3:
            try:
                seed(number)(quiet(given(inputs)(counted)))()
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
    out: Out = Path("results/machine/fuzz.json"),
) -> int:
    """Feed damaged input to everything that reads from outside. 1 when something else than a clear refusal came."""
    one_of("target", target, (*TARGETS, "all"))
    check_writable(out)
    # Each target is kept beside the others that there are.
    kept = json.loads(out.read_text())["targets"] if out.exists() else {}
    found = {name: kept[name] for name in TARGETS if name in kept}
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
        [markdown(["what is read", "damaged examples", "seconds", "defects"], rows, left=1)],
        "python -m benchmarks.fuzz",
    )
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(cli.run(commands, "python -m benchmarks.fuzz"))
