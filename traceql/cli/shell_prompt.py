"""The prompt of `traceql shell` on a terminal: completion, history, several lines."""

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import platformdirs
from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition, completion_is_selected
from prompt_toolkit.formatted_text import AnyFormattedText
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.lexers import PygmentsLexer
from prompt_toolkit.output import ColorDepth
from pygments.lexers.sql import SqlLexer  # pyright: ignore[reportMissingTypeStubs]

from traceql.cli.options import FORMATS
from traceql.cli.shell_session import COMMANDS
from traceql.cli.sql_text import candidates, is_blank, statements, word_before

PROMPT = "traceql> "
_HISTORY = "shell_history"


class SqlCompleter(Completer):
    """Completes what `candidates` knows, and the shell's own commands."""

    def __init__(self, columns: Mapping[str, Sequence[str]]) -> None:
        self._columns = columns

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:  # noqa: ARG002
        """What may stand at the cursor, nearest first."""
        before = document.text_before_cursor
        if before.lstrip().startswith("."):
            yield from self._commands(before.lstrip())
            return
        *_, rest = statements(before)
        start = -len(word_before(rest))
        for each in candidates(rest, document.text_after_cursor, self._columns):
            yield Completion(each.text, start, display_meta=each.what)

    def _commands(self, before: str) -> Iterable[Completion]:
        name, space, argument = before.partition(" ")
        forms = [form for form in FORMATS if form != "parquet"]
        known = {".schema": self._columns, ".format": forms}.get(name, ()) if space else COMMANDS
        typed = argument.lstrip() if space else name
        for each in known:
            if each.startswith(typed):
                yield Completion(each, -len(typed))


def is_complete(text: str) -> bool:
    """Whether Enter ends the input: a command, a statement up to its `;`, or nothing at all."""
    if text.lstrip().startswith("."):
        return True
    _, rest = statements(text)
    return is_blank(rest) and not ("/*" in rest and "*/" not in rest)


def history_file() -> Path | None:
    """Where lines are remembered, in the user's folder for state; None for a user who has none."""
    try:
        folder = Path(platformdirs.user_state_dir("traceql"))
    except RuntimeError:
        return None
    return folder / _HISTORY if folder.is_absolute() else None


def history() -> History:
    """The lines of earlier sessions, which only the user may read; of this one alone where they cannot be kept."""
    file = history_file()
    with suppress(OSError):
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.close(os.open(file, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600))
            return FileHistory(file)
    return InMemoryHistory()


def prompt_session(columns: Mapping[str, Sequence[str]]) -> PromptSession[str]:
    """Asks for one statement or command at a time."""
    plain = "NO_COLOR" in os.environ
    return PromptSession(
        PROMPT,
        multiline=True,
        completer=SqlCompleter(columns),
        complete_while_typing=False,
        history=history(),
        enable_history_search=True,
        key_bindings=_keys(),
        lexer=None if plain else PygmentsLexer(SqlLexer),
        color_depth=ColorDepth.DEPTH_1_BIT if plain else None,
        prompt_continuation=_continuation,
    )


def _continuation(width: int, line_number: int, wrap_count: int) -> AnyFormattedText:  # noqa: ARG001 - as it is called
    return "...> ".rjust(width)


def _keys() -> KeyBindings:
    """Enter ends a whole statement, and begins a new line in one that is not."""
    keys = KeyBindings()

    @Condition
    def ends() -> bool:
        return is_complete(get_app().current_buffer.text)

    @keys.add("enter", filter=completion_is_selected)
    def accept_completion(event: KeyPressEvent) -> None:  # pyright: ignore[reportUnusedFunction] - keys knows it
        event.current_buffer.complete_state = None

    @keys.add("enter", filter=ends & ~completion_is_selected)
    def accept_line(event: KeyPressEvent) -> None:  # pyright: ignore[reportUnusedFunction]
        event.current_buffer.validate_and_handle()

    return keys
