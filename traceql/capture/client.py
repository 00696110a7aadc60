"""What is asked of an SGLang server over HTTP, and what it answers; the same in 0.5.9 to 0.5.23."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, cast

from traceql.capture.errors import CaptureError, optional, printable

HEALTH_TIMEOUT_S = 25.0
"""A healthy server answers within a second or two; it gives up itself after 20 s."""
MAX_SHOWN = 300


@dataclass(frozen=True)
class Chunk:
    """One streamed answer: how far a request of the batch is."""

    index: int
    n_tokens: int
    """Generated so far."""
    n_steps: int
    """Steps taken so far; fewer than tokens with speculation."""
    is_finished: bool


class Client:
    """A connection to one server. Every failure is a `CaptureError` that says what was asked."""

    def __init__(self, url: str, *, api_key: str | None = None, timeout_s: float = 600.0) -> None:
        """Connects lazily.

        Args:
            url: of the server.
            api_key: sent as a bearer token.
            timeout_s: how long to wait for the next byte of an answer.
        """
        self.url = url.rstrip("/")
        httpx: Any = optional("httpx")
        self._errors = (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError)
        self._http = httpx.Client(
            base_url=self.url,
            timeout=httpx.Timeout(timeout_s, connect=10.0),
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            trust_env=False,  # a proxy meant for the internet does not reach a server of ours
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def is_ready(self) -> bool:
        """Whether the server is up and its scheduler answers."""
        try:
            return self._http.get("/health", timeout=HEALTH_TIMEOUT_S).status_code == 200
        except self._errors:
            return False

    def server_info(self) -> dict[str, Any]:
        """Its arguments, and what it says about its memory."""
        for path in ("/server_info", "/get_server_info"):
            answer = self._send("GET", path, missing_ok=True)
            if answer is not None:
                return _object(answer, path)
        raise CaptureError(f"{self.url} has no /server_info", "capture sglang needs an SGLang server.")

    def model_info(self) -> dict[str, Any]:
        """What model it serves."""
        answer = self._send("GET", "/model_info", missing_ok=True)
        return {} if answer is None else _object(answer, "/model_info")

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Mapping[str, Any], **options: Any
    ) -> list[dict[str, Any]]:
        """The answers to a batch of prompts, given and taken as token ids."""
        body = {"input_ids": prompts, "sampling_params": sampling, **options}
        answer = _decoded(self._send("POST", "/generate", body), "/generate")
        found = cast("list[dict[str, Any]]", answer if isinstance(answer, list) else [])
        if len(found) != len(prompts):
            raise CaptureError(
                f"/generate gave {len(found)} answers to {len(prompts)} prompts", "See the server's log."
            )
        return found

    def stream(self, prompts: Sequence[Sequence[int]], sampling: Mapping[str, Any]) -> Iterator[Chunk]:
        """How far each request of a batch is, as the server tells it."""
        body = {"input_ids": prompts, "sampling_params": sampling, "stream": True}
        try:
            with self._http.stream("POST", "/generate", json=body) as answer:
                if answer.status_code != 200:
                    answer.read()
                    raise _refused("/generate", answer)
                for line in answer.iter_lines():
                    text = line.removeprefix("data:").strip()
                    if line.startswith("data:") and text != "[DONE]":
                        yield _chunk(text)
        except self._errors as error:
            raise self._failed("/generate", error) from error

    def start_profile(self, request: Mapping[str, Any]) -> None:
        """Starts the profiler; returns when it runs."""
        self._send("POST", "/start_profile", request)

    def stop_profile(self) -> None:
        """Stops the profiler if it runs."""
        with suppress(CaptureError):  # it says so when none runs
            self._send("POST", "/stop_profile", {})

    def _send(self, method: str, path: str, body: Any = None, *, missing_ok: bool = False) -> Any:
        try:
            answer = self._http.request(method, path, json=body)
        except self._errors as error:
            raise self._failed(path, error) from error
        if missing_ok and answer.status_code == 404:
            return None
        if answer.status_code != 200:
            raise _refused(path, answer)
        return answer.content

    def _failed(self, path: str, error: Exception) -> CaptureError:
        what = printable(str(error)) or type(error).__name__
        return CaptureError(f"{self.url}{path} does not answer: {what}", "Is the server running? See its log.")


def _refused(path: str, answer: Any) -> CaptureError:
    hint = "Give its key with --api-key." if answer.status_code in (401, 403) else "See the server's log."
    return CaptureError(f"{path} answered {answer.status_code}: {_shown(answer.text)}", hint)


def _chunk(text: str) -> Chunk:
    answer = _object(text, "/generate")
    meta = answer.get("meta_info")
    if not isinstance(meta, dict):
        raise CaptureError(f"/generate answered: {_shown(answer)}", "See the server's log.")
    facts = cast("dict[str, Any]", meta)
    try:
        n_tokens = int(facts.get("completion_tokens") or 0)
        return Chunk(
            index=int(answer.get("index") or 0),
            n_tokens=n_tokens,
            n_steps=int(facts.get("spec_verify_ct") or n_tokens),
            is_finished=facts.get("finish_reason") is not None,
        )
    except (TypeError, ValueError) as error:
        raise CaptureError(f"/generate answered: {_shown(answer)}", "See the server's log.") from error


def _object(data: bytes | str, path: str) -> dict[str, Any]:
    found = _decoded(data, path)
    if not isinstance(found, dict):
        raise CaptureError(f"{path} answered no object: {_shown(found)}", "capture sglang needs an SGLang server.")
    return cast("dict[str, Any]", found)


def _decoded(data: bytes | str, path: str) -> object:
    try:
        return json.loads(data)
    except ValueError as error:
        raise CaptureError(
            f"{path} answered no JSON: {_shown(data)}", "capture sglang needs an SGLang server."
        ) from error


def _shown(value: object) -> str:
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return printable(text)[:MAX_SHOWN]
