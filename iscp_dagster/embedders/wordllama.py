"""`wordllama`: small static word vectors whose weights come inside the Python package.

A text's vector is the mean of its tokens' vectors. The weights and the tokenizer are read straight
from the files of the installed package: its own loader asks the network for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iscp_dagster.errors import EmbedderMissing

if TYPE_CHECKING:
    import numpy as np

MODEL = "l2_supercat"
DIMENSION = 256
_CURE = "pip install 'iscp_dagster[embed]'"


@dataclass(frozen=True, slots=True)
class WordLlama:
    """Mean of token vectors."""

    weights: np.ndarray
    tokenizer: Any
    version: str = f"{MODEL}-{DIMENSION}"
    dimension: int = DIMENSION

    @staticmethod
    def load() -> WordLlama:
        """Read the weights and the tokenizer of the installed package."""
        import numpy as np

        found = find_spec("wordllama")
        if found is None or found.origin is None:
            raise EmbedderMissing("embedder: wordllama is not installed", cure=_CURE)
        from safetensors.numpy import load_file
        from tokenizers import Tokenizer

        home = Path(found.origin).parent
        weights = home / "weights" / f"{MODEL}_{DIMENSION}.safetensors"
        words = home / "tokenizers" / f"{MODEL}_tokenizer_config.json"
        if not weights.exists() or not words.exists():
            raise EmbedderMissing(f"embedder: this wordllama comes without {MODEL}", cure=_CURE)
        tokenizer = Tokenizer.from_file(str(words))
        tokenizer.no_padding()
        tokenizer.no_truncation()
        matrix = load_file(str(weights))["embedding.weight"]
        return WordLlama(np.ascontiguousarray(matrix, dtype=np.float32), tokenizer)

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Return one row for each text; a text without a token is all zeros."""
        import numpy as np

        vectors = np.zeros((len(texts), self.dimension), dtype=np.float32)
        encoded = self.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        last = len(self.weights) - 1
        for row, tokens in enumerate(encoded):
            if tokens.ids:
                vectors[row] = self.weights[np.minimum(tokens.ids, last)].mean(axis=0)
        return vectors
