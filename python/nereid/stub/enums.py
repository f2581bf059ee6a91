"""Named numbers, as Triton's classes have them."""


class Enum:
    """A named number. It converts to int, has name and value, and is equal to itself alone."""

    __slots__ = ("name", "value")

    def __init__(self, name: str, value: int) -> None:
        self.name = name
        self.value = value

    def __int__(self) -> int:
        return self.value

    __index__ = __int__

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.value == self.value  # type: ignore[attr-defined]

    def __hash__(self) -> int:
        return self.value

    def __repr__(self) -> str:
        return "<%s.%s: %d>" % (type(self).__name__, self.name, self.value)

    def __str__(self) -> str:
        return "%s.%s" % (type(self).__name__, self.name)
