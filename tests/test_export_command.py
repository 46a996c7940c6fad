"""`python -m export`: the contract as it is written, in all its commands."""

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from export_parts import Teaching, first, with_proxies, with_template
from process_parts import started

from edge_hpcr.workspace.folder import Workspace
from export.__main__ import main
from export.device.manifest import ClassLabel, read_latest
from export.publish.publish import publish
from export.publish.republish import FILE

ROOT = Path(__file__).parent.parent


@pytest.fixture
def workspace(tmp_path):
    """One with two classes, at rest."""
    one = Teaching(tmp_path / "w")
    one.teach(0)
    one.teach(1)
    one.close()
    return one.path


def publish_again(workspace, digit):
    one = Teaching(workspace)
    one.teach(digit)
    one.close()
    assert main(["--workspace", str(workspace)]) == 0


@pytest.mark.slow
def test_the_first_version_is_traced_and_nothing_but_the_result_is_printed(workspace):
    (workspace / "exports" / "template" / FILE).unlink()
    ended = subprocess.run(
        [sys.executable, "-m", "export", "--workspace", str(workspace)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    (line,) = ended.stdout.splitlines()
    assert line.startswith("published version 1 (traced, ") and "2 classes" in line
    assert read_latest(workspace / "exports").version == 1
    assert (workspace / "exports" / "template" / FILE).exists()


@pytest.mark.slow
def test_publishing_twice_without_news_makes_one_version_unless_forced(workspace, capsys):
    assert main(["--workspace", str(workspace)]) == 0
    assert "new weights in the known graph" in capsys.readouterr().out
    assert main(["publish", "--workspace", str(workspace)]) == 0
    assert "version 1 holds step" in capsys.readouterr().out
    assert main(["--workspace", str(workspace), "--int8", "--fp16"]) == 0
    assert "and so no int8 and fp16 variant was made (--force " in capsys.readouterr().out
    assert main(["--workspace", str(workspace), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["published"] is False
    assert main(["--workspace", str(workspace), "--force", "--fp16", "--int8", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["published"] and facts["manifest"]["version"] == 2
    assert facts["manifest"]["variants"]["fp16"]["file"] == "model.fp16.onnx"
    assert facts["manifest"]["variants"]["int8"]["kept"] is False


@pytest.mark.slow
def test_versions_are_listed_and_moved_between(workspace, capsys):
    assert main(["list", "--workspace", str(workspace)]) == 0
    assert "no version yet" in capsys.readouterr().out
    for digit in (2, 3):
        publish_again(workspace, digit)
    capsys.readouterr()
    assert main(["rollback", "--workspace", str(workspace)]) == 0
    assert capsys.readouterr().out.startswith("version 1 is current: step ")
    assert main(["list", "--workspace", str(workspace)]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("*      1") and second.startswith("       2") and "4 classes" in second
    assert main(["rollforward", "--workspace", str(workspace), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"latest": 2}
    assert main(["list", "--workspace", str(workspace), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed["latest"] == 2 and [each["version"] for each in listed["versions"]] == [1, 2]
    assert main(["rollback", "1", "--workspace", str(workspace)]) == 0
    assert read_latest(workspace / "exports").version == 1


@pytest.mark.slow
def test_it_publishes_beside_a_running_learner(tmp_path, capsys):
    one = Teaching(tmp_path / "w", checkpoint_steps=1)
    one.teach(0)
    one.until(one.saved)
    assert main(["--workspace", str(one.path)]) == 0
    one.teach(1)
    one.close()
    assert read_latest(one.exports).version == 1


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "missing option '--workspace'"),
        (["--workspace", "nowhere"], "no workspace at nowhere"),
        (["list", "--workspace", "nowhere"], "no workspace at nowhere"),
        (["rollback", "--workspace", "W"], "no published version yet"),
        (["rollforward", "--workspace", "W"], "no published version yet"),
        (["rollback", "x", "--workspace", "W"], "version 'x' should be a whole number"),
        (["--workspace", "W", "--every", "0"], "--every 0"),
        (["--workspace", "W", "--every", "inf"], "--every inf"),
        (["--workspace", "W", "--keep", "0"], "keep 0"),
        (["--workspace", "W", "--most-drop", "3"], "most_drop 3"),
        (["--workspace", "W"], "nothing that was learned has been saved"),
        (["--workspace", "W", "--nonsense"], "--nonsense"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(tmp_path, monkeypatch, capsys, arguments, reason):
    monkeypatch.chdir(tmp_path)
    with Workspace.open(tmp_path / "W"):
        pass
    code = main(arguments)
    captured = capsys.readouterr()
    assert (code, captured.out) == (2, "")
    (line,) = captured.err.splitlines()
    assert line.startswith("export: ") and reason in line


def test_classes_without_a_learned_image_are_nothing_to_publish(tmp_path, capsys):
    one = Teaching(tmp_path / "w")
    zero = one.teach(0)
    one.close()
    with Workspace.open(one.path, learning=False) as elsewhere:
        elsewhere.journal.delete_class(zero)
    assert main(["--workspace", str(one.path)]) == 2
    assert "no class has been learned yet" in capsys.readouterr().err


@pytest.mark.slow
def test_a_refusal_is_one_line_and_exit_code_1(tmp_path, capsys):
    """The current version knows two classes; the newest checkpoint knows only the first of them yet."""
    one = Teaching(tmp_path / "w", held_out_share=0.5)
    ids = [one.teach(0, 20)]
    one.close()
    with Workspace.open(one.path) as workspace:
        ids.append(workspace.journal.create_class("digit 1"))
        for image in one.digits.train_images[one.digits.train_labels == 1][:20]:
            workspace.journal.label([workspace.take(image, "test")], ids[1])
    known = first().snapshot
    columns = [column for digit in (0, 1) for column, each in enumerate(known.classes) if each.id == digit]
    both = replace(
        with_proxies(known, known.network.proxies[columns]),
        classes=tuple(ClassLabel(class_id, f"class {class_id}") for class_id in ids),
    )
    publish(one.exports, both, variants=())
    assert main(["--workspace", str(one.path)]) == 1
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert (
        line.startswith("export: not published: step ") and "recognises 50.0% of 20 held-out samples" in line
    )
    assert captured.out == ""
    assert main(["--workspace", str(one.path), "--most-drop", "0.6"]) == 0


@pytest.mark.slow
def test_a_damaged_folder_is_one_line_and_exit_code_1(workspace, capsys):
    main(["--workspace", str(workspace)])
    (workspace / "exports" / "latest.json").write_text("nonsense")
    capsys.readouterr()
    assert main(["rollback", "--workspace", str(workspace)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "latest.json" in line


@pytest.mark.slow
def test_every_so_many_seconds_it_goes_on_until_it_is_asked_to_stop(workspace):
    with started("-m", "export", "--workspace", workspace, "--every", "0.2", "--json") as process:
        assert json.loads(process.stdout.readline())["manifest"]["version"] == 1
        assert json.loads(process.stdout.readline()) == {
            "published": False,
            "version": 1,
            "reason": "nothing has changed",
        }
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")


@pytest.mark.parametrize("command", ["publish", "list", "rollback", "rollforward", "serve"])
def test_every_command_explains_itself(command, capsys):
    assert main([command, "--help"]) == 0
    assert len(capsys.readouterr().out.splitlines()) > 5
    assert main(["--help"]) == 0
    assert f"\n  {command} " in capsys.readouterr().out


@pytest.mark.slow
def test_a_list_needs_no_torch(tmp_path):
    with_template(tmp_path / "w" / "exports")
    code = (
        "import sys; from export.__main__ import main; code = main(sys.argv[1:]); "
        "assert not {'torch', 'onnx', 'onnxruntime'} & set(sys.modules), 'slow'; sys.exit(code)"
    )
    (tmp_path / "w" / "settings.json").write_text("{}")
    ended = subprocess.run(
        [sys.executable, "-c", code, "list", "--workspace", str(tmp_path / "w")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
