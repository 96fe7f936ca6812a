"""Prompt lookup: what several tokens of a call cost, and texts with drafts and without, turn by turn in one session.

python -m benchmarks.lookup DIR [N,... [TURNS]]     a build with --logits last:N+1; drafts of 7 and 3, 8 turns

DIR has a tokenizer with a chat template. Quoting prompts repeat what they were given: a summary, code, a question about
a document. Open ones do not. A turn of a prompt is A B, the next one B A. Medians; ms a token after the first one.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

from blockc.runtime import Session
from blockc.runtime.chat import prompt_ids
from blockc.runtime.text import Tokenizer

ROOT = Path(__file__).parents[1]
NEW, LONGEST = 120, 1000  # tokens
SIZES, PASTS, STEPS = (1, 2, 4, 6, 8), (128, 1024), 8


def prompts(folder: Path, tokenizer: Tokenizer) -> dict[str, list[int]]:
    """Token ids of each prompt, by its name."""
    read = {
        name: (ROOT / name).read_text(encoding="utf-8")
        for name in ("docs/performance.md", "docs/api.md", "docs/security.md", "docs/quantisation.md")
    }
    measuring, turns = (
        (ROOT / name).read_text(encoding="utf-8") for name in ("benchmarks/peers/measuring.py", "blockc/bench/turns.py")
    )
    measured = read["docs/performance.md"]
    begin = measured.index("## What is measured") + 1500

    def chat(text: str) -> list[int]:
        return prompt_ids(folder, tokenizer, text, True, None)

    ask = "What does this text say? Quote the important sentences."
    document = "Copy this code and add a docstring to each function:"
    return {
        "summary": chat(f"Summarize this text:\n\n{measured[begin : begin + 2700]}"),
        "summary, another": chat(f"Summarize this text:\n\n{read['docs/quantisation.md'][:2700]}"),
        "copy code": chat(
            f"Copy this function and add a docstring to each method:\n\n```python\n{measuring[1100:2700]}```"
        ),
        "copy code, another": chat(f"{document}\n\n```python\n{turns[1000:2600]}```"),
        "continue code": tokenizer.encode(measuring[:3000])[:LONGEST],
        "continue code, another": tokenizer.encode(turns[:3000])[:LONGEST],
        "question": chat(f"{read['docs/api.md'][:2600]}\n\n{ask}"),
        "question, another": chat(f"{read['docs/security.md'][:2600]}\n\n{ask}"),
        "open question": chat("Why is the sky blue? Explain in a few paragraphs."),
        "open advice": chat("How do I learn to play the piano as an adult?"),
        "story": tokenizer.encode("Once upon a time, in a village by the sea, there lived an old"),
    }


def cost(session: Session, past: int, turns: int) -> dict[int, float]:
    """Milliseconds of a call with so many new tokens on a past."""
    session.reset()
    session.prefill([[i % 900 + 100 for i in range(past)]], room=max(SIZES))
    taken: dict[int, list[float]] = {size: [] for size in SIZES}
    for turn in range(turns):
        for size in SIZES if turn % 2 == 0 else SIZES[::-1]:
            for step in range(STEPS):
                start = time.perf_counter()
                session.extend([7] * size)
                if step:
                    taken[size].append(1000 * (time.perf_counter() - start))
                session.rewind(past)
    return {size: statistics.median(ms) for size, ms in taken.items()}


def write(session: Session, prompt: list[int], lookup: int) -> tuple[float, list[int]]:
    """(Milliseconds a token after the first; the text.)"""
    text: list[int] = []
    start = 0.0
    for step in session.generate([prompt], NEW, lookup=lookup):
        start = start or time.perf_counter()
        text += [token for token in step if token is not None]
    return 1000 * (time.perf_counter() - start) / (len(text) - 1), text


def main() -> None:
    folder = Path(sys.argv[1])
    drafts = [int(word) for word in (sys.argv[2] if len(sys.argv) > 2 else "7,3").split(",")]
    turns = int(sys.argv[3]) if len(sys.argv) > 3 else 8
    session = Session(folder, threads=2)
    tokenizer = Tokenizer(folder, session.model.vocab)
    for past in PASTS:
        ms = cost(session, past, turns)
        each = ", ".join(f"{size}: {taken / ms[1]:.2f}" for size, taken in ms.items())
        print(f"tokens of a call at {past}, to one token ({ms[1]:.1f} ms): {each}", flush=True)
    for name, prompt in prompts(folder, tokenizer).items():
        ratios: dict[int, list[float]] = {most: [] for most in drafts}
        said: dict[int, str] = {}
        plain: list[float] = []
        for turn in range(turns):
            taken: dict[int, float] = {}
            texts: dict[int, list[int]] = {}
            for most in (0, *drafts) if turn % 2 == 0 else (*drafts[::-1], 0):
                taken[most], texts[most] = write(session, prompt, most)
                if most:
                    figures = session.drafts
                    said[most] = f"{figures.kept} of {figures.drafted} kept, {figures.steps} steps"
            plain.append(taken[0])
            for most in drafts:
                ratios[most].append(taken[0] / taken[most])
                said[most] += ", same text" if texts[most] == texts[0] else ", another text"
        for most in drafts:
            faster = statistics.median(ratios[most])
            spread = f"{min(ratios[most]):.2f} to {max(ratios[most]):.2f}"
            print(
                f"{name}, {len(prompt)} tokens, {statistics.median(plain):.1f} ms: lookup {most}: "
                f"x {faster:.2f} ({spread}), {said[most]}",
                flush=True,
            )


if __name__ == "__main__":
    main()
