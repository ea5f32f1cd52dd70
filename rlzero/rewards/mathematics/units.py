"""Units behind a number: which there are, how they are spelled, and which word is none.

A unit is compared by name and power, never converted: 12 cm is not 12 m, and 120 mm is not 12 cm. Words that multiply,
such as `million`, become part of the number. A word that is not known counts as a unit only in a gold answer, or as a
noun in the plural (`12 apples`); `12 or so`, `12 not` and `12 halves` are no numbers with a unit.
"""

import dataclasses

from rlzero.rewards.mathematics.tokens import Token, Unreadable

_NAMES = {
    "mm": "mm millimeter millimetre",
    "cm": "cm centimeter centimetre",
    "m": "m meter metre",
    "km": "km kilometer kilometre",
    "in": "in inch inches",
    "ft": "ft foot feet",
    "yd": "yd yard",
    "mi": "mi mile",
    "mg": "mg milligram",
    "g": "g gram",
    "kg": "kg kilogram",
    "lb": "lb lbs pound",
    "oz": "oz ounce",
    "ton": "ton tonne",
    "l": "L l liter litre",
    "ml": "mL ml milliliter millilitre",
    "gal": "gal gallon",
    "s": "s sec second",
    "min": "min minute",
    "h": "h hr hour",
    "day": "day",
    "week": "week",
    "month": "month",
    "year": "yr year",
    "usd": "USD usd dollar buck",
    "cent": "cent \u00a2",
    "gbp": "GBP quid",
    "eur": "EUR euro",
    "deg": "degree deg",
    "rad": "rad radian",
    "percent": "percent",
    "degC": "C Celsius celsius",
    "degF": "F Fahrenheit fahrenheit",
    "K": "K kelvin",
    "N": "N newton",
    "J": "J joule",
    "W": "W watt",
    "Pa": "Pa pascal",
    "V": "V volt",
    "A": "A amp ampere",
    "Hz": "Hz hertz",
    "mol": "mol mole",
    "mph": "mph",
    "unit": "unit",
    "point": "point pt",
    "way": "way",
    "people": "people person",
    "child": "children child",
}
_CANONICAL = {spelling: name for name, spellings in _NAMES.items() for spelling in spellings.split()}
_SYMBOLS = {"%": "percent", "deg": "deg", r"\$": "usd", r"\pounds": "gbp", r"\euro": "eur"}
_MULTIPLIERS = {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12}
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_RAISED = {"squared": 2, "cubed": 3}
_PLURAL_BUT_NO_NOUN = frozenset(
    """plus minus times halves thirds fourths fifths sixths sevenths eighths ninths tenths quarters
    ones twos threes fours fives sixes sevens eights nines tens hundreds thousands millions billions trillions dozens
    pairs less unless plusminus divides equals is was has does yes this hundredths thousandths guess perhaps always
    sometimes others scores modulus bits radix""".split()
)
_NO_NOUN = frozenset(
    """or and not no nor but if so only about approximately exactly wrong false incorrect never maybe over
    by of off more mod base choose to from with without for than then when where because since per factorial squared
    cubed the a an to at""".split()
)


@dataclasses.dataclass(frozen=True)
class Unit:
    """A product of powers of named units.

    Attributes:
      powers: name -> power, as sorted pairs; empty for a plain number.
      factor: what words such as `million` multiply the number with.
      known: whether every word in it is a unit or plainly a noun.
    """

    powers: tuple[tuple[str, int], ...] = ()
    factor: int = 1
    known: bool = True


NONE = Unit()
PERCENT = Unit((("percent", 1),))
DEGREE = Unit((("deg", 1),))
RADIAN = Unit((("rad", 1),))
TEMPERATURES = (Unit((("degC", 1),)), Unit((("degF", 1),)))
CURRENCIES = (r"\$", r"\pounds", r"\euro")


def read_unit(tokens: list[Token]) -> Unit:
    """The unit that a list of tokens spells.

    Raises:
      Unreadable: if they spell something else.
    """
    tokens = [token for token in tokens if token.value not in ("{", "}")]
    powers: dict[str, int] = {}
    factor, known, sign, place = 1, True, 1, 0
    while place < len(tokens):
        value = tokens[place].value
        if value in ("/", "per"):
            sign, place = -1, place + 1
            continue
        if value in _MULTIPLIERS and not powers:
            factor, place = factor * _MULTIPLIERS[value], place + 1
            continue
        if value == "*" and 0 < place < len(tokens) - 1:
            place += 1
            continue
        name, power, length, familiar = _factor(tokens[place:])
        powers[name] = powers.get(name, 0) + sign * power
        known, place = known and familiar, place + length
    if "degC" in powers or "degF" in powers:
        powers.pop("deg", None)
    return Unit(tuple(sorted(powers.items())), factor, known)


def _factor(tokens: list[Token]) -> tuple[str, int, int, bool]:
    """Reads one unit with its power: its name, power, number of tokens, and whether it is a familiar one."""
    power = _POWERS.get(tokens[0].value.lower(), 1) if len(tokens) > 1 else 1
    length = 2 if power > 1 else 1
    name, familiar = _name(tokens[length - 1])
    following = tokens[length:]
    if following and following[0].value == "^" and len(following) > 1:
        signs = len(following) > 2 and following[1].value == "-"
        exponent = following[2 if signs else 1]
        if exponent.value not in ("1", "2", "3", "4"):
            raise Unreadable("a unit to this power")
        power, length = power * int(exponent.value) * (-1 if signs else 1), length + 2 + signs
    elif following and following[0].value in _RAISED:
        power, length = power * _RAISED[following[0].value], length + 1
    return name, power, length, familiar


def _name(token: Token) -> tuple[str, bool]:
    if token.value in _SYMBOLS:
        return _SYMBOLS[token.value], True
    if token.kind not in ("word", "symbol"):
        raise Unreadable("no unit")
    word = token.value
    lower = word.lower()
    for spelling in (
        word,
        lower,
        lower[:-1] if lower.endswith("s") else lower,
        lower[:-2] if lower.endswith("es") else lower,
    ):
        if spelling in _CANONICAL:
            return _CANONICAL[spelling], True
    if lower in _NO_NOUN or lower in _PLURAL_BUT_NO_NOUN or lower in _MULTIPLIERS or token.kind == "symbol":
        raise Unreadable(f"{word} is no unit")
    return lower, len(lower) > 3 and lower.endswith("s")
