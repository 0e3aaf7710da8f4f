"""Embedders: found by name, without the network."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from iscp_dagster.embedders.registry import embedder_names, get_embedder
from iscp_dagster.errors import EmbedderMissing


def test_the_built_in_embedder_is_known() -> None:
    assert "wordllama" in embedder_names()


def test_an_unknown_embedder_is_refused_with_those_there_are() -> None:
    with pytest.raises(EmbedderMissing, match=r"'nope' is unknown; known: .*wordllama"):
        get_embedder("nope")


def test_texts_of_like_meaning_are_near() -> None:
    pytest.importorskip("tokenizers")
    embedder = get_embedder("wordllama")
    car, auto, bread, nothing = embedder.embed(["a fast car", "quick automobile", "bread", ""])
    assert embedder.dimension == len(car)
    assert car @ auto / (np.linalg.norm(car) * np.linalg.norm(auto)) > 0.5
    assert abs(car @ bread) / (np.linalg.norm(car) * np.linalg.norm(bread)) < 0.3
    assert not nothing.any()


def test_a_text_has_one_vector_in_whatever_batch_it_comes() -> None:
    pytest.importorskip("tokenizers")
    embedder = get_embedder("wordllama")
    alone = embedder.embed(["stars and planets"])[0]
    among = embedder.embed(["x", "stars and planets", "a much longer text " * 20])[1]
    assert np.array_equal(alone, among)


def test_loading_it_opens_no_connection() -> None:
    pytest.importorskip("tokenizers")
    code = (
        "import socket\n"
        "def refuse(*a, **k): raise SystemExit(3)\n"
        "socket.socket.connect = refuse\n"
        "socket.getaddrinfo = refuse\n"
        "from iscp_dagster.embedders.registry import get_embedder\n"
        "get_embedder('wordllama').embed(['x'])\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
