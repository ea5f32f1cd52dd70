r"""Splits an answer in LaTeX or plain text into tokens: the allow-list of everything the reader understands.

Blanks, sizes, fonts and math delimiters go; `\dfrac` and `\tfrac` are `\frac`; Unicode signs are their LaTeX commands.
Words stay words: `even` is one token, `xy` is two symbols. Anything not on the list raises `Unreadable`, and such an
answer can only be right by being the same text. Nothing here is evaluated, and every step is linear in the length.
"""

import re
from typing import NamedTuple

MAX_CHARACTERS = 20_000
MAX_TOKENS = 2000  # after doubled brackets are gone
MAX_DEPTH = 40
MAX_DIGITS = 1000


class Unreadable(ValueError):
    """The text is outside what this module reads, or ambiguous, or too large to be worked with."""


class Token(NamedTuple):
    """One sign of an answer.

    Attributes:
      kind: number, symbol, word, constant, function, operator, relation, separator, open, close, or sign for the rest.
      value: its one spelling, such as `\\le` for all ways of writing that relation.
      spaced: whether a blank stood before it.
    """

    kind: str
    value: str
    spaced: bool = False


_UNICODE = {
    **dict.fromkeys("\u2212\u2013\uff0d", "-"), **dict.fromkeys("\u22c5\u00b7\u2219", r"\cdot "), "\u00d7": r"\times ",
    "\u00f7": r"\div ", "\u221a": r"\surd ", "\u221e": r"\infty ", **dict.fromkeys("\u2264\u2a7d", r"\le "),
    **dict.fromkeys("\u2265\u2a7e", r"\ge "), "\u2260": r"\ne ", "\u222a": r"\cup ", "\u2229": r"\cap ",
    "\u2208": r"\in ", "\u2205": r"\emptyset ", "\u00b1": r"\pm ", "\u2213": r"\mp ", "\u00b0": r"^\circ ",
    "\u2248": r"\approx ", "\u211d": r"\mathbb{R} ", "\u2124": r"\mathbb{Z} ", "\u27e8": r"\langle ",
    "\u27e9": r"\rangle ", "\u2220": r"\angle ", "\u2026": r"\ldots ", "\u2032": "'", "\u2019": "'",
    **dict.fromkeys("\u00a0\u2009\u202f", " "), "\uff05": "%", "\uff08": "(", "\uff09": ")", "\uff0c": ",",
    "\uff1a": ":", "\uff1d": "=", "\u00bd": r"\frac{1}{2}", "\u00bc": r"\frac{1}{4}", "\u00be": r"\frac{3}{4}",
    "\u2153": r"\frac{1}{3}", "\u2154": r"\frac{2}{3}", "\u00a3": r"\pounds ", "\u20ac": r"\euro ",
}
_GREEK = ("alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho sigma tau upsilon "
          "phi chi psi omega").split()
_LOWER_GREEK = ("\u03b1\u03b2\u03b3\u03b4\u03b5\u03b6\u03b7\u03b8\u03b9\u03ba\u03bb\u03bc"
                "\u03bd\u03be\u03bf\u03c0\u03c1\u03c3\u03c4\u03c5\u03c6\u03c7\u03c8\u03c9")
_TABLE = str.maketrans(_UNICODE | {letter: rf"\{name} " for letter, name in zip(_LOWER_GREEK, _GREEK, strict=True)})
_SUPERSCRIPTS = "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079\u207b"
_SUBSCRIPTS = "\u2080\u2081\u2082\u2083\u2084\u2085\u2086\u2087\u2088\u2089"
_RAISED = re.compile(f"([{_SUPERSCRIPTS}]+)|([{_SUBSCRIPTS}]+)")
_LEVEL = str.maketrans(_SUPERSCRIPTS + _SUBSCRIPTS, "0123456789-0123456789")

_TEX_GROUPS = re.compile(r"(?<![0-9.])([1-9][0-9]{0,2})(,\\[!,]\s?|\{\\?,\}|\\,)([0-9]{3}(?:\2[0-9]{3})*)(?![0-9])")
_NUMBER = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:E[+-]?[0-9]{1,3}(?![0-9])"
                     r"|(?<=\.[0-9])e[+-]?[0-9]{1,3}(?![0-9])|e[0-9]{1,3}(?![0-9]))?")
_RECURRING = re.compile(r"([0-9]*\.[0-9]*)(?:\\(?:overline|bar)\s*\{([0-9]+)\}"
                        r"|\\dot\s*\{?([0-9])\}?(?:([0-9]*)\\dot\s*\{?([0-9])\}?)?)")
_GROUPED = re.compile(r"[1-9][0-9]{0,2}(?:,[0-9]{3})+(?![0-9]|,[0-9])(?:\.[0-9]+)?")
_BLANKS = re.compile(r"(?:[\s~$`]|\\[,;:! ()]|\\q?quad(?![A-Za-z])|\\(?:left|right|[bB]igg?[lrm]?)(?![A-Za-z])\.?"
                     r"|\\[\[\]](?!\s*[0-9.]+\s*(?:pt|em|ex|mm)\])"
                     r"|\\(?:displaystyle|textstyle|limits|boxed|fbox|math(?:bf|it|sf)|boldsymbol|bm|bf|rm|it)"
                     r"(?![A-Za-z])"
                     r"|\\phantom\s*(?:\{[^{}]*\}|[-+0-9]))+")
_AROUND = " \t\n*_\"$"
_TRAILING = (".", ",", ";", ":", "\\!", "\\ ")
_ROW = re.compile(r"\\\\(?:\s*\[[^\]]{0,12}\])?|\\cr(?![A-Za-z])")
_COMMAND = re.compile(r"\\([A-Za-z]+\*?|[{}%$#&|_])")
_TEXT = re.compile(r"\\(?:text(?:bf|it|rm|sf|tt|normal)?|mathrm|mbox|operatorname\*?)\s*\{([^{}]*)\}")
_ENVIRONMENT = re.compile(r"\\(begin|end)\{([a-z]+)(\*?)\}(?:\{[lcr| ]*\})?")
_BLACKBOARD = re.compile(r"\\mathbb\s*\{?([A-Z])\}?")
_LETTERS = re.compile(r"[A-Za-z]+")

FUNCTIONS = frozenset("""sin cos tan sec csc cot arcsin arccos arctan sinh cosh tanh ln log lg exp sqrt surd gcd lcm max
    min frac binom overline""".split())
_SPELLINGS = {"dfrac": "frac", "tfrac": "frac", "cfrac": "frac", "nicefrac": "frac", "sfrac": "frac", "dbinom": "binom",
              "tbinom": "binom", "asin": "arcsin", "acos": "arccos", "atan": "arctan"}
_SYMBOLS = frozenset(_GREEK + [name.capitalize() for name in _GREEK]
                     + ["varphi", "varepsilon", "vartheta", "ell", "hbar"])
_RELATIONS = {"lt": "<", "gt": ">", "le": r"\le", "leq": r"\le", "leqslant": r"\le", "ge": r"\ge", "geq": r"\ge",
              "geqslant": r"\ge", "ne": r"\ne", "neq": r"\ne", "in": r"\in"}
_SIGNS = {"cdot": "*", "times": "*", "ast": "*", "div": "/", "pm": r"\pm", "mp": r"\mp", "cup": r"\cup", "cap": r"\cap",
          "setminus": r"\setminus", "backslash": r"\setminus", "circ": "deg", "degree": "deg", "prime": "'",
          "%": "%", "$": r"\$", "pounds": r"\pounds", "euro": r"\euro", "mid": "|", "vert": "|", "angle": r"\angle",
          "triangle": r"\triangle", "emptyset": r"\emptyset", "varnothing": r"\emptyset", "choose": r"\choose",
          "over": r"\over", "colon": ":",
          "ldots": r"\dots", "dots": r"\dots", "cdots": r"\dots", "approx": r"\approx", "equiv": r"\equiv",
          "sim": r"\sim", "to": r"\to", "rightarrow": r"\to", "sum": r"\sum", "prod": r"\prod", "int": r"\int",
          "lim": r"\lim",
          "pmod": r"\pmod", "bmod": r"\bmod", "perp": r"\perp", "parallel": r"\parallel", "not": r"\not", "_": "_",
          "cong": r"\cong", "odot": r"\odot", "oplus": r"\oplus", "star": r"\star"}
ACCENTS = {rf"\{name}" for name in ("bar", "hat", "vec", "dot", "ddot", "tilde")}
_OPEN = {"{": r"\{", "lbrace": r"\{", "langle": r"\langle", "lfloor": r"\lfloor", "lceil": r"\lceil", "lvert": "||"}
_CLOSE = {"}": r"\}", "rbrace": r"\}", "rangle": r"\rangle", "rfloor": r"\rfloor", "rceil": r"\rceil", "rvert": "||"}
PAIRS = {"(": ")", "[": "]", "{": "}", r"\{": r"\}", r"\langle": r"\rangle", r"\lfloor": r"\rfloor",
         r"\lceil": r"\rceil", "||": "||"}
_CHARACTERS = {"+": "operator", "-": "operator", "/": "operator", "=": "relation", "<": "relation", ">": "relation",
               ",": "separator", ";": "separator", "(": "open", "[": "open", "{": "open", ")": "close", "]": "close",
               "}": "close"}
_PLAIN_NAMES = {"pi": ("constant", "pi"), "infinity": ("constant", "inf"), "infty": ("constant", "inf"),
                "inf": ("constant", "inf")}
_SHORT_WORDS = frozenset("no on or if is in to of so cm mm km kg ft lb".split())


def tokenize(text: str) -> list[Token]:
    """Returns the tokens of an answer.

    Raises:
      Unreadable: for a sign outside the allow-list, unbalanced brackets, or an answer beyond the limits on length and
        depth.
    """
    if len(text) > MAX_CHARACTERS:
        raise Unreadable("too long")
    return _within_limits(_without_doubled_brackets(_Lexer(_clean(text), in_words=False).tokens()))


def _clean(text: str) -> str:
    text = _RAISED.sub(lambda run: f"{'^' if run[1] else '_'}{{{run[0].translate(_LEVEL)}}}", text)
    text = _TEX_GROUPS.sub(lambda number: number[1] + number[3].replace(number[2], ""), text.translate(_TABLE))
    text = text.strip(_AROUND)
    while text.endswith(_TRAILING):
        text = text[:-2].rstrip(_AROUND) if text[-2:-1] == "\\" else text.rstrip(_AROUND + ".,;:")
    return text


class _Lexer:
    """Reads one text from left to right."""

    def __init__(self, text: str, in_words: bool):
        self._text, self._in_words = text, in_words
        self._at, self._depth, self._spaced, self._found = 0, 0, False, []

    def tokens(self) -> list[Token]:
        while self._at < len(self._text):
            if blank := self._match(_BLANKS):
                self._spaced = self._spaced or bool(re.search(r"[\s~]|\\", blank[0]))
                continue
            self._read()
        return self._found

    def _match(self, pattern: re.Pattern) -> re.Match | None:
        found = pattern.match(self._text, self._at)
        if found:
            self._at = found.end()
        return found

    def _add(self, kind: str, value: str) -> None:
        self._depth += (kind == "open" and value != "{") - (kind == "close" and value != "}")
        self._found.append(Token(kind, value, self._spaced))
        self._spaced = False

    def _read(self) -> None:
        """Reads the token at the current place."""
        character = self._text[self._at]
        if character == "." and self._found and self._found[-1].kind == "word":
            self._at += 1  # of an abbreviation
        elif character in "0123456789.":
            self._read_number()
        elif character == "\\":
            self._read_command()
        elif letters := self._match(_LETTERS):
            self._read_letters(letters[0])
        else:
            self._read_character(character)

    def _read_number(self) -> None:
        if recurring := self._match(_RECURRING):
            period = recurring[2] or recurring[3] + (recurring[4] or "") + (recurring[5] or "")
            if len(recurring[0]) > MAX_DIGITS:
                raise Unreadable("too many digits")
            return self._add("recurring", f"{recurring[1]}|{period}")
        glued = self._found and self._found[-1].value == "," and not self._spaced
        number = (None if self._depth or glued else self._match(_GROUPED)) or self._match(_NUMBER)
        if number is None or len(number[0]) > MAX_DIGITS:
            raise Unreadable("not a number of a length to compute with")
        self._add("number", number[0].replace(",", ""))

    def _read_character(self, character: str) -> None:
        self._at += 1
        if character == "*" and self._text.startswith("*", self._at):
            self._at += 1
            return self._add("sign", "^")
        if character in _CHARACTERS:
            return self._add(_CHARACTERS[character], character)
        if character in "^_!%|:'&*":
            return self._add("operator" if character == "*" else "sign", character)
        raise Unreadable(f"the sign {character!r}")

    def _read_letters(self, run: str) -> None:
        name = _SPELLINGS.get(run, run)
        if self._in_words:
            self._add("word", run)
        elif run.lower() in _PLAIN_NAMES:
            self._add(*_PLAIN_NAMES[run.lower()])
        elif name in FUNCTIONS and name not in ("frac", "binom", "overline", "surd"):
            # In plain text the root reaches as far as the number after it; in TeX `\sqrt12` does not.
            self._add("function", "surd" if name == "sqrt" else name)
        elif _is_word(run, self._text[self._at : self._at + 1]):
            self._add("word", run)
        else:
            for letter in run:
                self._add("symbol", letter)

    def _read_command(self) -> None:
        if self._match(_ROW):
            return self._add("sign", r"\\")
        if words := self._match(_TEXT):
            return self._read_text(words)
        if environment := self._match(_ENVIRONMENT):
            return self._add("open" if environment[1] == "begin" else "close", environment[2])
        if letter := self._match(_BLACKBOARD):
            return self._add("symbol", f"set {letter[1]}")
        command = self._match(_COMMAND)
        if command is None:
            raise Unreadable("a backslash that starts no command")
        self._read_named(command[1])

    def _read_named(self, name: str) -> None:
        name = _SPELLINGS.get(name, name)
        if name in FUNCTIONS:
            self._add("function", name)
        elif name in ("pi", "infty"):
            self._add("constant", {"pi": "pi", "infty": "inf"}[name])
        elif name in _SYMBOLS:
            self._add("symbol", name)
        elif name in _RELATIONS:
            self._add("relation", _RELATIONS[name])
        elif name in _OPEN or name in _CLOSE:
            self._add(*(("open", _OPEN[name]) if name in _OPEN else ("close", _CLOSE[name])))
        elif name in ("land", "wedge", "lor", "vee"):
            self._add("word", "and" if name in ("land", "wedge") else "or")
        elif name in _SIGNS or f"\\{name}" in ACCENTS:
            value = _SIGNS.get(name, f"\\{name}")
            self._add("operator" if value in ("*", "/") else "sign", value)
        else:
            raise Unreadable(f"the command {name}")

    def _read_text(self, words: re.Match) -> None:
        r"""Reads `\text{...}`: signs as elsewhere, letters as words; a letter alone in `\mathrm` is a symbol."""
        content = words[1].strip()
        if words[0].startswith(r"\mathrm") and len(content) == 1:
            return self._add("symbol", content)
        if words[0].startswith(r"\operatorname") and _SPELLINGS.get(content, content) in FUNCTIONS:
            return self._add("function", _SPELLINGS.get(content, content))
        inside = _Lexer(words[1].strip().strip("*").rstrip(".,;:"), in_words=True)
        inside._depth = self._depth
        for token in inside.tokens():
            self._add(token.kind, token.value)


def _is_word(run: str, following: str) -> bool:
    """Whether a run of letters in a formula is a word, and not a product of symbols such as `xy` or `ABC`."""
    if len(run) == 1:
        return False
    if run in _SHORT_WORDS or run == "No" or run.lower() in ("and", "or", "odd", "all"):
        return True
    if len(run) == 2 or (run.isupper() and len(run) <= 4) or following == "^":
        return False
    return len(run) >= 5 or any(letter in "aeiou" for letter in run[1:].lower()) or run.lower() in ("why", "try", "dry")


def matching(tokens: list[Token]) -> dict[int, int]:
    """The place of the closing bracket for that of every opening one.

    Raises:
      Unreadable: if the brackets do not pair up. Half-open intervals pair a round with a square bracket.
    """
    stack, pairs = [], {}
    for place, token in enumerate(tokens):
        if token.kind == "open":
            stack.append(place)
        elif token.kind == "close":
            if not stack:
                raise Unreadable("a closing bracket too many")
            opening = tokens[stack[-1]].value
            if PAIRS.get(opening, opening) != token.value and {opening, token.value} not in ({"(", "]"}, {"[", ")"}):
                raise Unreadable("brackets that cross")
            pairs[stack.pop()] = place
    if stack:
        raise Unreadable("an opening bracket too many")
    return pairs


def _without_doubled_brackets(tokens: list[Token]) -> list[Token]:
    """Drops round and curly brackets that hold nothing but another such pair: `((x))` is `(x)`."""
    pairs = matching(tokens)
    doubled = {place for place in pairs if tokens[place].value in ("(", "{") and tokens[place + 1].value == tokens[
        place].value and pairs.get(place + 1) == pairs[place] - 1 and tokens[pairs[place]].value in (")", "}")}
    dropped = doubled | {pairs[place] for place in doubled}
    return [token for place, token in enumerate(tokens) if place not in dropped]


def _within_limits(tokens: list[Token]) -> list[Token]:
    """Returns the tokens if there are not too many, and if they are not nested too deeply to recurse over."""
    if len(tokens) > MAX_TOKENS:
        raise Unreadable("too long")
    depth = 0
    for token in tokens:
        depth += (token.kind == "open") - (token.kind == "close")
        if depth > MAX_DEPTH:
            raise Unreadable("nested too deeply")
    return tokens
