"""What is sent: a checkpoint's tensors in one dtype, in buckets of bounded size, with a digest of all of them."""

import hashlib
import math
import pathlib
from collections.abc import Iterator

import numpy as np

from rlzero.models import huggingface
from rlzero.models.huggingface import NamedTensors
from rlzero.models.tensor_files import TensorFiles

_HASHED_WORD = np.dtype("<u8")


class Outgoing:
    """Tensors on their way out; what passes `fetch` enters the digest.

    Attributes:
      config: the model's shape.
      shapes: name -> shape, in the order in which they are sent.
      dtype: that they are sent in.
    """

    def __init__(self, tensors: NamedTensors, dtype: str):
        self._tensors, self.dtype = tensors, np.dtype(dtype)
        self.config, self.shapes = tensors.config, tensors.shapes
        self._sums: dict[str, int] = {}

    @property
    def bytes(self) -> int:
        """Of all tensors."""
        return sum(math.prod(shape) for shape in self.shapes.values()) * self.dtype.itemsize

    def fetch(self, name: str) -> np.ndarray:
        """A tensor, contiguous, in the dtype it is sent in."""
        tensor = np.ascontiguousarray(self._tensors.fetch(name), self.dtype)
        self._sums[name] = _word_sum(tensor)
        return tensor

    def buckets(self, limit: int) -> Iterator[list[str]]:
        """Names, in order, cut into lists of at most `limit` bytes; a tensor above that is alone."""
        names, size = [], 0
        for name, shape in self.shapes.items():
            more = math.prod(shape) * self.dtype.itemsize
            if names and size + more > limit:
                yield names
                names, size = [], 0
            names.append(name)
            size += more
        if names:
            yield names

    def digest(self) -> str:
        """A hash of names, shapes and sums of all that was fetched: other weights, another digest."""
        text = repr([(name, shape, self._sums.get(name)) for name, shape in self.shapes.items()])
        return hashlib.blake2b(f"{self.dtype}{text}".encode(), digest_size=16).hexdigest()


def _word_sum(tensor: np.ndarray) -> int:
    """The bytes as 64-bit words, weighted by place in a short cycle and added up: as fast as memory, and moved words
    show."""
    data = tensor.reshape(-1).view(np.uint8)
    words = data[:data.size // 8 * 8].view(_HASHED_WORD)
    with np.errstate(over="ignore"):
        parts = [int(words[start::7].sum(dtype=np.uint64)) * (2 * start + 3) for start in range(7)]
    return sum(parts) + int.from_bytes(data[data.size // 8 * 8:].tobytes(), "little") * 17


def expect_same_tensors(tensors: NamedTensors | Outgoing, source: str) -> None:
    """Compares names and shapes with those of the model directory that the servers were started with.

    A server takes an unknown name without a word, and dies of a wrong shape.

    Raises:
      ValueError: naming the tensors.
    """
    files = TensorFiles(pathlib.Path(huggingface.model_directory(source)))
    head = {"lm_head.weight"} if tensors.config.tie_embeddings else set()
    served = {name: files.shape(name) for name in files.names - head if not name.endswith("rotary_emb.inv_freq")}
    wrong = sorted(name for name in served.keys() | tensors.shapes.keys()
                   if served.get(name) != tensors.shapes.get(name))
    if wrong:
        name = wrong[0]
        raise ValueError(f"{len(wrong)} tensors to send are not those of {source}; first {name}: "
                         f"{tensors.shapes.get(name, 'not sent')} here, {served.get(name, 'unknown')} there")
