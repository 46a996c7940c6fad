"""From the published file to a device's line: the contract of a model, and that trainer, file and device say the same."""

import json
import urllib.request
from contextlib import suppress
from pathlib import Path

import cv2
import jsonschema
import numpy as np
import onnx
import onnxruntime
import pytest

from journeys.parts import (
    ROOT,
    ask,
    digits,
    edge,
    edge_json,
    free_port,
    png,
    run,
    running_app,
    started,
    taught_workspace,
    wait_for,
)

pytestmark = pytest.mark.slow
SCHEMA = json.loads((ROOT / "export" / "device" / "line.schema.json").read_text())
NAMES = ["digit 0", "digit 1", "digit 2"]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory) -> Path:
    """Digits that were learned and published: version 1."""
    workspace = taught_workspace(tmp_path_factory.mktemp("published"))
    said = json.loads(run("export", "--workspace", workspace, "--json").stdout)
    assert said["manifest"]["version"] == 1
    return workspace


@pytest.fixture(scope="module")
def exports(workspace) -> Path:
    return workspace / "exports"


@pytest.fixture(scope="module")
def pictures(workspace) -> Path:
    return workspace.parent / "pictures"


def lines(exports: object, pictures: Path, *options: object, status: int = 0) -> list[dict]:
    """What a device prints of these pictures."""
    cache = ("--cache", pictures.parent / "cache", "--cpu")
    done = run("export.runtime", "--models", exports, "--source", pictures, *cache, *options, status=status)
    return [json.loads(line) for line in done.stdout.splitlines()]


def answers(model: Path, images: np.ndarray) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, {"image": images}), strict=True))


def rgb(path: Path) -> np.ndarray:
    return cv2.imread(str(path))[..., ::-1].copy()


def test_a_model_has_the_inputs_outputs_and_metadata_of_the_contract(exports):
    session = onnxruntime.InferenceSession(exports / "v000001" / "model.onnx")
    assert [(each.name, each.type, each.shape) for each in session.get_inputs()] == [
        ("image", "tensor(uint8)", ["N", 8, 8, 3])
    ]
    assert [(each.name, each.type, each.shape) for each in session.get_outputs()] == [
        ("scores", "tensor(float)", ["N", 3]),
        ("feature", "tensor(float)", ["N", 160]),
        ("similarity", "tensor(float)", ["N"]),
    ]
    model = onnx.load(exports / "v000001" / "model.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert [(each.domain, each.version) for each in model.opset_import] == [("", 11)]
    facts = {each.key: each.value for each in model.metadata_props}
    assert (facts["version"], int(facts["step"]) > 0) == ("1", True)
    assert [(each["id"], each["name"]) for each in json.loads(facts["classes"])] == list(
        zip((1, 2, 3), NAMES, strict=True)
    )
    image = json.loads(facts["image"])
    assert image == {
        "height": 8,
        "width": 8,
        "colour": "RGB",
        "layout": "NHWC",
        "type": "uint8",
        "resize": "centre-square-area",
    }
    assert {"unknown_below", "accuracy", "temperature", "created"} <= facts.keys()


def test_what_lies_beside_a_model_is_named_with_its_checksum_and_the_golden_sample_comes_out(
    exports, tmp_path
):
    folder = exports / "v000001"
    manifest = json.loads((folder / "manifest.json").read_text())
    named = {each["file"] for each in manifest["beside"].values()} | {manifest["file"], "manifest.json"}
    assert named == {path.name for path in folder.iterdir()}
    assert (folder / "labels.txt").read_text().split("\n")[:3] == NAMES
    latest = json.loads((exports / "latest.json").read_text())
    assert (latest["version"], latest["folder"]) == (1, "v000001")
    golden = json.loads((folder / "golden.json").read_text())
    found = answers(folder / "model.onnx", rgb(folder / golden["input"])[None])
    assert found["scores"][0] == pytest.approx(golden["scores"], abs=golden["tolerance"]["input"])
    (tmp_path / "golden.png").write_bytes((folder / golden["image"]).read_bytes())
    (line,) = lines(folder, tmp_path)
    assert line["top"][0]["id"] == golden["best"]["id"]
    assert line["top"][0]["confidence"] == pytest.approx(
        max(golden["scores"]), abs=golden["tolerance"]["image"]
    )


def test_trainer_file_and_device_say_the_same(workspace, exports, pictures):
    paths = sorted(pictures.rglob("*.png"))
    found = answers(exports / "v000001" / "model.onnx", np.stack([rgb(path) for path in paths]))
    assert found["scores"].sum(1) == pytest.approx(np.ones(len(paths)), abs=1e-4)
    one = answers(exports / "v000001" / "model.onnx", rgb(paths[0])[None])
    assert one["scores"][0] == pytest.approx(found["scores"][0], abs=1e-5), "alone as among others"

    said = {Path(line["origin"]): line for line in lines(exports, pictures)}
    assert said.keys() == set(paths)
    for path, scores, similarity in zip(paths, found["scores"], found["similarity"], strict=True):
        top = {each["name"]: each["confidence"] for each in said[path]["top"]}
        assert [top[name] for name in NAMES] == pytest.approx(list(scores), abs=1e-4)
        assert said[path]["similarity"] == pytest.approx(similarity, abs=1e-4)

    with running_app(workspace) as app:
        assert app.state()["model"] == 1
        for path in paths[::9]:
            answer = app.show(path.read_bytes(), path.name)
            top = {each["id"]: each["confidence"] for each in said[path]["top"]}
            assert dict(answer["top"]) == pytest.approx(top, abs=2e-3)
            assert answer["similarity"] == pytest.approx(said[path]["similarity"], abs=2e-3)


def test_a_devices_lines_are_as_the_schema_says(exports, pictures):
    assert json.loads(run("export.runtime", "--schema").stdout) == SCHEMA
    found = lines(exports, pictures, "--device-id", "cam-1", "--top", "2", "--smooth", "3", "--count", "5")
    assert [line["frame"] for line in found] == [1, 2, 3, 4, 5]
    for line in found:
        jsonschema.validate(line, SCHEMA)
        assert (line["device"], line["version"], len(line["top"])) == ("cam-1", 1, 2)
        assert line["top"][0]["confidence"] >= line["top"][1]["confidence"]


def test_a_device_says_over_http_how_it_is_and_shows_what_it_sees(exports, pictures):
    port = free_port()
    device = ("--models", exports, "--source", "workbench", "--http", port, "--cpu")
    with started("export.runtime", *device, "--cache", pictures.parent / "cache"):
        address = f"http://127.0.0.1:{port}"

        def ready() -> bool:
            with suppress(OSError):
                return ask(f"{address}/healthz")[0] == 200
            return False

        wait_for(ready, "the device")
        facts = json.loads(ask(f"{address}/healthz")[1])
        assert (facts["version"], facts["problem"]) == (1, None) and facts["frames"] > 0
        assert ask(f"{address}/frame.jpg")[1][:2] == b"\xff\xd8"


def test_a_server_gives_models_out_devices_report_and_send_frames_back(workspace, pictures):
    token, port = workspace.parent / "token.txt", free_port()
    token.write_text("a-token-of-good-length\n")
    address = f"http://127.0.0.1:{port}"
    before = edge_json("status", workspace)["queue"]["samples"]
    with started("export", "serve", "--workspace", workspace, "--port", port, "--token", token):

        def ready() -> bool:
            with suppress(OSError):
                return ask(f"{address}/healthz")[0] == 200
            return False

        wait_for(ready, "the server")
        assert ask(f"{address}/latest.json")[0] == 401
        status, latest = ask(f"{address}/latest.json", token="a-token-of-good-length")
        assert (status, json.loads(latest)["version"]) == (200, 1)
        assert ask(f"{address}/journal.sqlite", token="a-token-of-good-length")[0] == 404
        report = {"device": "cam-2", "version": 1, "since": 0, "started": 0, "now": 0, "frames": 7}
        report |= {"unknown": 1, "unsure_waiting": 0, "unsure_dropped": 0, "problem": None, "software": "x"}
        body = json.dumps(report).encode()
        assert ask(f"{address}/devices/cam-2/report", body, "a-token-of-good-length")[0] == 204
        assert ask(f"{address}/devices/cam-2/report", b"no json", "a-token-of-good-length")[0] == 400
        assert ask(f"{address}/devices/cam-2/report", body)[0] == 401
        headers = {"Authorization": "Bearer a-token-of-good-length", "Reason": "unsure"}
        frame = cv2.resize(digits(4)[3], (64, 64))
        for status in (201, 200):  # each is taken once
            request = urllib.request.Request(
                f"{address}/devices/cam-2/frames/frame-1", png(frame), headers=headers
            )
            with urllib.request.urlopen(request, timeout=60) as answer:
                assert answer.status == status
        found = lines(address, pictures, "--token", token, "--device-id", "cam-1", "--count", "3")
        assert [line["version"] for line in found] == [1, 1, 1]
        devices = {each["id"]: each for each in edge_json("devices", workspace)}
        assert (devices["cam-2"]["version"], devices["cam-2"]["frames"]) == (1, 7)
    assert edge_json("status", workspace)["queue"]["samples"] == before + 1


def test_a_running_device_takes_a_new_version_and_a_rollback(workspace, exports, pictures, tmp_path):
    edge("classes", workspace, "rename", "digit 0", "naught")
    log = tmp_path / "log"
    device = ("--models", exports, "--source", "workbench", "--poll", "0.2", "--cpu")
    with started("export.runtime", *device, "--cache", tmp_path / "cache", log=log):
        wait_for(lambda: '"version": 1' in log.read_text(), "version 1")
        edge("learn", "--workspace", workspace, "--source", pictures, "--no-rehearsal")
        said = json.loads(run("export", "--workspace", workspace, "--json").stdout)
        assert said["manifest"]["version"] == 2
        wait_for(lambda: '"version": 2' in log.read_text(), "version 2")
        run("export", "rollback", "--workspace", workspace)
        size = len(log.read_text())
        wait_for(lambda: '"version": 1' in log.read_text()[size:], "version 1 again")
    listed = json.loads(run("export", "list", "--workspace", workspace, "--json").stdout)
    assert listed["versions"][1]["classes"][0]["name"] == "naught"
    assert (listed["latest"], [each["version"] for each in listed["versions"]]) == (1, [1, 2])
    assert (exports / "v000002" / "labels.txt").read_text().split()[0] == "naught"
    run("export", "rollforward", "--workspace", workspace)
    assert json.loads((exports / "latest.json").read_text())["version"] == 2


def test_signed_models_are_taken_and_others_refused(workspace, exports, pictures, tmp_path):
    run("export", "keygen", "--private", tmp_path / "key.pem", "--public", tmp_path / "public.pem")
    options = ("--public-key", tmp_path / "public.pem", "--count", "1")
    assert lines(exports, pictures, *options, status=2) == []
    run("export", "--workspace", workspace, "--sign", tmp_path / "key.pem")
    assert len(lines(exports, pictures, *options)) == 1
    run("export", "keygen", "--private", tmp_path / "other.pem", "--public", tmp_path / "others.pem")
    assert lines(exports, pictures, "--public-key", tmp_path / "others.pem", status=2) == []
