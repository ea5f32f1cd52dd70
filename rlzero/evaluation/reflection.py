"""Self-reflection by keywords: what the responses of base models are searched for (arXiv 2503.20783, section 2.3).

The list is the one of the authors' `analysis/keyword_count.py`, looked for as there: anywhere in the lower-case text,
so that rates can be compared. Words that mostly stand in plain text too, such as "wait", are not in it.
"""

KEYWORDS = (
    "recheck", "rethink", "reassess", "reevaluate", "re-evaluate", "reevaluation", "re-examine", "reexamine",
    "reconsider", "reanalyze", "double-check", "check again", "think again", "verify again", "go over the steps")


def keywords_in(text: str) -> tuple[str, ...]:
    """The keywords that a text holds, in the order of the list."""
    text = text.lower()
    return tuple(keyword for keyword in KEYWORDS if keyword in text)
