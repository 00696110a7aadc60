"""`traceql shell`: statements cut and words completed, scripts from a pipe, and a person at a terminal."""

import codecs
import contextlib
import csv
import fcntl
import io
import os
import pty
import select
import stat
import struct
import subprocess
import sys
import termios
import time

import pytest
from click.testing import CliRunner
from conftest import FIXTURES

from traceql.analyses.query import tables
from traceql.cli import main
from traceql.cli.shell_prompt import is_complete
from traceql.cli.sql_text import candidates, statements, tokens

TRACE = FIXTURES / "glm5" / "tiny-pool-eager-TP-0.json.gz"
COLUMNS = {name: table.names for name, table in tables().items()}
COMMAND = [sys.executable, "-m", "traceql", "shell", str(TRACE)]


# --- the text


@pytest.mark.parametrize(
    ("text", "ended", "rest"),
    [
        ("", [], ""),
        ("SELECT 1", [], "SELECT 1"),
        ("SELECT 1; SELECT 2;", ["SELECT 1", "SELECT 2"], ""),
        ("SELECT ';' ; x", ["SELECT ';'"], " x"),
        ("SELECT 'it''s;' ;", ["SELECT 'it''s;'"], ""),
        ('SELECT ";" ;', ['SELECT ";"'], ""),
        ("SELECT 1 -- a; b\n;", ["SELECT 1 -- a; b"], ""),
        ("SELECT /* ; */ 1;", ["SELECT /* ; */ 1"], ""),
        ("SELECT 'open; ", [], "SELECT 'open; "),
        (";;; -- nothing\n;", [], ""),
    ],
)
def test_statements_end_at_semicolons(text, ended, rest):
    assert statements(text) == (ended, rest)
    assert "".join(token.text for token in tokens(text)) == text


@pytest.mark.parametrize(
    ("text", "is_whole"),
    [("", True), (".tables", True), ("SELECT 1;", True), ("SELECT 1", False), ("SELECT ';", False), ("/* a", False)],
)
def test_enter_ends_what_is_whole(text, is_whole):
    assert is_complete(text) == is_whole


def complete(text):
    """What may stand at the mark |."""
    before, _, after = text.partition("|")
    return [candidate.text for candidate in candidates(before, after, COLUMNS)]


@pytest.mark.parametrize("text", ["SELECT * FROM |", "SELECT * FROM kernels k JOIN |", "SELECT * FROM kernels, |",
                                  "SELECT * FROM (SELECT 1 FROM |"])  # fmt: skip
def test_only_tables_after_from(text):
    assert complete(text) == list(tables())


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("|", ["SELECT", "WITH", "FROM", "EXPLAIN"]),
        ("sel|", ["SELECT"]),
        ("SELECT * FROM ste|", ["steps", "step_categories", "step_pace"]),
        ("WITH mine AS (SELECT 1) SELECT * FROM mi|", ["mine"]),
        ("SELECT du| FROM kernels", ["dur_ns"]),
        ("SELECT k.sta| FROM steps s JOIN kernels k", ["start_ns"]),
        ("SELECT k.stag| FROM steps s JOIN kernels AS k", []),
        ("SELECT s.stag| FROM steps s JOIN kernels AS k", ["stage"]),
        ("SELECT dur_ns FROM kernels whe|", ["where", "when"]),
        ("SELECT dur_ns FROM kernels WHE|", ["WHERE", "WHEN"]),
        ("SELECT medi|", ["median_dur_ns"]),
        ("SELECT 'dur|", []),
        ("SELECT 1 -- dur|", []),
        ("SELECT x.|", []),
        ("SELECT (SELECT 1 FROM kernels) AS a, nosuchthi|", []),
    ],
)
def test_words_are_completed(text, first):
    assert complete(text)[: max(len(first), 1)] == first


def test_columns_are_those_of_the_tables_named():
    found = complete("SELECT | FROM threads")
    assert found[: len(COLUMNS["threads"])] == COLUMNS["threads"]
    assert "dur_ns" not in found


# --- from a pipe


def script(text, *arguments, cwd=None):
    return subprocess.run([*COMMAND, *arguments], input=text, capture_output=True, text=True, check=False, cwd=cwd)


def test_a_script(tmp_path):
    text = """
        SELECT kind, COUNT(*) AS n
        FROM kernels GROUP BY kind; .note
        """.replace(".note", "SELECT ';' AS sign FROM threads LIMIT 1;\n.schema threads\n.output out.csv")
    done = script(f"{text}\nSELECT rank FROM kernels LIMIT 2;\nSELECT COUNT(*) FROM memory", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "> SELECT kind, COUNT(*) AS n\n        FROM kernels GROUP BY kind\nkind" in done.stdout
    assert "kernel  558" in done.stdout
    assert "> SELECT ';' AS sign FROM threads LIMIT 1" in done.stdout
    assert "thread_id     Int32" in done.stdout
    assert (tmp_path / "out.csv").read_text() == "rank\n0\n0\n"
    assert "> SELECT COUNT(*) FROM memory" in done.stdout
    assert "note: memory is empty" in done.stdout


def test_a_script_of_data_has_answers_only():
    done = script(".format csv\nSELECT rank, kind FROM kernels LIMIT 1;", "--format", "json")
    assert list(csv.reader(io.StringIO(done.stdout))) == [["rank", "kind"], ["0", "kernel"]]


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("SELECT nme FROM kernels; SELECT 1 FROM threads;", "unknown column 'nme'", "Did you mean name?"),
        ("SELECT * FROM kernel", "unknown table 'kernel'", "Did you mean kernels?"),
        (".schem kernels", "unknown command '.schem'", "Did you mean .schema?"),
        (".schema kernel", "unknown table 'kernel'", "Did you mean kernels?"),
        (".schema", ".schema takes 1 argument", "Write .schema NAME."),
        (".format xml", "unknown form 'xml'", "Known: table"),
        (".output 'x", "cannot be read", "quotation mark"),
        (f".output {TRACE} --force", "is the trace itself", "another file"),
        ("SELECT 'x", "the last statement does not end", "quotation mark"),
    ],
)
def test_a_fault_ends_a_script(text, message, hint):
    done = CliRunner().invoke(main, COMMAND[3:], input=text)
    assert done.exit_code == 2
    assert message in done.stderr.splitlines()[0]
    assert done.stderr.startswith("error: ")
    assert hint in done.stderr
    assert "SELECT 1 FROM threads" not in done.stdout


def test_statements_and_trace_cannot_both_be_standard_input():
    done = CliRunner().invoke(main, ["shell", "-"], input="")
    assert done.exit_code == 2
    assert "name the trace's file" in done.stderr


# --- at a terminal


FRESH = "\x1b[?2004h"  # bracketed paste is switched on: by a prompt, once the terminal is its own


class Terminal:
    """The shell on a terminal of 40 lines of 100 cells."""

    def __init__(self, state):
        environment = os.environ | {"XDG_STATE_HOME": str(state), "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"}
        self._file, screen = pty.openpty()
        fcntl.ioctl(screen, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
        self._process = subprocess.Popen(
            COMMAND, stdin=screen, stdout=screen, stderr=screen, env=environment, start_new_session=True
        )
        os.close(screen)
        self.shown = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")()  # a read may end within a character

    def types(self, keys):
        self.shown = ""
        os.write(self._file, keys.encode())

    def sees(self, text):
        """Waits until the screen has been sent the text, at most a minute."""
        end = time.monotonic() + 60
        while text not in self.shown:
            assert time.monotonic() < end, f"{text!r} is not in {self.shown!r}"
            if select.select([self._file], [], [], 0.1)[0]:
                self.shown += self._decoder.decode(os.read(self._file, 65536))

    def asks(self):
        """Waits for a prompt that was not there before the last keys.

        What was typed is drawn once more when it is taken, with its prompt. Keys sent at that sight may come before the
        terminal is the prompt's again, where Ctrl-D is lost. A prompt that has it begins with `FRESH`.
        """
        self.sees(FRESH)
        self.shown = self.shown.partition(FRESH)[2]
        self.sees("traceql>")

    def leaves(self, keys):
        """The exit status after these keys."""
        self.types(keys)
        with contextlib.suppress(OSError):  # Linux reports the end of a terminal as an error
            while select.select([self._file], [], [], 60)[0]:
                os.read(self._file, 65536)
        os.close(self._file)
        return self._process.wait(timeout=60)


def test_a_person_at_a_terminal(tmp_path):
    first = Terminal(tmp_path)
    first.asks()
    first.types("SELECT COUNT(*) AS n_threads FROM thr\t")
    first.sees("eads")
    first.types(";\r")
    first.sees("---------\r\n")
    first.sees("       22")
    first.asks()
    first.types("SELECT nme FROM kernels;\r")
    first.sees("hint: Did you mean name?")
    first.asks()
    first.types("SELECT 1 AS never\r")
    first.sees("...>")
    first.types("\x03")
    first.asks()
    assert first.leaves("\x04") == 0  # Ctrl-D

    file = tmp_path / "traceql" / "shell_history"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "+SELECT COUNT(*) AS n_threads FROM threads;" in file.read_text()

    second = Terminal(tmp_path)
    second.asks()
    second.types("\x1b[A\x1b[A")  # twice up
    second.sees("n_threads")
    second.types("\r")
    second.sees("       22")
    second.asks()
    assert second.leaves(".quit\r") == 0
