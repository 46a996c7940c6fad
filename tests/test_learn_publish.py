"""`learn` that publishes by itself and serves devices, as docs/live.md writes it: real processes, sockets and models."""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import cv2
import pytest
import yaml
from export_parts import with_template
from fleet_parts import ask, make_workspace
from process_parts import ROOT, started

from edge_hpcr.commands import cli
from edge_hpcr.commands.learn import parse_period
from edge_hpcr.common.errors import UserError
from edge_hpcr.workspace.settings import Settings
from export.device.manifest import read_latest
from export.publish import beside
from export.publish.beside import ServerProcess, Serving

DEPLOY = ROOT / "export" / "deploy"
SMALL = ["--set", "backbone=reduced_resnet18", "--size", "8", "--set", "threads=1", "--set", "idle_steps=0"]
PATIENCE = 120.0
TOKEN = "a-token-of-good-length"


def until(condition, patience: float = PATIENCE):
    deadline = time.monotonic() + patience
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def answers(port: int) -> bool:
    try:
        return ask(port, "/healthz")[0].status == 200
    except OSError:
        return False


@pytest.fixture
def prepared(tmp_path: Path, digits) -> Path:
    """A folder with what the recipe needs: a workspace that learns fast, and photographs of two digits."""
    workspace = make_workspace(tmp_path / "parts", threads=1, idle_steps=0)
    with_template(workspace / "exports")
    for folder in ("photos/nought", "photos/one", "inbox", "frames"):
        (tmp_path / folder).mkdir(parents=True)
    for digit, name in ((0, "nought"), (1, "one")):
        for number, image in enumerate(digits.train_images[digits.train_labels == digit][:6]):
            cv2.imwrite(str(tmp_path / "photos" / name / f"{number}.png"), image[..., ::-1])
    shutil.copy(tmp_path / "photos" / "one" / "0.png", tmp_path / "frames")
    return tmp_path


def recipe() -> list[str]:
    """The commands of the headless recipe in docs/live.md."""
    text = (ROOT / "docs" / "live.md").read_text()
    (block,) = re.findall(r"(?ms)^## One command.*?^```\n(.*?)^```", text)
    return [line.partition("   #")[0].strip() for line in block.replace("\\\n", " ").splitlines()]


@pytest.mark.slow
def test_the_recipe_works_as_it_is_written(prepared: Path):
    make_token, learn, classify = recipe()
    assert learn.startswith("python -m edge_hpcr learn ") and classify.startswith("python -m export.runtime ")
    port = free_port()

    def arguments(command: str) -> list[str]:
        return shlex.split(command.replace(":8081", f":{port}").replace("trainer:", "127.0.0.1:"))[1:]

    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    options = {"cwd": prepared, "env": environment}
    made = subprocess.run(
        make_token.replace("python", shlex.quote(sys.executable), 1), shell=True, **options, timeout=60
    )
    assert made.returncode == 0
    token = (prepared / "token.txt").read_text().strip()
    with started(*arguments(learn), **options) as trainer:
        until(lambda: answers(port))
        assert ask(port, "/latest.json", token="wrong-token-wrong-token")[0].status == 401
        shutil.copytree(prepared / "photos", prepared / "inbox", dirs_exist_ok=True)
        reply = until(lambda: (found := ask(port, "/latest.json", token=token))[0].status == 200 and found)
        assert json.loads(reply[1])["version"] == 1
        known = until(
            lambda: (
                len(
                    json.loads(ask(port, f"/{_folder(port, token)}/manifest.json", token=token)[1])["classes"]
                )
                == 2
            )
        )
        assert known
        done = subprocess.run(
            [sys.executable, *arguments(classify), "--cpu"],
            **options,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, done.stderr
        line = json.loads(done.stdout.splitlines()[0])
        assert line["version"] >= 1 and {each["name"] for each in line["top"]} == {"nought", "one"}
        trainer.send_signal(signal.SIGINT)
        out, err = trainer.communicate(timeout=PATIENCE)
    assert trainer.returncode == 0, err
    assert "published version 1" in err and "12 labels" in out
    until(lambda: not answers(port), 30)


def _folder(port: int, token: str) -> str:
    return json.loads(ask(port, "/latest.json", token=token)[1])["folder"]


@pytest.mark.slow
def test_what_was_learned_from_a_folder_is_published_at_its_end_and_kept_so(
    prepared: Path, own_signals, capsys
):
    workspace = prepared / "parts"
    command = ["learn", "--workspace", str(workspace), "--source", str(prepared / "photos")]
    assert cli.main([*command, "--labels", "folders", "--publish-every", "3600s"]) == 0
    assert read_latest(workspace / "exports").version == 1
    assert "published version 1" in capsys.readouterr().err
    settings = Settings.load(workspace / "settings.json")
    assert (settings.publish_seconds, settings.publish_steps) == (3600, 0)
    assert cli.main([*command, "--labels", "folders"]) == 0
    assert read_latest(workspace / "exports").version == 1, "the settings still ask, and nothing is new"
    assert cli.main([*command, "--labels", "folders", "--publish-every", "never"]) == 0
    assert Settings.load(workspace / "settings.json").publish_seconds == 0


@pytest.mark.slow
def test_the_server_is_started_again_and_ends_with_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(beside, "MOST_PAUSE", 0.1)
    workspace = make_workspace(tmp_path / "w")
    serving = Serving.parse("127.0.0.1:0", None)
    server = ServerProcess(workspace, serving)
    server.start()
    try:
        until(lambda: answers(serving.port))
        killed = server._process
        killed.kill()
        until(lambda: server._process is not killed and answers(serving.port))
    finally:
        last = server._process
        server.stop()
    assert last.poll() == 0 and not answers(serving.port)


ORPHAN = """
import os, sys
from pathlib import Path
from export.publish.beside import ServerProcess, Serving
server = ServerProcess(Path(sys.argv[1]), Serving("127.0.0.1", int(sys.argv[2]), None))
server.start()
sys.stdin.read()
os._exit(9)
"""


@pytest.mark.slow
def test_a_trainer_that_is_killed_leaves_no_server_behind(tmp_path: Path):
    workspace, port = make_workspace(tmp_path / "w"), free_port()
    with started("-c", ORPHAN, workspace, port, stdin=subprocess.PIPE, env={**os.environ}) as parent:
        until(lambda: answers(port))
        parent.kill()
        parent.wait(30)
        until(lambda: not answers(port), 30)


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("60s", {"publish_seconds": 60, "publish_steps": 0}),
        ("200steps", {"publish_seconds": 0, "publish_steps": 200}),
        ("never", {"publish_seconds": 0, "publish_steps": 0}),
    ],
)
def test_how_often_is_said_in_seconds_or_steps(text: str, settings: dict[str, int]):
    assert parse_period(text) == settings


@pytest.mark.parametrize(
    "text", ["", "60", "0s", "-5s", "1.5s", "5 minutes", "0steps", "99999999999s", "999999999s", "s"]
)
def test_how_often_must_make_sense(text: str):
    with pytest.raises(UserError, match=r"--publish-every .*: write it like 60s or 200steps"):
        parse_period(text)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--publish-every", "often"], "--publish-every often: write it like"),
        (["--serve", "8081"], "--serve 8081: write it as HOST:PORT"),
        (["--serve", "127.0.0.1:99999"], "write it as HOST:PORT"),
        (["--serve", "no.such.host.invalid:8081"], "--serve no.such.host.invalid"),
        (["--serve", "0.0.0.0:8081"], "open to the network: give a token"),
        (["--serve", "0.0.0.0:8081", "--token", "missing"], "cannot read the token file missing"),
        (["--token", "missing"], "give --serve HOST:PORT too"),
        (["--set", "publish_seconds=-1"], "setting publish_seconds -1"),
        (["--set", "publish_int8=maybe"], "setting publish_int8 'maybe'"),
    ],
)
def test_wrong_input_is_one_line_and_leaves_no_workspace(
    tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch, options: list[str], says: str
):
    monkeypatch.delenv("EDGE_HPCR_TOKEN", raising=False)
    before = ["learn", "--workspace", str(tmp_path / "w"), "--source", "digits", *SMALL]
    assert cli.main([*before, *options]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert says in line
    if not options[0].startswith("--set"):
        assert not (tmp_path / "w").exists()


def test_a_port_that_is_taken_is_said_before_anything_is_learned(tmp_path: Path, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert (
            cli.main(["learn", "--workspace", str(tmp_path / "w"), "--source", "digits", "--serve", address])
            == 2
        )
    assert "cannot listen on 127.0.0.1" in capsys.readouterr().err and not (tmp_path / "w").exists()


# The unit and the compose file ----------------------------------------------------------------------------------------


def moved(command: list[str], places: dict[str, Path | str]) -> list[str]:
    """A command of a machine that is not here, with this one's places."""
    for theirs, ours in places.items():
        assert any(theirs in word for word in command), f"{theirs} is not in {command}"
        command = [word.replace(theirs, str(ours)) for word in command]
    return command


def unit(name: str) -> dict[str, str]:
    text = (DEPLOY / name).read_text().replace("\\\n", " ")
    return dict(line.partition("=")[::2] for line in text.splitlines() if "=" in line and line[0] != "#")


def learns_and_serves(arguments: list[str], port: int, capfd) -> None:
    assert arguments[0] == "learn"
    assert cli.main([*arguments, "--seconds", "1"]) == 0
    assert f"at http://127.0.0.1:{port}" in capfd.readouterr().err


@pytest.mark.slow
def test_the_command_of_the_unit_learns_and_serves(prepared: Path, own_signals, capfd):
    (prepared / "token").write_text(TOKEN)
    port = free_port()
    python, flag, module, *arguments = shlex.split(unit("edge-hpcr-trainer.service")["ExecStart"])
    assert (Path(python).name, flag, module) == ("python", "-m", "edge_hpcr")
    places = {
        "/var/lib/edge-hpcr/parts": prepared / "parts",
        "/var/lib/edge-hpcr/inbox": prepared / "inbox",
        "/etc/edge-hpcr/tokens": prepared / "token",
        "0.0.0.0:8081": f"127.0.0.1:{port}",
    }
    learns_and_serves(moved(arguments, places), port, capfd)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze here")
@pytest.mark.parametrize("name", ["edge-hpcr-trainer.service", "edge-hpcr-device.service"])
def test_systemd_understands_the_units(name: str, tmp_path: Path):
    text = (DEPLOY / name).read_text()
    python = shlex.split(unit(name)["ExecStart"])[0]
    # Neither their Python nor their user is on this machine.
    text = text.replace(python, sys.executable).replace("/srv/edge-hpcr", str(ROOT))
    (tmp_path / name).write_text(re.sub(r"(?m)^User=.*$", "User=root", text))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / name)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    own = [line for line in (done.stdout + done.stderr).splitlines() if name in line]
    assert (done.returncode, own) == (0, [])


@pytest.fixture(scope="module")
def compose() -> dict:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())


@pytest.mark.slow
def test_the_trainer_of_the_compose_file_learns_and_serves(prepared: Path, compose, own_signals, capfd):
    (prepared / "token").write_text(TOKEN)
    port = free_port()
    trainer = compose["services"]["trainer"]
    assert trainer["build"]["target"] == "trainer" and "8081:8081" in trainer["ports"]
    flag, module, *arguments = trainer["command"]
    assert (flag, module) == ("-m", "edge_hpcr"), "the image's entry point is Python"
    mounted = [volume.split(":")[1] for volume in trainer["volumes"]]
    places = {
        "/data/parts": prepared / "parts",
        "/inbox": prepared / "inbox",
        "/run/secrets/tokens": prepared / "token",
        "0.0.0.0:8081": f"127.0.0.1:{port}",
    }
    assert {"/data", "/inbox"} <= set(mounted) and trainer["secrets"] == ["tokens"]
    learns_and_serves(moved(arguments, places), port, capfd)


def test_the_health_of_the_compose_files_trainer_is_that_of_its_server(tmp_path: Path, compose):
    from fleet_parts import running

    kind, program, *arguments = compose["services"]["trainer"]["healthcheck"]["test"]
    assert (kind, program) == ("CMD", "python")
    with running(make_workspace(tmp_path / "w")) as server:
        port = server.server_address[1]
        command = [sys.executable, *moved(arguments, {":8081": f":{port}"})]
        assert subprocess.run(command, timeout=60).returncode == 0
    assert subprocess.run(command, timeout=60, stderr=subprocess.DEVNULL).returncode != 0


@pytest.mark.slow
def test_the_device_of_the_compose_file_classifies(prepared: Path, compose):
    from device_parts import frame_of, publish
    from fleet_parts import running

    device = compose["services"]["device"]
    assert device["build"]["target"] == "device" and device["secrets"] == ["token"]
    publish(prepared / "parts" / "exports", 1)
    cv2.imwrite(str(prepared / "frames" / "0.png"), frame_of("blue")[..., ::-1])
    (prepared / "token").write_text(TOKEN)
    with running(prepared / "parts") as server:
        places = {
            "http://trainer:8081": f"http://127.0.0.1:{server.server_address[1]}",
            "/run/secrets/token": prepared / "token",
        }
        arguments = moved(device["command"], places)
        arguments[arguments.index("--source") + 1] = str(prepared / "frames")
        command = [sys.executable, "-m", "export.runtime", *arguments, "--cpu"]
        environment = {**os.environ, "XDG_CACHE_HOME": str(prepared / "cache")}
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE
        )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[0])["top"][0]["name"] == "blue"


def test_secrets_of_the_compose_file_are_files(compose):
    assert all("file" in secret for secret in compose["secrets"].values())
    asked = {name for service in compose["services"].values() for name in service["secrets"]}
    assert asked == set(compose["secrets"])
