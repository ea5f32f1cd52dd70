"""Which texts are read as which integer."""

import pytest

from rlzero.rewards.equivalence import canonical_integer


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("34", "34"),
        ("042", "42"),
        ("000", "0"),
        ("-0", "0"),
        ("+34", "34"),
        ("-7", "-7"),
        ("- 7", "-7"),
        ("\u22127", "-7"),
        ("\u20137", "-7"),
        ("1,234", "1234"),
        ("11,111", "11111"),
        ("1{,}234", "1234"),
        (r"1\,234\,567", "1234567"),
        (r"1,\!234", "1234"),
        ("1,234.00", "1234"),
        ("34.", "34"),
        ("34.0", "34"),
        ("500.00", "500"),
        ("**34**.", "34"),
        ("`34`", "34"),
        ("$34$", "34"),
        ("$$34$$", "34"),
        (r"\(34\)", "34"),
        (r"\$34", "34"),
        (r"\text{ 34 }", "34"),
        (r"\mathbf{34}", "34"),
        (r"{\bf 34}", "34"),
        (r"\left(34\right)", "34"),
        ("-$34$", "-34"),
        ("x=5", "5"),
        ("$x$ = -5", "-5"),
        ("n_{1} = 5", "5"),
        ("AB = 5", "5"),
        (r"\alpha=5", "5"),
    ],
)
def test_read_as_an_integer(text, expected):
    assert canonical_integer(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", " ", "3, 4", "3 4", "34, 35", "34 or 35", "34\n35", "1,23", "1,2345", "12,34", "0,123", r"1,234\,567", "34.5"]
    + ["34.05", ".5", "1e3", "0x22", "3/4", "9**9", "34!", "--7", "(34", "34)", "34}", "True", "False", "None", "nan"]
    + ["inf", "\u0663\u0664", r"\neq 34", r"\not=34", "not=34", r"\approx 34", "~34", ">34", "x=y=5", "5=x", "x+y=5"]
    + [r"x\neq 5", "34 cm", r"3\frac12", "52_8", "__import__('os').getcwd()", ".*", "3^4", r"\text{not } 34", "thirty-four"],
)
def test_not_read_when_it_is_not_plainly_one_integer(text):
    assert canonical_integer(text) is None
