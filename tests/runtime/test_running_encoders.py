"""Vectors, scores and classes of small encoders beside transformers, and run --embed and --rerank."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

from blockc import api
from blockc.cli import app, run_guarded
from blockc.graph.target import Target
from blockc.ir import Array
from blockc.runtime import Encoder, Session, SessionError, encoder
from blockc.runtime.reading import fill_template
from tests.checkpoints import save, tensors, twin
from tests.tiny_encoders import CONTEXT, TEXTS, build, save_embedder, save_encoder, wordpiece

QUERY = "the cat"


def hidden_of(model: Any, ids: list[int], segments: list[int]) -> Array:
    """A text alone: (S, width), without padding, in transformers."""
    with torch.no_grad():
        made = model(input_ids=torch.tensor([ids]), token_type_ids=torch.tensor([segments]))
    return made[0][0].double().numpy()


def expected(model: Any, texts: list[str], mode: str = "mean", unit: bool = True) -> Array:
    """The pool by NumPy over what transformers gives."""
    known = wordpiece()
    made: list[Array] = []
    for text in texts:
        read = known.encode(text.strip())
        hidden = hidden_of(model, read.ids, read.type_ids)
        vector = hidden.mean(axis=0) if mode == "mean" else hidden[0] if mode == "cls" else hidden[-1]
        made.append(vector / np.linalg.norm(vector) if unit else vector)
    return np.array(made)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("encoders")


@pytest.fixture(scope="module")
def embedder(root: Path) -> tuple[Any, Path]:
    model = save_embedder(root / "embedder")
    prompts = {"prompts": {"query": "red: ", "passage": "blue "}, "default_prompt_name": None}
    (root / "embedder" / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    return model, build(root / "embedder", root / "embedder-out")


@pytest.fixture(scope="module")
def reranker(root: Path) -> tuple[Any, Path]:
    model = save_encoder(root / "reranker", "BertForSequenceClassification", num_labels=1)
    return model, build(root / "reranker", root / "reranker-out")


@pytest.fixture(scope="module")
def writer(root: Path) -> Path:
    save(root / "writer" / "model.safetensors", tensors(twin("llama3-8b")))
    wordpiece().save(str(root / "writer" / "tokenizer.json"))
    api.build(twin("llama3-8b"), root / "writer-out", proof=False, weights=root / "writer")
    return root / "writer-out"


# Vectors


@pytest.mark.parametrize("mode", ["mean", "cls", "lasttoken"])
@pytest.mark.parametrize("target", [Target(), Target("cpu"), Target("cpu", padding="right")])
def test_a_vector_is_the_pool_of_what_transformers_gives(mode: str, target: Target, tmp_path: Path) -> None:
    model = save_embedder(tmp_path / "in", mode, unit=mode != "cls")
    ours = Encoder(build(tmp_path / "in", tmp_path / "out", target=target)).embed(TEXTS, batch=4)
    wanted = expected(model, TEXTS, mode, unit=mode != "cls")
    assert ours.dtype == np.float32 and ours.shape == wanted.shape
    assert np.abs(ours - wanted).max() < 1e-5 * max(1, np.abs(wanted).max())
    assert np.abs(wanted[0] - wanted[2]).max() > 1e-2


def test_a_batch_gives_what_each_text_alone_gives(embedder: tuple[Any, Path]) -> None:
    opened = Encoder(embedder[1])
    alone = np.concatenate([opened.embed([text]) for text in TEXTS])
    for batch in (1, 2, 5, 100):
        assert np.abs(opened.embed(TEXTS, batch) - alone).max() < 1e-6
    assert opened.tokens == sum(len(wordpiece().encode(text.strip()).ids) for text in TEXTS)


def test_batches_are_of_like_lengths_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder, "TOKENS", 20)
    made = list(encoder._batches([3, 9, 30, 10, 4, 5], 3))  # pyright: ignore[reportPrivateUsage]
    assert made == [[2], [3, 1], [5, 4, 0]]


def test_no_texts_give_no_vectors_and_an_empty_text_gives_one(embedder: tuple[Any, Path]) -> None:
    opened = Encoder(embedder[1])
    assert opened.embed([]).shape == (0, 32) and opened.rerank(QUERY, []) == []
    assert np.abs(opened.embed([""]) - expected(embedder[0], [""])).max() < 1e-5


def test_an_empty_text_without_a_token_is_refused(embedder: tuple[Any, Path], tmp_path: Path) -> None:
    save_embedder(tmp_path / "in")
    wordpiece(special=False).save(str(tmp_path / "in" / "tokenizer.json"))
    opened = Encoder(build(tmp_path / "in", tmp_path / "out"))
    assert opened.embed(["the cat"]).shape == (1, 32)
    with pytest.raises(SessionError, match="text 2 of 2 is empty, and this tokenizer adds no tokens to it"):
        opened.embed(["the cat", " "])


def test_impossible_arguments(embedder: tuple[Any, Path]) -> None:
    opened = Encoder(embedder[1])
    for call, why in [
        (lambda: opened.embed(["a"], 0), "batch 0: expected a number of texts, 1 or more"),
        (lambda: opened.embed("a"), "texts is one text: give a list of them"),
        (lambda: opened.rerank("a", "b"), "documents is one text"),
        (lambda: opened.embed(["a"], prompt_name="x"), "prompt_name x: no prompt of the model has that name: expected"),
        (lambda: opened.embed(["a"], prompt_name="query", prompt="y"), "give one of both"),
    ]:
        with pytest.raises(api.UsageError, match=why):
            call()


def test_a_prompt_stands_before_each_text(embedder: tuple[Any, Path]) -> None:
    opened = Encoder(embedder[1])
    wanted = expected(embedder[0], [f"red: {text}" for text in TEXTS])
    assert np.abs(opened.embed(TEXTS, prompt_name="query") - wanted).max() < 1e-5
    assert np.abs(opened.embed(TEXTS, prompt="red: ") - wanted).max() < 1e-5
    assert np.abs(opened.embed(TEXTS) - expected(embedder[0], TEXTS)).max() < 1e-5


def test_the_default_prompt_is_the_folders(embedder: tuple[Any, Path], tmp_path: Path) -> None:
    model = save_embedder(tmp_path / "in")
    said = {"prompts": {"query": "red: "}, "default_prompt_name": "query"}
    (tmp_path / "in" / "config_sentence_transformers.json").write_text(json.dumps(said))
    opened = Encoder(build(tmp_path / "in", tmp_path / "out"))
    assert np.abs(opened.embed(["a cat"]) - expected(model, ["red: a cat"])).max() < 1e-5
    (tmp_path / "out" / "config_sentence_transformers.json").write_text(
        json.dumps({**said, "default_prompt_name": "x"})
    )
    with pytest.raises(SessionError, match="default_prompt_name is 'x', and no prompt has that name"):
        Encoder(tmp_path / "out")


def test_the_commands_are_functions(embedder: tuple[Any, Path], reranker: tuple[Any, Path]) -> None:
    opened = Encoder(embedder[1])
    assert np.abs(api.embed(embedder[1], TEXTS, batch=3) - opened.embed(TEXTS)).max() < 1e-6
    asked = api.embed(embedder[1], ["a"], prompt_name="query", strict=True)
    assert np.abs(asked - opened.embed(["a"], prompt_name="query")).max() < 1e-6
    ranked = api.rerank(reranker[1], QUERY, TEXTS, template="{query} {document}")
    assert [each.index for each in ranked] == [
        each.index for each in Encoder(reranker[1]).rerank(QUERY, TEXTS, template="{query} {document}")
    ]


# Long texts


def test_a_long_text_is_cut_where_the_folder_says(embedder: tuple[Any, Path], tmp_path: Path) -> None:
    long = "cat " * 100
    opened = Encoder(embedder[1])
    assert opened.limit == CONTEXT
    wanted = expected(embedder[0], ["cat " * (CONTEXT - 2)])
    assert np.abs(opened.embed([long, "a"])[:1] - wanted).max() < 1e-5
    assert opened.told_of_cut == f"1 text has more than {CONTEXT} tokens, the limit by the model's context"
    with pytest.raises(SessionError, match=f"1 text has more than {CONTEXT} tokens"):
        opened.embed([long, "a"], strict=True)
    opened.embed(["a"], strict=True)
    assert not opened.told_of_cut
    for name, said, limit in (
        ("tokenizer_config.json", {"model_max_length": 12}, 12),
        ("sentence_bert_config.json", {"max_seq_length": 9, "do_lower_case": True}, 9),
    ):
        (embedder[1] / name).write_text(json.dumps(said))
        lower = Encoder(embedder[1])
        assert lower.limit == limit and name in lower.reader.limited_by
        assert np.abs(lower.embed([long]) - expected(embedder[0], ["cat " * (limit - 2)])).max() < 1e-5
        lower.embed([long, long])
        assert lower.told_of_cut.startswith(f"2 texts have more than {limit} tokens")
    for name in ("tokenizer_config.json", "sentence_bert_config.json"):
        (embedder[1] / name).unlink()


# Pairs and classes


def pair_logits(model: Any, pairs: list[tuple[str, str]]) -> Array:
    known = wordpiece()
    read = [known.encode(*pair) for pair in pairs]
    assert all(1 in each.type_ids for each in read)
    with torch.no_grad():
        return np.array(
            [
                model(input_ids=torch.tensor([each.ids]), token_type_ids=torch.tensor([each.type_ids]))
                .logits[0]
                .numpy()
                for each in read
            ]
        )


def test_a_reranker_reads_the_query_with_each_document(reranker: tuple[Any, Path]) -> None:
    documents = [text for text in TEXTS if len(text) < 60]
    logits = pair_logits(reranker[0], [(QUERY, text) for text in documents])[:, 0].astype(np.float64)
    ranked = Encoder(reranker[1]).rerank(QUERY, documents, batch=3)
    assert [each.index for each in ranked] == np.argsort(-logits, kind="stable").tolist()
    for each in ranked:
        assert each.logit == pytest.approx(logits[each.index], abs=1e-5)
        assert each.score == pytest.approx(1 / (1 + np.exp(-logits[each.index])), abs=1e-6)


def test_labels_say_what_a_logit_becomes(reranker: tuple[Any, Path], tmp_path: Path) -> None:
    root = reranker[1].parent / "reranker"
    said = json.loads((root / "config.json").read_text())
    out = build(root, tmp_path / "out")
    plain = Encoder(out).rerank(QUERY, ["a dog"])[0]
    for activation, wanted in (("identity", plain.logit), ("tanh", np.tanh(plain.logit or 0)), ("softmax", None)):
        (out / "labels.json").write_text(json.dumps({"activation": activation}))
        if wanted is None:
            with pytest.raises(SessionError, match="activation is softmax, and of one logit that is no score"):
                Encoder(out).rerank(QUERY, ["a dog"])
        else:
            assert Encoder(out).rerank(QUERY, ["a dog"])[0].score == pytest.approx(wanted, abs=1e-6)
    assert "activation_fn" not in said


def test_a_template_makes_one_text_of_both(reranker: tuple[Any, Path]) -> None:
    documents = ["a dog", "the sky {query}", "cat " * 100]
    template = "red {document} blue {query} far"
    opened = Encoder(reranker[1])
    ranked = opened.rerank("{document}", documents, template=template)
    assert opened.cut == 1
    known = wordpiece()
    room = CONTEXT - len(known.encode("red  blue {document} far").ids)
    texts = ["red a dog blue {document} far", "red the sky {query} blue {document} far"]
    texts.append(f"red {'cat ' * room} blue {{document}} far")
    assert len(known.encode(texts[-1]).ids) == CONTEXT
    with torch.no_grad():
        logits = [reranker[0](input_ids=torch.tensor([known.encode(text).ids])).logits[0, 0].item() for text in texts]
    assert {each.index: each.logit for each in ranked} == pytest.approx(dict(enumerate(logits)), abs=1e-5)
    with pytest.raises(
        SessionError, match="the template and the query leave no room for a document: .* tokens too many"
    ):
        opened.rerank("cat " * 50, ["a"], template=template)
    with pytest.raises(api.UsageError, match=r"template has \{query\} 0 times: expected once"):
        fill_template("{document}", "a", "b")


def test_an_embedder_ranks_by_the_cosine_of_vectors_behind_its_prompts(embedder: tuple[Any, Path]) -> None:
    opened = Encoder(embedder[1])
    query = expected(embedder[0], [f"red: {QUERY}"])[0]
    wanted = expected(embedder[0], [f"blue {text}" for text in TEXTS]) @ query
    ranked = opened.rerank(QUERY, TEXTS)
    assert [each.index for each in ranked] == np.argsort(-wanted, kind="stable").tolist()
    assert [each.score for each in ranked] == pytest.approx(np.sort(wanted)[::-1], abs=1e-5)
    assert all(each.logit is None for each in ranked)
    with pytest.raises(api.UsageError, match="template is for a model that reads both texts at once"):
        opened.rerank(QUERY, TEXTS, template="{query} {document}")


def test_a_classifier_gives_logits_of_classes_and_nothing_else(tmp_path: Path) -> None:
    model = save_encoder(tmp_path / "in", "BertForSequenceClassification", num_labels=3)
    opened = Encoder(build(tmp_path / "in", tmp_path / "out"))
    texts, known = TEXTS[:5], wordpiece()
    with torch.no_grad():
        wanted = [model(input_ids=torch.tensor([known.encode(text.strip()).ids])).logits[0].numpy() for text in texts]
    assert np.abs(opened.classify(texts, 2) - np.array(wanted)).max() < 1e-5
    for call in (lambda: opened.embed(texts), lambda: opened.rerank(QUERY, texts)):
        with pytest.raises(SessionError, match="gives logits of 3 classes, and no vector of a text: classify"):
            call()


# What is refused


def test_what_gives_no_vector_says_what_it_gives(
    embedder: tuple[Any, Path], reranker: tuple[Any, Path], writer: Path, tmp_path: Path
) -> None:
    with pytest.raises(SessionError, match="gives one logit of a text, and no vector of a text: rerank documents"):
        Encoder(reranker[1]).embed(TEXTS)
    with pytest.raises(SessionError, match="gives the hidden states of each token, and no logits of a text"):
        Encoder(embedder[1]).classify(TEXTS)
    save_encoder(tmp_path / "in", "ElectraModel", embedding_size=32)
    bare = build(tmp_path / "in", tmp_path / "bare")
    with pytest.raises(
        SessionError, match="gives the hidden states of each token, and nothing says which vector stands"
    ):
        Encoder(bare).embed(TEXTS)
    save_encoder(tmp_path / "masked", "BertForMaskedLM")
    with pytest.raises(
        SessionError, match="gives logits of each token, and nothing says which vector stands for a text"
    ):
        Encoder(build(tmp_path / "masked", tmp_path / "masked-out")).embed(TEXTS)
    with pytest.raises(SessionError, match="writes text, token by token: run it with --prompt"):
        Encoder(writer)
    with pytest.raises(SessionError, match="it cannot generate: run it with --embed or --rerank"):
        Session(embedder[1])


def test_a_tokenizer_that_is_missing_or_anothers(embedder: tuple[Any, Path], tmp_path: Path) -> None:
    save_embedder(tmp_path / "in")
    build(tmp_path / "in", tmp_path / "out")
    path = tmp_path / "out" / "tokenizer.json"
    other = wordpiece()
    other.add_tokens(["violet"])
    other.save(str(path))
    Encoder(tmp_path / "out").embed(["red"])
    with pytest.raises(SessionError, match="gives token .*, and the model has .*: it is another model's"):
        Encoder(tmp_path / "out").embed(["violet"])
    path.write_text("{}")
    with pytest.raises(SessionError, match="not a tokenizer"):
        Encoder(tmp_path / "out")
    path.unlink()
    with pytest.raises(SessionError, match=r"no tokenizer\.json"):
        Encoder(tmp_path / "out")


@pytest.mark.parametrize("target", [Target(), Target("cpu")])
def test_the_graph_itself_at_its_edges(target: Target, embedder: tuple[Any, Path], tmp_path: Path) -> None:
    """A row of nothing but padding has the vector 0, and finite hidden states.

    onnxruntime refuses no rows and no tokens in ai.onnx's Attention; in its own kernels they give no rows, and 0.
    """
    out = build(embedder[1].parent / "embedder", tmp_path / "out", target=target)
    options: Any = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session: Any = onnxruntime.InferenceSession(out / "model.onnx", options, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    assert names == ["input_ids", "attention_mask", "token_type_ids"]
    hidden, pooled = session.run(None, dict.fromkeys(names, np.zeros((2, 5), np.int64)))
    assert np.isfinite(hidden).all() and not pooled.any()
    for rows, tokens in ((0, 5), (1, 0)):
        feeds = dict.fromkeys(names, np.ones((rows, tokens), np.int64))
        if target.provider is None:
            with pytest.raises(Exception, match="must be greater than 0"):
                session.run(None, feeds)
            continue
        hidden, pooled = session.run(None, feeds)
        assert hidden.shape == (rows, tokens, 32) and pooled.shape == (rows, 32) and not pooled.any()


# The command


def run(*arguments: str | Path) -> int:
    return run_guarded(lambda: app(["run", *map(str, arguments)], standalone_mode=False))


def test_run_prints_vectors(
    embedder: tuple[Any, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = Encoder(embedder[1]).embed(["a cat", "the sky"])
    assert run(embedder[1], "--embed", "a cat", "--embed", "the sky") == 0
    out, err = capsys.readouterr()
    first, second = out.splitlines()
    assert first.startswith(f"[{wanted[0, 0]: .4f} {wanted[0, 1]: .4f}") and first.endswith("of 32  a cat")
    assert second.endswith("of 32  the sky") and err.startswith("2 texts, 8 tokens in ")
    monkeypatch.setattr(sys, "stdin", io.StringIO("a cat\nthe sky\n"))
    assert run(embedder[1], "--embed", "-", "--format", "json") == 0
    assert np.array_equal(np.array(json.loads(capsys.readouterr().out), np.float32), wanted)
    assert run(embedder[1], "--embed", "a cat", "--embed", "the sky", "--format", "npy", "-o", tmp_path / "v.npy") == 0
    held = np.load(tmp_path / "v.npy")
    assert held.dtype == np.float32 and np.array_equal(held, wanted)
    assert run(embedder[1], "--embed", "a cat", "--prompt-name", "query", "--format", "json") == 0
    asked = Encoder(embedder[1]).embed(["a cat"], prompt_name="query")
    assert np.array_equal(np.array(json.loads(capsys.readouterr().out), np.float32), asked)


def test_run_says_what_was_cut(embedder: tuple[Any, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(embedder[1], "--embed", "cat " * 90, "--embed", "a") == 0
    assert f"1 text has more than {CONTEXT} tokens, the limit by the model's context" in capsys.readouterr().err
    assert run(embedder[1], "--embed", "cat " * 90, "--strict") == 1
    assert "shorten them, or leave strict out" in capsys.readouterr().err


def test_run_orders_documents(
    reranker: tuple[Any, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = ["a dog", "the sky", "red\tcat"]
    ranked = Encoder(reranker[1]).rerank(QUERY, documents)
    monkeypatch.setattr(sys, "stdin", io.StringIO("the sky\nred\tcat\n"))
    assert run(reranker[1], "--rerank", QUERY, "--document", "a dog", "--document", "-") == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == [f"{each.score:.4f}  {documents[each.index]}".replace("\t", "\\t") for each in ranked]
    assert "score: the sigmoid of the model's logit" in err
    (tmp_path / "template.txt").write_text("red {query} {document}\n")
    given = [word for text in documents for word in ("--document", text)]
    for extra, template in (((), None), (("--template", tmp_path / "template.txt"), "red {query} {document}")):
        assert run(reranker[1], "--rerank", QUERY, *given, "--format", "json", *extra) == 0
        wanted = Encoder(reranker[1]).rerank(QUERY, documents, template=template)
        said = [(each["index"], each["document"], each["score"]) for each in json.loads(capsys.readouterr().out)]
        assert said == [(each.index, documents[each.index], pytest.approx(each.score, abs=1e-6)) for each in wanted]


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        ("--prompt x", 1, "it cannot generate: run it with --embed or --rerank"),
        ("", 2, "nothing to run: give --prompt TEXT, --embed TEXT, or --rerank QUERY"),
        ("--embed x --tokens 5", 2, "--tokens is for a model that writes text, and --embed is not"),
        ("--embed x --prompt y", 2, "--prompt is for a model that writes text"),
        ("--rerank x --document y --chat", 2, "--chat is for a model that writes text, and --rerank is not"),
        ("--embed x --rerank y", 2, "--embed and --rerank ask for two things"),
        ("--rerank x", 2, "--rerank needs documents"),
        ("--embed x --document y", 2, "--document is for --rerank"),
        ("--rerank x --document y --prompt-name query", 2, "--prompt-name is for --embed"),
        ("--prompt x --batch 4", 2, "--batch is for --embed or --rerank"),
        ("--embed x --format npy", 2, "--format npy is for a file: say which with --output FILE"),
        ("--rerank x --document y --format npy", 2, "--format npy is for vectors"),
        ("--embed x --prompt-name z", 2, "--prompt-name z: no prompt of the model has that name"),
        ("--embed - --embed -", 2, "--embed - reads standard input, so it can be given once"),
        ("--rerank x --document y --template nowhere.txt", 1, "nowhere.txt: No such file or directory"),
    ],
)
def test_options_that_do_not_fit(
    arguments: str, code: int, why: str, embedder: tuple[Any, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(embedder[1], *arguments.split()) == code
    assert why in capsys.readouterr().err


def test_run_embed_on_a_model_that_writes(writer: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(writer, "--embed", "x") == 1
    assert "the model writes text, token by token: run it with --prompt" in capsys.readouterr().err
