"""The device sees what the trainer sees: one stream stack, tried through the commands of both."""

import io
import json
import struct
import subprocess
import sys
import zlib
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from device_parts import frame_of, manifest_of, metadata_of, publish
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from process_parts import started
from test_streams_network import QUICK, serving
from test_streams_video import FRAMES, packets, write_video

from edge_hpcr.stream import camera
from edge_hpcr.stream.resize import prepare
from edge_hpcr.workspace.folder import Workspace
from export.device.runtime import main

ROOT = Path(__file__).parent.parent
SIDE = 8
PLACES = SIDE * SIDE * 3


@pytest.fixture
def exports(tmp_path: Path) -> Path:
    publish(tmp_path / "exports", 1)
    return tmp_path / "exports"


def classify(exports: Path, source: object, *options: object) -> int:
    places = ["--models", str(exports), "--source", str(source)]
    return main(["--cpu", "--threads", "1", *places, *map(str, options)])


# Parity ---------------------------------------------------------------------------------------------------------------


def transparent_model() -> bytes:
    """A model whose scores are the pixels that it sees, so that a line of the runtime tells the whole picture.

    A class for each value, with the probability value / (255 * values), and one for the rest.
    """
    names = (*(f"place {place}" for place in range(PLACES)), "rest")
    nodes = [
        helper.make_node("Cast", ["image"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("Reshape", ["numbers", "flat"], ["row"]),
        helper.make_node("Div", ["row", "full"], ["shares"]),
        helper.make_node("ReduceSum", ["shares", "axes"], ["sum"], keepdims=1),
        helper.make_node("Sub", ["one", "sum"], ["rest"]),
        helper.make_node("Concat", ["shares", "rest"], ["scores"], axis=1),
        helper.make_node("ReduceMean", ["numbers", "sides"], ["feature"], keepdims=0),
    ]
    constants = {
        "flat": np.array([-1, PLACES], np.int64),
        "full": np.array(255 * PLACES, np.float32),
        "axes": np.array([1], np.int64),
        "one": np.array(1, np.float32),
        "sides": np.array([1, 2], np.int64),
    }
    graph = helper.make_graph(
        nodes,
        "transparent",
        [helper.make_tensor_value_info("image", TensorProto.UINT8, ["N", SIDE, SIDE, 3])],
        [
            helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["N", PLACES + 1]),
            helper.make_tensor_value_info("feature", TensorProto.FLOAT, ["N", 3]),
        ],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    helper.set_model_props(model, metadata_of(1, names, SIDE))
    return model.SerializeToString(), manifest_of(model.SerializeToString(), 1, names, SIDE)


def seen_by_the_model(line: dict) -> np.ndarray:
    shares = np.zeros(PLACES)
    for label in line["top"]:
        if label["name"] != "rest":
            shares[int(label["name"].split()[1])] = label["confidence"]
    return np.rint(shares * 255 * PLACES).astype(np.uint8).reshape(SIDE, SIDE, 3)


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def png_of_16_bits(values: np.ndarray) -> bytes:
    """RGB with 16 bits, which Pillow does not write."""
    height, width = values.shape[:2]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    parts = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0))]
    parts += [(b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    chunks = [
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in parts
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def corpus() -> dict[str, bytes]:
    """Every kind of file on which two decoders may differ; 30 x 20 pixels of a slope with some noise."""
    noise = np.random.default_rng(4).integers(0, 60, (20, 30, 3))
    colours = (np.linspace(0, 195, 30)[None, :, None] * [1, 0.6, 0.3] + noise).astype(np.uint8)
    picture = Image.fromarray(colours)
    alpha = picture.convert("RGBA")
    alpha.putalpha(Image.fromarray(np.linspace(0, 255, 600).astype(np.uint8).reshape(20, 30)))
    palette = picture.quantize(16)
    turned = Image.Exif()
    turned[0x0112] = 6
    frames = [picture, picture.transpose(Image.Transpose.ROTATE_180)]
    jpeg, png = encoded(picture, "JPEG"), encoded(picture, "PNG")
    return {
        "alpha.png": encoded(alpha, "PNG"),
        "alpha.webp": encoded(alpha, "WEBP", lossless=True, exact=True),
        "animated.webp": encoded(frames[0], "WEBP", save_all=True, append_images=frames[1:], lossless=True),
        "cmyk.jpg": encoded(picture.convert("CMYK"), "JPEG"),
        "grey.png": encoded(picture.convert("L"), "PNG"),
        "grey16.png": encoded(Image.fromarray(colours[..., 0].astype(np.uint16) * 257), "PNG"),
        "picture.bmp": encoded(picture, "BMP"),
        "picture.gif": encoded(palette, "GIF"),
        "picture.tiff": encoded(picture, "TIFF"),
        "palette.png": encoded(palette, "PNG"),
        "palette_transparent.png": encoded(palette, "PNG", transparency=3),
        "plain": jpeg,  # a name says nothing
        "rgb16.png": png_of_16_bits(colours.astype(np.uint16) * 257),
        "turned.jpg": encoded(picture, "JPEG", exif=turned),
        "cut.jpg": jpeg[: len(jpeg) // 2],
        "cut.png": png[: len(png) // 2],
        "empty.png": b"",
        "float.tiff": encoded(Image.new("F", (4, 4)), "TIFF"),
        "text.jpg": b"no image",
    }


REFUSED = {"cut.jpg", "cut.png", "empty.png", "float.tiff", "text.jpg"}


@pytest.mark.slow
def test_trainer_and_device_see_the_same_pictures_and_refuse_the_same_files_in_the_same_words(tmp_path: Path):
    folder = tmp_path / "pictures" / "thing"
    folder.mkdir(parents=True)
    for name, data in corpus().items():
        (folder / name).write_bytes(data)

    command = [sys.executable, "-m", "edge_hpcr", "learn", "--workspace", str(tmp_path / "w")]
    command += ["--source", str(folder.parent), "--labels", "folders", "--size", str(SIDE)]
    command += ["--set", "backbone=reduced_resnet18", "--set", "threads=1", "--set", "idle_steps=0"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    with Workspace.open(tmp_path / "w") as workspace:
        learned = {
            Path(row.origin).name: prepare(workspace.image(row.id), (SIDE, SIDE))
            for row in workspace.journal.samples(limit=1000)
        }
    notes = (tmp_path / "w" / "quarantine" / "quarantine.jsonl").read_text().splitlines()
    refused = {Path(note["path"]).name: note["reason"] for note in map(json.loads, notes)}

    data, manifest = transparent_model()
    publish(tmp_path / "exports", 1, data, manifest)
    command = [sys.executable, "-m", "export.runtime", "--cpu", "--threads", "1", "--top", str(PLACES + 1)]
    command += ["--models", str(tmp_path / "exports"), "--source", str(folder.parent)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    seen = {Path(line["origin"]).name: seen_by_the_model(line) for line in lines}

    assert set(seen) == set(learned) == set(corpus()) - REFUSED
    for name, picture in learned.items():
        np.testing.assert_array_equal(seen[name], picture, err_msg=name)
    assert set(refused) == REFUSED
    told = [line.removeprefix("export.runtime: ") for line in done.stderr.splitlines()]
    assert sorted(line for line in told if "cannot be used" in line) == sorted(refused.values())
    # What was another picture on the device: transparent parts were black there.
    assert seen["alpha.png"][0].min() > 200


# A device's own packages ----------------------------------------------------------------------------------------------

DEVICE = """
import sys
sys.path[:] = [path for path in sys.path if "site-packages" not in path] + sys.argv[1:3]
from export.device.runtime import main
code = main(sys.argv[3:])
ours = {name for name in sys.modules if name.startswith("edge_hpcr.")}
assert all(name.split(".")[1] in ("common", "stream") for name in ours), ours
assert not {"sqlite3", "torch", "gradio", "pandas", "scipy", "sklearn"} & set(sys.modules)
sys.exit(code)
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the packages that export/requirements.txt names, and no other."""
    folder = tmp_path_factory.mktemp("packages")
    lines = (ROOT / "export" / "requirements.txt").read_text().splitlines()
    for line in lines:
        name = line.partition("==")[0]
        if not name or name.startswith("#"):
            continue
        if name == "onnxruntime" and "onnxruntime" not in {each.name for each in metadata.distributions()}:
            name = "onnxruntime-gpu"
        distribution = metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files or [] if file.parts[0] != ".."}:
            (folder / top).symlink_to(distribution.locate_file(top))
    return folder


def on_a_device(packages: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-S", "-c", DEVICE, str(packages), str(ROOT), "--cpu", "--threads", "1"]
    return subprocess.run(
        [*command, *map(str, arguments)], capture_output=True, text=True, timeout=60, cwd=packages
    )


@pytest.mark.slow
def test_a_device_needs_the_packages_of_its_own_list_only(packages: Path, exports: Path, tmp_path: Path):
    (tmp_path / "images").mkdir()
    Image.fromarray(frame_of("blue")).save(tmp_path / "images" / "a.png")
    done = on_a_device(packages, "--models", exports, "--source", tmp_path / "images")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["top"][0]["name"] == "blue"
    done = on_a_device(
        packages, "--models", exports, "--source", tmp_path / "images", "--watch", "--count", 1
    )
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 1), done.stderr


def test_the_digits_are_refused_in_one_line_where_scikit_learn_is_missing(packages: Path, exports: Path):
    done = on_a_device(packages, "--models", exports, "--source", "digits")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        "export.runtime: the digits come with scikit-learn, which is missing: pip install scikit-learn"
    ]


# Sources in trouble ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_camera_that_hangs_is_reopened_told_once_and_its_password_never(
    exports: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(camera, "Patience", lambda: QUICK)
    with serving() as server:
        server.first_frames = 3
        url = server.url.replace("http://", "http://admin:s3cret@") + "?token=s3cret"
        assert classify(exports, url, "--count", 5) == 0
    said = capsys.readouterr()
    assert server.connections > 1
    lines = [json.loads(line) for line in said.out.splitlines()]
    assert [line["origin"] for line in lines] == [f"{server.url}?…"] * 5
    told = [line.partition("?…: ")[2] for line in said.err.splitlines() if server.url in line]
    assert [text.split()[0] for text in told] == ["stalled", "works"]
    assert "s3cret" not in said.out + said.err


def test_one_damaged_frame_does_not_end_a_video(exports: Path, tmp_path: Path, capsys):
    write_video(tmp_path / "film.avi")
    data = bytearray((tmp_path / "film.avi").read_bytes())
    places = packets(bytes(data))
    data[places[5] + 8 : places[6]] = b"\x55" * (places[6] - places[5] - 8)
    (tmp_path / "film.avi").write_bytes(data)
    assert classify(exports, tmp_path / "film.avi") == 0
    assert len(capsys.readouterr().out.splitlines()) == FRAMES - 1


def test_bad_files_are_told_and_left_out_and_nothing_else_is_an_error(exports: Path, tmp_path: Path, capsys):
    (tmp_path / "images").mkdir()
    Image.fromarray(frame_of("red")).save(tmp_path / "images" / "9.png")
    (tmp_path / "images" / "10.png").write_text("no image")
    assert classify(exports, tmp_path / "images") == 0
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == 1
    assert said.err.count("10.png cannot be used as an image") == 1
    assert said.err.splitlines()[-1] == f"export.runtime: {tmp_path / 'images'}: ended after 1 images"


def test_a_folder_without_any_image_is_the_wrong_one(exports: Path, capsys: pytest.CaptureFixture[str]):
    assert classify(exports, exports) == 2
    assert "there is no image in it (ended after 0 images)" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.slow
def test_a_watched_folder_may_be_away_for_a_while(exports: Path, tmp_path: Path):
    folder = tmp_path / "images"
    folder.mkdir()
    command = ["-m", "export.runtime", "--cpu", "--threads", "1", "--models", exports]
    with started(*command, "--source", folder, "--watch", "--count", "1") as device:
        assert "model v1" in device.stderr.readline()
        folder.rename(tmp_path / "away")
        assert f"{folder} has disappeared, waiting for it" in device.stderr.readline()
        (tmp_path / "away").rename(folder)
        assert device.stderr.readline() == f"export.runtime: {folder}: works again\n"
        Image.fromarray(frame_of("green")).save(folder / "a.png")
        assert json.loads(device.stdout.readline())["top"][0]["name"] == "green"
        assert device.wait(60) == 0
