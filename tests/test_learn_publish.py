"""`learn` that publishes by itself, and the services of a trainer: real processes, sockets and models."""

import shlex
from pathlib import Path

import pytest
import yaml
from export_parts import with_template
from fleet_parts import TOKEN, ask, make_workspace
from process_parts import ROOT, free_port, started, until

from edge_hpcr.commands import cli

DEPLOY = ROOT / "export" / "deploy"
SETTINGS = ("backbone=reduced_resnet18", "image_size=8", "threads=1", "idle_steps=0")
SMALL = [word for setting in SETTINGS for word in ("--set", setting)]


def answers(port: int) -> bool:
    try:
        return ask(port, "/healthz")[0].status == 200
    except OSError:
        return False


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    """A folder with a workspace that learns fast, and an inbox."""
    with_template(make_workspace(tmp_path / "parts", threads=1, idle_steps=0) / "exports")
    (tmp_path / "inbox").mkdir()
    return tmp_path


def test_wrong_input_is_one_line_and_leaves_no_workspace(tmp_path: Path, capsys):
    command = ["learn", "--workspace", str(tmp_path / "w"), "--source", "workbench", *SMALL]
    assert cli.main([*command, "--publish-every", "often"]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1 and not (tmp_path / "w").exists()


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


@pytest.fixture(scope="module")
def compose() -> dict:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("place", ["unit", "compose"])
def test_the_trainer_of_the_units_and_of_the_compose_file_learns_and_its_server_serves(
    prepared: Path, compose, own_signals, place: str
):
    (prepared / "token").write_text(TOKEN)
    port, services = free_port(), compose["services"]
    if place == "unit":
        folder, inbox, token = "/var/lib/edge-hpcr/parts", "/var/lib/edge-hpcr/inbox", "/etc/edge-hpcr/token"
        _, *learn = shlex.split(unit("edge-hpcr-trainer.service")["ExecStart"])
        _, *serve = shlex.split(unit("edge-hpcr-server.service")["ExecStart"])
    else:
        folder, inbox, token = "/data/parts", "/inbox", "/run/secrets/token"
        learn, serve = services["trainer"]["command"], services["server"]["command"]
        assert services["server"]["ports"] == ["8081:8081"] and services["server"]["secrets"] == ["token"]
        assert "data:/data" in services["trainer"]["volumes"] and services["server"]["volumes"] == [
            "data:/data"
        ]
    flag, module, *arguments = moved(learn, {folder: prepared / "parts", inbox: prepared / "inbox"})
    assert (flag, module, arguments[0]) == ("-m", "edge_hpcr", "learn")
    assert cli.main([*arguments, "--seconds", "1"]) == 0
    places = {
        folder: prepared / "parts",
        token: prepared / "token",
        "0.0.0.0": "127.0.0.1",
        "8081": str(port),
    }
    with started(*moved(serve, places)):
        until(lambda: answers(port), 120)
