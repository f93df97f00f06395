"""Arguments of commands that need more care than the parser of options gives them."""

from __future__ import annotations

import sys
from typing import Any

import typer
from typer.core import TyperCommand


class TextCommand(TyperCommand):
    """A command whose arguments may begin with a hyphen, as `-5` or `- a list` do.

    What begins with a hyphen and a letter, or with two hyphens, stays an option: a mistyped one is
    refused, and never taken for a text.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, _texts_last(self, ctx, args))


def _texts_last(command: TyperCommand, ctx: Any, args: list[str]) -> list[str]:
    """The same arguments, those that are no options behind a `--`, in their order."""
    if "--" in args or not any(_is_text(arg) for arg in args):
        return args
    takes_value = {
        name
        for parameter in command.get_params(ctx)
        if not getattr(parameter, "is_flag", False)
        for name in parameter.opts
        if name.startswith("-")
    }
    options, texts = list[str](), list[str]()
    is_value = False
    for arg in args:
        is_option = arg.startswith("-") and arg != "-" and not _is_text(arg)
        (options if is_value or is_option else texts).append(arg)
        is_value = not is_value and arg in takes_value
    return [*options, "--", *texts]


def _is_text(arg: str) -> bool:
    return len(arg) > 1 and arg[0] == "-" and arg[1] != "-" and not arg[1].isalpha()


def question_of(message: str) -> str:
    """The text of a question: as given, or from standard input for `-`.

    Raises `typer.BadParameter` where there is none.
    """
    text = sys.stdin.read() if message == "-" else message
    if text.strip():
        return text
    where = "standard input is empty" if message == "-" else "it is empty"
    raise typer.BadParameter(f"{where}; say what to ask", param_hint="MESSAGE")
