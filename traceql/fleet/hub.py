"""Traces in datasets and spaces of the Hugging Face Hub, named by `hf://` URLs as polars has them (extra `hf`)."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from traceql import __version__
from traceql.errors import InputError, OutputError, TraceqlError
from traceql.fleet.storage import Found, first_line

if TYPE_CHECKING:
    from collections.abc import Generator

    from huggingface_hub import RepoFile

_KINDS = ("dataset", "space")
"""What polars reads; models and buckets it does not know."""
_FORM = "Write hf://datasets/OWNER/REPO[@REVISION]/PATH or hf://spaces/OWNER/REPO[@REVISION]/PATH."
_EXTRA = "Install it with `pip install 'traceql[hf]'`."
_LOGIN = "set HF_TOKEN or run `hf auth login`"


class HubFolder:
    """Files below a URL, through huggingface_hub: endpoint and token are found as its makers document. Read only."""

    def __init__(self, location: str) -> None:
        try:
            from huggingface_hub import HfApi, parse_hf_uri  # noqa: PLC0415 - only with the extra
        except ImportError as error:
            raise InputError(f"{location} takes huggingface_hub, 1.14 or later", _EXTRA) from error
        self.location = location
        try:
            parsed = parse_hf_uri(location)
        except ValueError as error:
            raise InputError(f"{location} names no repository of the Hugging Face Hub", _FORM) from error
        if parsed.type not in _KINDS:
            raise InputError(f"{location} is in no dataset or space of the Hugging Face Hub", _FORM)
        self._api = HfApi(library_name="traceql", library_version=__version__)
        self._repo, self._kind, self._revision = parsed.id, parsed.type, parsed.revision
        self._folder = f"{parsed.path_in_repo}/" if parsed.path_in_repo else ""

    def files(self) -> Iterator[Found]:
        """As `Remote`."""
        from huggingface_hub import RepoFile  # noqa: PLC0415

        with _told(self.location):
            for item in self._api.list_repo_tree(
                self._repo, self._folder.rstrip("/") or None, recursive=True,
                revision=self._revision, repo_type=self._kind,
            ):  # fmt: skip
                if isinstance(item, RepoFile):
                    yield self._found(item)

    def head(self, path: str) -> Found:
        """As `Remote`."""
        from huggingface_hub import RepoFile  # noqa: PLC0415

        with _told(self.location):
            items = self._api.get_paths_info(
                self._repo, self._folder + path, revision=self._revision, repo_type=self._kind
            )
        for item in items:
            if isinstance(item, RepoFile):
                return self._found(item)
        raise InputError(f"{self.location}: there is no file {path}", "Check the path, and the revision.")

    def download(self, path: str, target: Path) -> None:
        """As `Remote`; past the user's cache of the Hub, which would keep a copy."""
        with _told(self.location), tempfile.TemporaryDirectory(dir=target.parent) as folder:
            file = self._api.hf_hub_download(  # pyright: ignore[reportUnknownMemberType] - tqdm has no types
                self._repo, self._folder + path, revision=self._revision, repo_type=self._kind, local_dir=folder
            )
            Path(file).replace(target)

    def _found(self, item: "RepoFile") -> Found:
        """A file in the state that git knows: the id of its blob, or of the pointer to it, changes with the content."""
        return Found(path=item.path.removeprefix(self._folder), n_bytes=item.size, state=item.blob_id)


@contextmanager
def _told(location: str) -> "Generator[None]":
    """What goes wrong with the Hub, as an error that says where and what to do."""
    try:
        yield
    except Exception as error:  # those of the library, of the HTTP client that it uses, and of hf_xet
        raise _meaning(location, error) from error


def _meaning(location: str, error: Exception) -> TraceqlError:
    """The first kind that an error is of; one of none may pass when it is tried again."""
    from huggingface_hub import errors  # noqa: PLC0415

    if isinstance(error, errors.LocalEntryNotFoundError) and isinstance(error.__cause__, Exception):
        error = error.__cause__  # the library looked into its cache since the Hub did not answer
    kinds: tuple[tuple[type[Exception], str, str], ...] = (
        (errors.GatedRepoError, "the repository is gated", f"Ask for access on its page, then {_LOGIN}."),
        (
            errors.RepositoryNotFoundError,
            "there is no such repository, or it is private",
            f"Check OWNER/REPO; for a private one {_LOGIN}.",
        ),
        (errors.RevisionNotFoundError, "there is no such revision", "Check what follows the @; / is %2F in a branch."),
        (errors.EntryNotFoundError, "there is no such file or folder", "Check the path, and the revision."),
        (errors.OfflineModeIsEnabled, "HF_HUB_OFFLINE keeps it from being read", "Unset it, or give a local copy."),
    )
    for kind, what, hint in kinds:
        if isinstance(error, kind):
            return InputError(f"{location}: {what}", hint)
    return OutputError(f"{location}: {first_line(error)}", f"Check network and HF_ENDPOINT; perhaps {_LOGIN}.")
