"""JUnit's XML: one suite with a case for each file, which fails if the file is wrong."""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.sax.saxutils import escape, quoteattr

from blockc.checks.formats.base import Checked, relative_path, relocate
from blockc.source import Finding, escape_text, render_finding

# The characters that XML 1.0 cannot write and that `escape_text` leaves.
_NO_XML = re.compile("[\ufffe\uffff]")


def render_junit(checked: Sequence[Checked]) -> str:
    suite = f'name="blockc check" tests="{len(checked)}" failures="{sum(each.wrong for each in checked)}" errors="0"'
    cases = [line for each in checked for line in _case(each)]
    return "\n".join(('<?xml version="1.0" encoding="UTF-8"?>', "<testsuites>", f"<testsuite {suite}>", *cases,
                      "</testsuite>", "</testsuites>")) + "\n"  # fmt: skip


def _case(checked: Checked) -> list[str]:
    against = [finding for finding in checked.findings if checked.counts(finding)]
    beside = [finding for finding in checked.findings if not checked.counts(finding)]
    lines = [f"<testcase classname={_attribute('blockc.check')} name={_attribute(relative_path(checked.file))}>"]
    if against:
        first = f"{against[0].code.name}: {escape_text(against[0].message)}"
        message = first if len(against) == 1 else f"{first} (and {len(against) - 1} more)"
        lines += [f'<failure type="{against[0].code.name}" message={_attribute(message)}>{_body(against)}</failure>']
    if beside:
        lines += [f"<system-out>{_body(beside)}</system-out>"]
    return [*lines, "</testcase>"]


def _body(findings: Sequence[Finding]) -> str:
    return escape(_clean("\n".join(render_finding(relocate(finding)) for finding in findings)))


def _attribute(text: str) -> str:
    return quoteattr(_clean(text))


def _clean(text: str) -> str:
    return _NO_XML.sub("\ufffd", text)
