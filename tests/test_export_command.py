"""`python -m export`: the contract as it is written, in all its commands."""

import json
from dataclasses import replace

import pytest
from export_parts import Teaching, first, with_proxies

from edge_hpcr.workspace.workspace import Workspace
from export.__main__ import main
from export.device.manifest import ClassLabel, Latest, read_latest
from export.device.signing import make_keys
from export.publish.publish import publish
from export.publish.snapshot import NO_UNKNOWN
from export.publish.versions import latest_version, pinned


@pytest.fixture
def workspace(tmp_path):
    """One with two classes, at rest."""
    one = Teaching(tmp_path / "w")
    one.teach(0)
    one.teach(1)
    one.close()
    return one.path


@pytest.mark.slow
def test_publishing_twice_without_news_makes_one_version_unless_forced(workspace, capsys):
    assert main(["--workspace", str(workspace)]) == 0
    assert "new weights in the known graph" in capsys.readouterr().out
    assert main(["publish", "--workspace", str(workspace)]) == 0
    assert "version 1 holds step" in capsys.readouterr().out
    assert main(["--workspace", str(workspace), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["published"] is False
    assert main(["--workspace", str(workspace), "--force", "--int8", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["published"] and facts["manifest"]["version"] == 2
    assert facts["manifest"]["variants"]["int8"]["kept"] is False


@pytest.mark.slow
def test_changes_that_are_not_learned_yet_and_a_missing_threshold_are_said(workspace, digits, capsys):
    with Workspace.open(workspace) as opened:
        opened.journal.undo()  # of the last label that was learned
        opened.journal.label([opened.take(digits.test_images[0], "test")], opened.journal.class_id("digit 1"))
    assert main(["--workspace", str(workspace)]) == 0
    (said,) = capsys.readouterr().out.splitlines()
    assert "without 2 changed labels" in said and NO_UNKNOWN in said
    assert NO_UNKNOWN in (workspace / "exports" / "v000001" / "model-card.md").read_text()
    assert main(["--workspace", str(workspace), "--json"]) == 0
    unknown, unlearned = json.loads(capsys.readouterr().out)["notes"]
    assert unknown == NO_UNKNOWN and "2 changed labels" in unlearned, "also when nothing is published"


@pytest.mark.slow
def test_devices_are_kept_on_a_version_and_a_named_key_signs_at_once(workspace, tmp_path, capsys):
    def export(*arguments: str) -> str:
        assert main([arguments[0], "--workspace", str(workspace), *arguments[1:]]) == 0
        return capsys.readouterr().out

    exports = workspace / "exports"
    export("publish")
    assert "cam-1, cam-2 stay on version 1" in export("pin", "1", "--devices", "cam-1, cam-2")
    key = tmp_path / "key.pem"
    make_keys(key, tmp_path / "key.pub")
    assert "nothing is new" in export("publish", "--sign", str(key))
    kept_back = Latest.parse(pinned(exports).latest.encode(), "").signature
    assert kept_back.serial < read_latest(exports).signature.serial
    assert json.loads(export("list", "--json"))["pinned"] == {"version": 1, "devices": ["cam-1", "cam-2"]}
    export("unpin")
    assert pinned(exports) is None and latest_version(exports) == 1


@pytest.mark.slow
def test_a_refusal_and_a_damaged_folder_are_one_line_and_exit_code_1(tmp_path, capsys):
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
    classes = tuple(ClassLabel(class_id, f"class {class_id}") for class_id in ids)
    weights = with_proxies(known, known.network.proxies[columns])
    both = replace(weights, classes=classes, unknown_below=None)
    publish(one.exports, both)
    assert main(["--workspace", str(one.path)]) == 1
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert line.startswith("export: not published: step ") and captured.out == ""
    assert main(["--workspace", str(one.path), "--force"]) == 0
    (one.exports / "latest.json").write_text("nonsense")
    capsys.readouterr()
    assert main(["rollback", "--workspace", str(one.path)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "latest.json" in line
