r"""The tokenizer of the demo model: 24 tokens, so that a vocabulary fits on one line and a response reads as it is.

    7+8-3=7+8=15; 15-3=12; \boxed{12}<eos>
"""

import json
import os
import pathlib

import tokenizers
from tokenizers import decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"
_WORDS = ("; ", "wait ", "\\boxed{", "Answer: ")
VOCABULARY = (PAD, EOS, UNKNOWN, *"0123456789", *"+-=", *_WORDS, *"} \n.")
"""The tokens, in the order of their ids."""

ID = {token: index for index, token in enumerate(VOCABULARY)}


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Builds the tokenizer. Text that consists of tokens comes back unchanged from encoding and decoding."""
    core = tokenizers.Tokenizer(models.WordLevel(ID, unk_token=UNKNOWN))
    words = "|".join(word.replace("\\", "\\\\").replace("{", "\\{") for word in _WORDS)
    core.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(rf"{words}|[\s\S]"), behavior="isolated")
    core.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNKNOWN,
        clean_up_tokenization_spaces=False,
    )


def save(directory: str | os.PathLike) -> None:
    """Writes the tokenizer files of a model directory, in the form that transformers 4 and 5 both read."""
    make_tokenizer().save_pretrained(str(directory))
    path = pathlib.Path(directory) / "tokenizer_config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    path.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
