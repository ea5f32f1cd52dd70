"""Prompt ids are built in one place; decoding never fails."""

import pytest
import tokenizers
from transformers import PreTrainedTokenizerFast

from rlzero.data import templates
from rlzero.data.tasks.arithmetic_tokenizer import make_tokenizer


def _tokenizer(single):
    """Words `a` 20 and `b` 21, `<s>` 1, `</s>` 2; `single` is what it wraps around a text."""
    words = {"<unk>": 0, "<s>": 1, "</s>": 2, "a": 20, "b": 21}
    core = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    core.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    core.post_processor = tokenizers.processors.TemplateProcessing(
        single=single, special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


@pytest.mark.parametrize(
    ("single", "text", "expected"),
    [
        ("<s> $A", "a b", (1, 20, 21)),
        ("<s> $A", "<s>a b", (1, 20, 21)),
        ("$A", "<s>a b", (1, 20, 21)),
        ("$A", "a b", (20, 21)),
        ("<s> $A </s>", "a b", (1, 20, 21)),
        ("<s> $A", "a b</s>", (1, 20, 21, 2)),
    ],
)
def test_at_most_one_bos_and_no_appended_eos(single, text, expected):
    assert templates.encode_prompt(_tokenizer(single), text) == expected


def test_an_empty_prompt_is_an_error():
    with pytest.raises(ValueError, match="has no tokens"):
        templates.encode_prompt(make_tokenizer(), "")


def test_decoding_never_fails():
    tokenizer = make_tokenizer()
    assert templates.decode(tokenizer, [10, 999_999, -1, 11, 1, 0]) == "78"
    assert templates.decode(tokenizer, []) == ""


def test_templates():
    assert templates.apply_template("none", "7+8=") == "7+8="
    with pytest.raises(ValueError, match="available: 'none'"):
        templates.apply_template("r2", "7+8=")


def test_which_templates_ask_for_answers_in_tags(tmp_path):
    own = tmp_path / "own.txt"
    own.write_text("{question} Answer in <answer> </answer> tags.")
    assert templates.asks_for_tags("r1") and templates.asks_for_tags(str(own))
    assert not any(map(templates.asks_for_tags, ("none", "qwen_math", "chat")))
