r"""A place in a list of tokens, and the parts of names that are read there: indices, primes, accents."""

from rlzero.rewards.mathematics.tokens import Token, Unreadable, matching

_END = Token("end", "")


class Cursor:
    """Goes through a balanced list of tokens once."""

    def __init__(self, tokens: list[Token]):
        self.tokens, self.pairs, self.at = tokens, matching(tokens), 0

    def peek(self, ahead: int = 0) -> Token:
        """The token here, or some places on."""
        place = self.at + ahead
        return self.tokens[place] if place < len(self.tokens) else _END

    def take(self, value: str) -> bool:
        """Goes on if the token here is this one."""
        found = self.peek().value == value
        self.at += found
        return found

    def expect(self, value: str) -> None:
        if not self.take(value):
            raise Unreadable(f"expected {value}")

    def after_group(self) -> Token:
        """The token behind the brackets that open here."""
        place = self.pairs[self.at] + 1
        return self.tokens[place] if place < len(self.tokens) else _END

    def accented_name(self) -> str:
        r"""A letter under an accent, such as `\vec{v}`, which is another name than the letter."""
        accent = self.peek().value
        self.at += 1
        braces = self.take("{")
        letter = self.peek()
        self.at += 1
        if letter.kind != "symbol":
            raise Unreadable("an accent on more than a letter")
        if braces:
            self.expect("}")
        name = f"{accent} {letter.value}"
        return f"{name}_{self.index()}" if self.take("_") else name

    def take_raised_prime(self) -> bool:
        if self.peek().value == "^" and self.peek(1).value == "'":
            self.at += 2
            return True
        values = [self.peek(ahead).value for ahead in range(4)]
        found = values == ["^", "{", "'", "}"]
        self.at += 4 * found
        return found

    def index(self) -> str:
        """The text of an index: one token, or a group taken as it stands."""
        start = self.at
        self.at = self.pairs[start] + 1 if start in self.pairs else start + 1
        inside = self.tokens[start : self.at]
        if not inside:
            raise Unreadable("an empty index")
        return " ".join(token.value for token in inside if token.value not in ("{", "}"))
