"""What the Models tab is made of: versions, publishing by hand, going back."""

from html import unescape

import pytest
from export_parts import Teaching

from app.tabs import models as tab
from edge_hpcr.common.errors import UserError
from export.publish.versions import Refused, versions


@pytest.fixture
def taught(tmp_path):
    one = Teaching(tmp_path / "w", publish_int8=False)
    yield one
    one.close()


@pytest.mark.slow
def test_a_version_is_published_by_hand_and_shown(taught):
    one = taught
    assert "No version is published yet" in tab.versions_html(one.exports)
    with pytest.raises(UserError):
        tab.publish_now(one.live)
    one.teach(0)
    name = "<b>1 & 2</b>"
    one.journal.rename_class(one.teach(1), name)
    assert "published version 1" in tab.publish_now(one.live).text
    page = tab.versions_html(one.exports)
    assert "✓ current" in page and "rolled back" not in page and "/edge/device/1.zip" in page
    assert name not in page and name in unescape(page)
    with pytest.raises(Refused):
        tab.publish_now(one.live)
    tab.publish_now(one.live, force=True)
    assert [each.version for each in versions(one.exports)] == [1, 2]
