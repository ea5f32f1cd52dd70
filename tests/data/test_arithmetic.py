"""The generated task, its tokenizer, and the worked arithmetic the demo model is pretrained on."""

import re

import numpy as np
import pytest
from transformers import AutoTokenizer

from rlzero.data import prepare, refuse_overlap, tasks
from rlzero.data.tasks import arithmetic, arithmetic_corpus
from rlzero.data.tasks.arithmetic_tokenizer import EOS, ID, PAD, VOCABULARY, make_tokenizer, save
from rlzero.rewards import grade

_CAREFUL = arithmetic_corpus.Habits(guess=0, slip=0, recheck_slip=0, doubt=0.3)
_NEVER_CAREFUL = arithmetic_corpus.Habits(guess=0, slip=1, doubt=0, notice=0)


def _value(question):
    """The answer by a calculation of its own."""
    return sum(int(term) for term in re.findall(r"[+-]?\d+", question))


def _texts(habits, count=2000, **kwargs):
    tokenizer = make_tokenizer()
    rows = arithmetic_corpus.sequences(count, np.random.default_rng(0), habits=habits, **kwargs)
    return [tokenizer.decode(row, skip_special_tokens=True) for row in rows]


def _accuracy(texts):
    pairs = [text.split("=", 1) for text in texts]
    return np.mean([grade(response, str(_value(question))).correct for question, response in pairs])


def test_questions_are_as_promised():
    problems = tasks.problems("arithmetic", "train", 3000, seed=0)
    assert len({problem.id for problem in problems}) == 3000
    for problem in problems:
        assert re.fullmatch(r"[1-9]([+-][1-9]){2,3}=", problem.question)
        assert int(problem.answer) == _value(problem.question)
        prefixes = [problem.question[: n + 1] for n in range(0, len(problem.question) - 1, 2)]
        assert all(0 <= _value(prefix) <= arithmetic.MAX_TOTAL for prefix in prefixes)


def test_problems_depend_on_the_seed_alone():
    first, again, other = (tasks.problems("arithmetic", "train", 50, seed=seed) for seed in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize("seed", [0, 1])
def test_splits_never_overlap(seed):
    held_out = tasks.problems("arithmetic", "held_out", 512, seed=seed)
    refuse_overlap(tasks.problems("arithmetic", "train", 3000, seed=seed + 7), held_out)


def test_all_questions_are_in_one_split_or_the_other():
    for num_operands in arithmetic.NUM_OPERANDS:
        texts = [
            {arithmetic.question_text(d, s) for d, s in zip(*arithmetic.questions(split, num_operands), strict=True)}
            for split in tasks.SPLITS
        ]
        assert not texts[0] & texts[1]
        assert 0.15 < len(texts[1]) / len(texts[0] | texts[1]) < 0.19


def test_wrong_use_says_what_to_do():
    with pytest.raises(ValueError, match="available: 'arithmetic'"):
        tasks.problems("algebra", "train", 1, seed=0)
    with pytest.raises(ValueError, match="available: 'train', 'held_out'"):
        tasks.problems("arithmetic", "test", 1, seed=0)
    with pytest.raises(ValueError, match="ask for at most"):
        tasks.problems("arithmetic", "held_out", 5000, seed=0)


def test_tokenizer_directory_is_an_ordinary_one(tmp_path):
    save(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert len(tokenizer) == len(VOCABULARY) == 24
    text = "7+8-3=7+8=5; wait 7+8=15; 15-3=12; \\boxed{12}"
    ids = tokenizer.encode(text + EOS)
    assert [VOCABULARY[i] for i in ids[-5:]] == ["\\boxed{", "1", "2", "}", EOS]
    assert tokenizer.decode(ids) == text + EOS
    assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.bos_token_id) == (ID[EOS], ID[PAD], None)


def test_every_token_comes_back_from_its_text():
    tokenizer = make_tokenizer()
    assert tokenizer.encode("".join(VOCABULARY)) == list(range(len(VOCABULARY)))
    assert tokenizer.encode("x;w") == [ID["<unk>"]] * 3


def test_prompts_are_as_long_as_their_characters():
    given = tasks.problems("arithmetic", "train", 100, seed=0)
    problems, report = prepare(given, make_tokenizer(), max_prompt_length=8)
    assert report.kept == 100
    assert all(len(problem.prompt_ids) == len(problem.question) for problem in problems)


def test_a_careful_pupil_is_always_right():
    texts = _texts(_CAREFUL)
    assert _accuracy(texts) == 1
    assert any("wait " in text for text in texts) and not all("wait " in text for text in texts)
    for text in texts:
        assert all(_value(left) == int(right) for left, right in re.findall(r"(\d+[+-]\d)=(\d+);", text))


def test_slips_are_forgotten_tens():
    def step(total, term):
        return int(arithmetic_corpus._step(np.array([total]), np.array([term]), np.array([True]))[0])

    assert step(7, 8) == 5
    assert step(17, 8) == 15
    assert step(15, -8) == 13
    assert step(3, -8) == 5
    assert (step(7, 2), step(17, -5)) == (9, 12)


def test_the_misconception_is_wrong_where_there_is_something_to_carry():
    accuracy = _accuracy(_texts(_NEVER_CAREFUL))
    assert 0.25 < accuracy < 0.4


def test_the_mixture_is_the_one_asked_for():
    habits = arithmetic_corpus.Habits(guess=0.35, guess_right=0.2)
    texts = _texts(habits, 4000)
    guessed = [text for text in texts if "=\\boxed" in text and ";" not in text]
    # Three standard errors of 4000 and 1400 draws.
    assert abs(len(guessed) / len(texts) - 0.35) < 0.023
    assert abs(_accuracy(guessed) - 0.2) < 0.032


def test_the_corpus_shows_no_held_out_question_and_is_a_function_of_the_seed():
    held_out = {problem.question for problem in tasks.problems("arithmetic", "held_out", 512, seed=0)}
    assert not held_out & {text.split("=")[0] + "=" for text in _texts(arithmetic_corpus.Habits(), 20_000)}
    first, again, other = (arithmetic_corpus.sequences(64, np.random.default_rng(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert first.shape != other.shape or (first != other).any()
