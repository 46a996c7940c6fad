"""What a user can type and ask for: commands, options, settings, routes, actions, metrics and exit codes.

`surface.txt` lists them. A change on purpose is written with `EDGE_HPCR_WRITE_SURFACE=1 pytest tests/journeys/test_surface.py`.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from journeys.parts import (
    ROOT,
    ask,
    digits,
    environment,
    free_port,
    png,
    running_app,
    started,
    wait_for,
)

pytestmark = pytest.mark.slow
LIST = Path(__file__).with_name("surface.txt")
PROGRAMS = ("edge_hpcr", "app", "export", "export.runtime")
NEEDS_WORKSPACE = ("classes", "samples")  # before the command below it
ROUTES = {  # of the app: what is asked, and what an app without a model or an import answers
    "GET /healthz": 200,
    "GET /metrics": 200,
    "GET /edge/state": 200,
    "GET /edge/history": 200,
    "GET /edge/workspaces": 200,
    "GET /edge/newest?classes=1": 200,
    "GET /edge/phone": 200,
    "GET /edge/samples": 200,
    "GET /edge/sample/1": 200,
    "GET /edge/static/edge.js": 200,
    "GET /edge/frame/1": 400,
    "GET /edge/export.zip": 200,
    "GET /edge/device/1.zip": 400,
    "POST /edge/camera?page=x": 200,
    "POST /edge/picture": 400,
    "POST /edge/act": 400,
    "POST /edge/import": 400,
}


def described(section: str, found: list[str]) -> None:
    """Compare with the list, or write the list."""
    text = LIST.read_text() if LIST.exists() else ""
    parts = dict(re.findall(r"^\[(.+?)\]\n(.*?)(?=^\[|\Z)", text, re.M | re.S))
    if os.environ.get("EDGE_HPCR_WRITE_SURFACE"):
        parts[section] = "".join(f"{line}\n" for line in found)
        LIST.write_text(
            "".join(f"[{name}]\n{parts[name].strip()}\n\n" for name in sorted(parts)).strip() + "\n"
        )
    else:
        assert found == parts[section].split("\n\n")[0].splitlines(), (
            "change surface.txt on purpose, or not at all"
        )


Command = Callable[..., tuple[int, str, str]]
# Runs `python -m ARGUMENTS…` for each line that it reads. One process for all: to start it and import PyTorch takes seconds.
ONE_AFTER_THE_OTHER = """
import contextlib, io, json, os, runpy, sys, warnings
warnings.simplefilter("ignore")  # runpy warns of modules that an earlier command has imported
os._exit, answer = sys.exit, sys.stdout
for line in sys.stdin:
    sys.argv, code = json.loads(line), 0
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        except SystemExit as ended:
            code = ended.code or 0
    print(json.dumps([code, out.getvalue(), err.getvalue()]), file=answer, flush=True)
"""


@pytest.fixture(scope="module")
def command() -> Iterator[Command]:
    """A function that runs a command line to its end: its exit code, its output, and what it says on stderr."""
    with subprocess.Popen(
        [sys.executable, "-c", ONE_AFTER_THE_OTHER],
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:

        def ask_for(*arguments: str) -> tuple[int, str, str]:
            print(json.dumps(arguments), file=process.stdin, flush=True)
            return tuple(json.loads(process.stdout.readline()))

        yield ask_for


def commands(command: Command, program: str, *path: str) -> Iterator[tuple[str, str]]:
    """Of a command and all below it: its name, and its help."""
    code, text, _ = command(program, *path, "--help")
    assert code == 0
    yield " ".join((program, *path)), text
    below = text.partition("\nCommands:\n")[2].partition("\n\n")[0]
    for name in re.findall(r"^  ([a-z]+) ", below, re.M):
        if path or program != "edge_hpcr" or name not in ("app", "export", "device"):  # listed by themselves
            before = ("W",) if path and path[-1] in NEEDS_WORKSPACE else ()
            yield from commands(command, program, *path, *before, name)


def test_commands_and_options_are_those_listed(command):
    found = []
    for program in PROGRAMS:
        for name, text in commands(command, program):
            options = re.findall(r"^  (?:-h, )?(--[a-z][a-z0-9-]*)(?: / (--[a-z-]+))?", text, re.M)
            flat = sorted({option for pair in options for option in pair if option} - {"--help"})
            found.append(" ".join((name, *flat)))
    described("commands", found)


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    with running_app(tmp_path_factory.mktemp("surface") / "workspace") as app:
        app.act("new_class", name="mug", frames=[app.show(png(digits(0)[0]), "a.png")["number"]])
        yield app


def test_settings_are_those_listed_and_documented(app):
    names = [name for name in json.loads((app.workspace / "settings.json").read_text()) if name != "version"]
    described("settings", sorted(names))
    page = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "settings.md").read_text(), re.M)
    assert [name for name in names if name != "format"] == page


def test_routes_answer_and_strangers_are_not_let_in(app):
    described("routes", sorted(route.partition("?")[0] for route in ROUTES))
    for route, status in ROUTES.items():
        method, _, path = route.partition(" ")
        data = b"" if method == "POST" else None
        found, content = app.get(path, data)
        assert found == status, (route, found, content[:200])
        if status == 400:
            assert json.loads(content).keys() == {"error"}, route
        if path != "/healthz" and "static" not in path:
            assert ask(app.address + path, data)[0] == 401, route
    assert ask(f"{app.address}/healthz") == (200, b"ready\n")
    assert ask(f"{app.address}/edge/static/../routes.py", token=app.token)[0] == 404


def test_the_actions_metrics_and_fields_of_the_state_are_those_listed(app):
    status, refused = app.get("/edge/act", b'{"do": "no such action"}')
    assert status == 400
    described("actions", sorted(re.findall(r"\w+", json.loads(refused)["error"].partition("one of ")[2])))
    metrics = re.findall(r"^# TYPE (\w+) (\w+)", app.get("/metrics")[1].decode(), re.M)
    described("metrics", sorted(" ".join(pair) for pair in metrics))
    described("state", sorted(app.state()))


def test_a_command_makes_no_workspace_by_mistake(tmp_path, command):
    workspace = tmp_path / "workspace"
    assert command("edge_hpcr", "classes", str(workspace), "add", "mug")[0] == 2
    assert not workspace.exists()


def test_a_server_of_models_has_its_routes(app):
    port = free_port()
    with started("export", "serve", "--workspace", app.workspace, "--port", port):
        address = f"http://127.0.0.1:{port}"
        wait_for(lambda: _answers(f"{address}/healthz"), "the server")
        assert ask(f"{address}/latest.json")[0] == 404, "nothing is published"
        assert ask(f"{address}/journal.sqlite")[0] == 404
        assert ask(f"{address}/../journal.sqlite")[0] == 404
        assert ask(f"{address}/devices/cam-1/report", b"no json")[0] == 400


def _answers(address: str) -> bool:
    try:
        return ask(address)[0] > 0
    except OSError:
        return False


MISTAKES = {
    "no command": ("edge_hpcr",),
    "unknown command": ("edge_hpcr", "brench"),
    "unknown option": ("edge_hpcr", "bench", "--colour"),
    "unknown dataset": ("edge_hpcr", "bench", "--dataset", "imagenet"),
    "no size": ("edge_hpcr", "bench", "--dataset", "digits", "--budget", "lots"),
    "two that exclude each other": (
        "edge_hpcr",
        "bench",
        "--dataset",
        "digits",
        "--seed",
        "1",
        "--seeds",
        "2",
    ),
    "data that are not there": ("edge_hpcr", "bench", "--dataset", "cifar10", "--root", "nowhere"),
    "no workspace": ("edge_hpcr", "status", "nowhere"),
    "no source": ("edge_hpcr", "learn", "--workspace", "W", "--source", "nowhere/at/all"),
    "no sweep": ("edge_hpcr", "sweep", "nowhere.yaml"),
    "no port": ("app", "--port", "99999"),
    "nothing to publish": ("export", "--workspace", "nowhere"),
    "no model": ("export.runtime", "--models", "nowhere", "--source", "workbench"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_on_stderr_and_exit_code_2(mistake, tmp_path, command):
    arguments = [str(tmp_path / each) if each == "W" else each for each in MISTAKES[mistake]]
    code, printed, said = command(*arguments)
    assert (code, printed) == (2, ""), said
    assert len(said.strip().splitlines()) == 1 and "Traceback" not in said, said


def test_ctrl_c_ends_with_1_after_saving(tmp_path):
    workspace, log = tmp_path / "workspace", tmp_path / "log"
    bench = ("bench", "--dataset", "digits", "--set", "nf=8", "--out", workspace)
    with started("edge_hpcr", *bench, log=log) as process:
        wait_for(lambda: "task 1 of 5" in log.read_text(), "the first task")
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 1
    assert "Traceback" not in log.read_text()
