"""Figures in words."""


def counted(number: int, noun: str) -> str:
    """
    >>> counted(1, "prompt"), counted(2, "prompt")
    ('1 prompt', '2 prompts')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"
