"""A decoder's model.onnx by the worker that comes with blockc: worker_onnx.py FOLDER [--shared] [--no-prepack]

It answers one request more, `greedy`, as the peers' workers do.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from blockc.bench.candidate import SessionWorker, as_handler
from blockc.bench.protocol import draw_tokens, memory, serve


class Greedy(SessionWorker):
    def greedy(self, tokens: int, steps: int) -> dict[str, Any]:
        prompt = draw_tokens(tokens, self.session.model.vocab)
        return {"tokens": [row[0] for row in self.session.generate([prompt], steps)]}


def main() -> None:
    worker = Greedy(Path(sys.argv[1]), "cpu", "--shared" in sys.argv, "--no-prepack" not in sys.argv)
    methods = {"load": worker.load, "prefill": worker.prefill, "decode": worker.decode, "greedy": worker.greedy}
    serve({name: as_handler(method) for name, method in methods.items()} | {"memory": lambda: memory() or {}})


if __name__ == "__main__":
    main()
