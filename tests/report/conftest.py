"""One small audit serves all tests of the report."""

from typing import Any

import pytest

from tests.report.audits import tiny_audit
from veridical.auditing import Audit
from veridical.report.audit import contents


@pytest.fixture(scope="session")
def audited() -> Audit:
    return tiny_audit()


@pytest.fixture(scope="session")
def shown(audited: Audit) -> dict[str, Any]:
    return contents(audited)
