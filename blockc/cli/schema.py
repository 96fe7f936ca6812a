"""blockc schema: the JSON schema of the spec language."""

from __future__ import annotations

import json

from blockc.cli.common import app
from blockc.cli.terminal import write_text


@app.command()
def schema() -> None:
    """Print the JSON schema of the spec language, for editors."""
    from blockc import api

    write_text(json.dumps(api.schema(), indent=2, ensure_ascii=False) + "\n")
