"""The devices on the Models tab, in a real browser."""

from pathlib import Path

import pytest
from browser_parts import open_page, running, wait_for
from device_parts import publish
from fleet_parts import make_workspace, report_of
from playwright.sync_api import expect

from edge_hpcr.workspace.devices import Registry, Report
from export.publish.versions import latest_version, stage

pytestmark = pytest.mark.browser


def test_devices_are_listed_and_a_trial_is_released(tmp_path: Path, browser):
    workspace = make_workspace(tmp_path / "w", source="browser")
    exports = workspace / "exports"
    with running(workspace) as app:
        page = open_page(browser, app, "Models")
        page.get_by_text("Devices", exact=True).click()
        expect(page.locator("#models-devices")).to_contain_text("No device has reported yet")
        kept = Registry(workspace / "devices.sqlite")
        kept.report("cam-1", Report.parse(report_of("cam-1", version=2)))
        kept.close()
        expect(page.locator("#models-devices tr[data-device=cam-1]")).to_contain_text("v2", timeout=30_000)
        for version in (2, 1):
            publish(exports, version)
        stage(exports, 2, ["cam-1"])
        expect(page.locator("#models-trial")).to_contain_text(
            "Version 2 is on trial on cam-1", timeout=30_000
        )
        page.locator("#models-release").click()
        wait_for(lambda: latest_version(exports) == 2, "the release")
        expect(page.locator("#models-trial")).not_to_contain_text("on trial")
        page.locator("#models-rollback").click()
        wait_for(lambda: latest_version(exports) == 1, "the rollback")
