"""Between text and token ids: the only place where prompt ids are made and response ids become text."""

import pathlib
from collections.abc import Sequence
from typing import Any

TEMPLATES = {
    "none": "{question}",
    "r1": ("A conversation between User and Assistant. The User asks a question, and the Assistant solves it. The "
           "Assistant first thinks about the reasoning process in the mind and then provides the User with the answer. "
           "The reasoning process is enclosed within <think> </think> and answer is enclosed within <answer> </answer> "
           "tags, respectively, i.e., <think> reasoning process here </think> <answer> answer here </answer>.\n"
           "User: {question}\nAssistant: <think>"),
    "qwen_math": ("<|im_start|>system\nPlease reason step by step, and put your final answer within "
                  "\\boxed{}.<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"),
}
"""What is wrapped around a question (arXiv 2503.20783, templates 1 to 3). "none" gives it as it stands."""

CHAT = "chat"


def known_template(name: str) -> bool:
    """Whether there is such a template: one of `TEMPLATES`, "chat", or a file."""
    return name in TEMPLATES or name == CHAT or pathlib.Path(name).is_file()


def asks_for_tags(name: str) -> bool:
    """Whether a template asks for the answer in `<answer>` tags, as "r1" does; then it is read there, too."""
    if name in TEMPLATES or name == CHAT:
        return "<answer>" in TEMPLATES.get(name, "")
    return "<answer>" in pathlib.Path(name).read_text(encoding="utf-8")


def apply_template(name: str, question: str, tokenizer: Any = None) -> str:
    """Returns the prompt text of a question.

    Args:
      name: one of `TEMPLATES`; "chat" for the tokenizer's own chat template, with the question as the user's message
        and the assistant's turn begun; or the path of a text file that holds `{question}`.
      question: the question.
      tokenizer: a tokenizer of `transformers`, for "chat".

    Raises:
      ValueError: an unknown template, a file without `{question}`, or a tokenizer without a chat template.
    """
    if name == CHAT:
        if not getattr(tokenizer, "chat_template", None):
            raise ValueError("the tokenizer has no chat template; use another template, such as "
                             f"{', '.join(TEMPLATES)}")
        return tokenizer.apply_chat_template([{"role": "user", "content": question}], tokenize=False,
                                             add_generation_prompt=True)
    if name in TEMPLATES:
        return TEMPLATES[name].replace("{question}", question)
    if not pathlib.Path(name).is_file():
        raise ValueError(f"there is no template {name!r}; available: {', '.join(map(repr, TEMPLATES))}, 'chat', or the "
                         "path of a text file that holds {question}.")
    text = pathlib.Path(name).read_text(encoding="utf-8")
    if "{question}" not in text:
        raise ValueError(f"the template in {name} has no {{question}}, so every prompt would be the same")
    return text.replace("{question}", question)


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
    size = len(tokenizer)
    known = [token for token in map(int, ids) if 0 <= token < size]
    return tokenizer.decode(known, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False)
