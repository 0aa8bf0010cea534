"""What every test shares: the reference switch, the count of golden comparisons, and no skipped browser test under CI."""

import os

import pytest

from tests import golden_files


def pytest_addoption(parser):
    parser.addoption("--run-reference", action="store_true", help="compare live with torch and diffusers")


def pytest_collection_modifyitems(config, items):
    if config.getoption("--run-reference"):
        return
    skip = pytest.mark.skip(reason="live comparison with torch and diffusers: python launch.py test --reference")
    for item in items:
        if "reference" in item.keywords:
            item.add_marker(skip)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session, exitstatus):
    """Under CI a browser test that was skipped is a failure: nobody looked at the page."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    skipped = [report.nodeid for report in reporter.stats.get("skipped", []) if "browser" in getattr(report, "keywords", ())]
    if os.environ.get("CI") and skipped:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        reporter.write_line(f"FAILED: {len(skipped)} browser tests were skipped: {', '.join(skipped)}")


def pytest_terminal_summary(terminalreporter):
    terminalreporter.write_line(f"{golden_files.comparisons} golden comparisons ran")
