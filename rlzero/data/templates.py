"""Between text and token ids: the only place where prompt ids are made and response ids become text."""

from collections.abc import Sequence

TEMPLATES = {"none": "{question}"}
"""What is wrapped around a question. "none" gives the model the question as it stands."""


def apply_template(name: str, question: str) -> str:
    """Returns the prompt text of a question.

    Raises:
      ValueError: for an unknown template.
    """
    if name not in TEMPLATES:
        raise ValueError(f"there is no template {name!r}; available: {', '.join(map(repr, TEMPLATES))}.")
    return TEMPLATES[name].replace("{question}", question)


def encode_prompt(tokenizer, text: str) -> tuple[int, ...]:
    """Returns the ids of a prompt, as they are sent to the engine and trained on.

    A beginning-of-sequence token is there if the tokenizer sets one, and at most once, also when the template has
    written it out already. An end-of-sequence token that the tokenizer appends by itself is taken off: the response is
    still to come.

    Args:
      tokenizer: a tokenizer of `transformers`.
      text: the prompt after the template.

    Raises:
      ValueError: if there is no id, because a model cannot go on from nothing.
    """
    ids = list(tokenizer.encode(text))
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
    while bos is not None and ids[:2] == [bos, bos]:
        del ids[0]
    if len(ids) > 1 and eos is not None and ids[-1] == eos and not text.endswith(tokenizer.eos_token):
        del ids[-1]
    if not ids:
        raise ValueError(f"the prompt {text!r} has no tokens; a prompt needs at least one.")
    return tuple(ids)


def decode(tokenizer, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
    """Returns the text of token ids and never raises: ids that the tokenizer does not know become nothing.

    A model's vocabulary is often padded beyond its tokenizer's, so such ids can be sampled.
    """
    known = [token for token in map(int, ids) if 0 <= token < len(tokenizer)]
    return tokenizer.decode(known, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False)
