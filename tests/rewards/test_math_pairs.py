"""Pairs of gold answers and answers of every kind, right and wrong, with what is easily mistaken for the other."""

import collections
import json
import pathlib

import pytest

from rlzero.rewards import grade, parses
from rlzero.rewards.mathematics import algebraic, library, scalars, tokens
from rlzero.rewards.mathematics.elementary import form_of
from rlzero.rewards.mathematics.expressions import parse
from rlzero.rewards.mathematics.forms import Ring

_FILE = pathlib.Path(__file__).parent / "math_pairs.jsonl"
_PAIRS = [json.loads(line) for line in _FILE.read_text("utf-8").splitlines()]


def tree(text):
    return parse(tokens.tokenize(text))[0]


@pytest.mark.parametrize("pair", _PAIRS, ids=[f"{pair['kind']}{n}" for n, pair in enumerate(_PAIRS)])
def test_pair(pair):
    result = grade(rf"So it is $\boxed{{{pair['answer']}}}$.", pair["gold"], mode="math")
    assert result.error is None and result.correct is pair["correct"]


def test_every_kind_has_right_and_wrong_answers():
    counts = collections.Counter((pair["kind"], pair["correct"]) for pair in _PAIRS)
    kinds = {kind for kind, _ in counts}
    assert kinds >= {"integer", "fraction", "decimal", "expression", "tuple", "list", "set", "interval", "equation",
                     "unit", "text", "choice", "matrix"}
    assert all(counts[kind, verdict] >= 2 for kind in kinds for verdict in (True, False))


@pytest.mark.parametrize("pair", [pair for pair in _PAIRS if pair["correct"]], ids=lambda pair: pair["gold"][:30])
def test_golds_are_right_answers_to_themselves(pair):
    assert parses(pair["gold"], "math")
    assert grade(rf"\boxed{{{pair['gold']}}}", pair["gold"], mode="math").correct


@pytest.mark.parametrize("gold", ["", " ", "$$", r"\frac{1}{", r"\frac{}{}", r"\frac{1}{}", r"\sqrt{}", "x^{}", "}", "...",
                                  "9" * 30_000 + "x"])
def test_golds_that_nothing_can_be_compared_with(gold):
    assert not parses(gold, "math")
    assert grade(rf"\boxed{{{gold}}}", gold, mode="math").error


@pytest.mark.parametrize("a, b, equal", [
    (r"\sqrt[3]{2+\sqrt5}+\sqrt[3]{2-\sqrt5}", "1", True),
    (r"\cos 20^\circ \cos 40^\circ \cos 80^\circ", r"\frac18", True),
    (r"\cos\frac{2\pi}{7}+\cos\frac{4\pi}{7}+\cos\frac{6\pi}{7}", r"-\frac12", True),
    (r"\sqrt{10-2\sqrt5}", r"4\sin 36^\circ", True),
    (r"\frac{1}{\sqrt2+\sqrt3+\sqrt5}", r"\frac{2\sqrt3+3\sqrt2-\sqrt{30}}{12}", True),
    (r"\sqrt[3]{2+\sqrt5}", r"1.6180339887498948482045868343656381177203", False),
    (r"\sqrt{10-2\sqrt5}", r"4\sin 36^\circ + 10^{-9}", False)])
def test_algebraic_numbers_are_decided_by_their_digits(a, b, equal):
    ring = Ring()
    difference = ring.difference(form_of(tree(a), ring), form_of(tree(b), ring))
    assert algebraic.is_zero(difference) is equal


def test_what_is_not_algebraic_is_not_decided_there():
    assert algebraic.is_zero(form_of(tree(r"\pi+\sqrt{1+\sqrt2}"), Ring())) is None
    assert algebraic.is_zero(form_of(tree("+".join(rf"\sqrt[97]{{{n}+\sqrt2}}" for n in range(3, 9))), Ring())) is None


@pytest.mark.parametrize("a, b, equal", [
    (r"\sqrt{1-\cos^2 x}", r"|\sin x|", True), (r"\sqrt{1-\cos^2 x}", r"|\cos x|", False),
    (r"\arctan x+\arctan\frac{1}{x}", r"\frac{\pi}{2}", False)])
def test_the_library_proves_what_is_left(a, b, equal):
    assert library.proven_equal(tree(a), tree(b)) is equal
    assert scalars.equal(tree(a), tree(b)) is equal


@pytest.mark.parametrize("text", ["+".join(f"x_{n}" for n in range(80)), "x^{100}", "9" * 60, "f(x)", "n!", "2^{2^{9}}",
                                  "((((2^{40})^{40})^{40})^{40})", r"\sin(10^{10^{10}})"])
def test_the_library_is_handed_nothing_large_or_unknown(text, monkeypatch):
    monkeypatch.setattr(library, "load", lambda: pytest.fail("it was handed over"))
    assert not library.proven_equal(tree(text), tree("x"))
