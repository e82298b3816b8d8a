"""What pytest does for every test here."""
import signal

import pytest


def pytest_configure():
    # Whoever ends the tests by a signal ends their agents and programs too (harness.close_machines). A
    # shell starts what it puts into the background with SIGINT ignored, which programs would inherit.
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    # Likewise `nohup`, which the tests themselves still obey.
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)


def pytest_collection_modifyitems(items):
    """What takes longest begins first: else the others end, and one is waited for."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call):
    """An expected failure (tests/unmet.py) is reported with what was seen, not only with its reason."""
    report = yield
    if report.skipped and hasattr(report, "wasxfail") and call.excinfo:
        seen = (str(call.excinfo.value).splitlines() or [""])[0]
        report.wasxfail = f"{report.wasxfail}: {seen}"
    return report
