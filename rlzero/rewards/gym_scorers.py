r"""The scorers of reasoning-gym as a mode of the verifier: an answer is right exactly when its score is 1.

The library's scores are not binary: they pay a share for text that merely contains the answer and 0.01 for any wrong
one. Only 1 counts here, for the answer that the response commits to. A scorer that raises on an answer says that it is
wrong.

The gold answer is the JSON of what the scorer needs, made by `rlzero.data.tasks.gym`: {"dataset": …, "answer": …,
"metadata": …}.

Some scorers evaluate the answer as Python, which here nothing a model wrote ever is. Four do so only to pay a part for
another notation; for these the answer is compared with the valid ones instead. Five read formulas with a parser that
evaluates; they are handed nothing but numbers, known names, signs and brackets, with bounded powers. Golds may come
from a file, so what scorers evaluate of them is held to such letters too. Scorers have no clock, so responses are to be
graded in workers.

Where a scorer pays 1 for an answer that knows nothing of the problem, learning would find that answer. NaN, which two
of them take for any number, is no answer; no run is trained on datasets that one answer solves.
"""

import functools
import importlib.util
import itertools
import json
import math
import re
from typing import Any

MODE = "reasoning_gym"
# Datasets that are for evaluation only, and why.
GAMED = {
    "coin_flip": "its scorer pays 1 for 0 where the probability is below 0.0001, as it mostly is",
    "game_of_life_halting": "its scorer pays 1 for any text where the answer is False",
    "propositional_logic": "its scorer pays 1 for any conclusion, and P ∨ Q is one in most problems",
    "puzzle24": "its scorer does not look at the numbers that are given, so 6*4*1*1 solves every problem",
}
_COMPARED = frozenset({"binary_matrix", "n_queens", "spiral_matrix", "string_insertion"})
_FUNCTIONS = frozenset(
    "sqrt exp log sin cos tan asin acos atan sinh cosh tanh sec csc cot Abs pi".split())
# Dataset -> whether its formulas may have powers, functions and names.
_FORMULAS = {"countdown": False, "puzzle24": False, "polynomial_multiplication": True, "simple_integration": True,
             "intermediate_integration": True}
# Dataset -> what no answer to it holds: NaN, which is as near as can be to any number, or a move repeated for ever.
_NO_ANSWER = {"complex_arithmetic": re.compile("(?i)nan"), "number_sorting": re.compile("(?i)nan"),
              "rubiks_cube": re.compile(r"\d{3}"), "rush_hour": re.compile(r"\d{3}")}
_TOKEN = re.compile(r"\s*(?:(\d{1,12}(?:\.\d{1,12})?)|([A-Za-z]{1,8})|(\*\*|[-+*/(),]))")
_EXPONENT = re.compile(r"-?(?:([\d.]++)|\(-?([\d.]++)(?:/[\d.]++)?\))(?!\*\*)")
_NUMBER_ENDS = tuple("0123456789)")
# What scorers evaluate of the problem itself: lists of numbers, and hexadecimal numbers with signs.
_LIST = re.compile(r"[\s\d.,'\"\[\]+-]*")
_BITWISE = re.compile(r"[\s\da-fxA-FX()+*<>&|^~-]*")
_MOST_CHARACTERS = 10_000
_MOST_FORMULA_CHARACTERS = 500
_MOST_POWER = 1000
_DEEPEST = 20


def require() -> None:
    """Raises ImportError, with the remedy, where reasoning-gym is not installed."""
    if importlib.util.find_spec("reasoning_gym") is None:
        raise ImportError("the mode 'reasoning_gym' needs reasoning-gym, which is not installed; pip install "
                          "'rlzero[gym]'")


def load() -> None:
    """Imports the library, which takes seconds, before the first answer waits for it."""
    import reasoning_gym  # noqa: F401


@functools.lru_cache(maxsize=4096)
def why_unreadable(gold: str) -> str | None:
    """What is wrong with a gold answer, as the end of a sentence: no such JSON, or its own answer does not score 1."""
    try:
        entry = json.loads(gold)
        answer, name = entry["answer"], entry["dataset"]
        entry["metadata"].items()
    except (ValueError, KeyError, TypeError, AttributeError):
        return "is no JSON of a problem of reasoning-gym"
    if not _is_harmless(entry):
        return f"holds what the scorer of {name} would evaluate, and it is no formula"
    if answer is not None and not same(gold, str(answer)):
        return "does not score 1 with its own scorer"
    return None


def _is_harmless(entry: dict[str, Any]) -> bool:
    """Whether what the scorer evaluates of the problem are numbers and formulas."""
    answer, metadata = str(entry["answer"]), entry["metadata"]
    match entry["dataset"]:
        case "number_sorting":
            return _LIST.fullmatch(answer) is not None
        case "bitwise_arithmetic":
            return _BITWISE.fullmatch(str(metadata.get("problem"))) is not None
        case "polynomial_multiplication":
            return _is_formula(answer, frozenset(filter(str.isalpha, answer)))
        case "simple_integration" | "intermediate_integration":
            return _is_formula(str(metadata.get("integrand")), _FUNCTIONS | {str(metadata.get("variable"))})
    return True


def same(gold: str, given: str) -> bool:
    """Whether the scorer gives an answer 1.

    Args:
      gold: JSON of the problem, see above.
      given: the answer of a response.
    """
    entry = json.loads(gold)
    name, given = entry["dataset"], given.strip()
    if not given or len(given) > _MOST_CHARACTERS:
        return False
    if name in _NO_ANSWER and _NO_ANSWER[name].search(given):
        return False
    if name in _COMPARED:
        return given in map(str.strip, entry["metadata"].get("valid_answers") or [entry["answer"]])
    if name in _FORMULAS and not _is_formula(given, _names(entry) if _FORMULAS[name] else frozenset()):
        return False
    return _scores_one(given, _with_tuples(entry) if _wants_tuples(gold) else entry)


@functools.lru_cache(maxsize=4096)
def _wants_tuples(gold: str) -> bool:
    """Whether the scorer knows its own answer only where the entry has tuples, which JSON turns into lists."""
    entry = json.loads(gold)
    answer = entry["answer"]
    return answer is not None and not _scores_one(answer, entry) and _scores_one(answer, _with_tuples(entry))


def _scores_one(given: str, entry: dict[str, Any]) -> bool:
    try:
        return float(_scorer(entry["dataset"])(given, entry)) == 1
    except MemoryError:
        raise
    except Exception:  # whatever a scorer does not expect of an answer
        return False


@functools.cache
def _scorer(name: str):
    import reasoning_gym

    return reasoning_gym.get_score_answer_fn(name)


def _names(entry: dict[str, Any]) -> frozenset[str]:
    """The names that may stand in a formula: known functions, the constant of integration, and the gold's variables."""
    return _FUNCTIONS | {"C"} | set(re.findall(r"[A-Za-z]+", str(entry["answer"])))


def _is_formula(text: str, names: frozenset[str]) -> bool:
    """Whether a text holds numbers, these names, signs and brackets only, and no power that could grow without end.

    Signs are written out, also for products, and only a name may be called.
    """
    if len(text) > _MOST_FORMULA_CHARACTERS or (not names and "." in text):  # 2.5 would count as a 2 and a 5
        return False
    tokens, place = [], 0
    while place < len(text):
        found = _TOKEN.match(text, place)
        if found is None or (found[2] and found[2] not in names):
            return False
        token, before = found[0].strip(), tokens[-1] if tokens else ""
        if (token == "(" and before[-1:] in _NUMBER_ENDS) or (token[0].isalnum() and (before[-1:].isalnum()
                                                                                      or before == ")")):
            return False
        tokens.append(token)
        place = found.end()
    depths = list(itertools.accumulate((token == "(") - (token == ")") for token in tokens))
    if not depths or depths[-1] or min(depths) < 0 or max(depths) > _DEEPEST:
        return False
    return _highest_power(tokens) <= (_MOST_POWER if names else 1)


def _highest_power(tokens: list[str]) -> float:
    """The highest product of exponents on top of each other; infinite if one is more than a number or a quotient."""
    highest = [1.0]
    for place, token in enumerate(tokens):
        if token == "(":
            highest.append(1.0)
            continue
        power = highest.pop() if token == ")" else 1.0
        if tokens[place + 1:place + 2] == ["**"]:
            exponent = _EXPONENT.match("".join(tokens[place + 2:]))
            power = power * max(2.0, float(exponent[1] or exponent[2])) if exponent else math.inf
        highest[-1] = max(highest[-1], power)
    return highest[0]


def _with_tuples(value: Any) -> Any:
    """An entry with its lists as tuples."""
    if isinstance(value, dict):
        return {key: _with_tuples(item) for key, item in value.items()}
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value
