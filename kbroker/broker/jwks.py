"""Keys that sign tokens, kept fresh: fetched beside the loop at the start, every while, and when one is missed.

Tokens are refused as long as there are none; those that were fetched before are good until others come.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kbroker.security.oauthbearer import Keys

if TYPE_CHECKING:
    from collections.abc import Callable

    from kbroker.broker.jobs import Job, Owner
    from kbroker.config.broker import BrokerConfig
    from kbroker.timing import Scheduler

    Fetch = Callable[[str], bytes]

log = logging.getLogger("kbroker.logins")


class FetchKeys:
    """A job. text: what was there; why: why nothing was."""

    def __init__(self, url: str, fetch: Fetch) -> None:
        self.text = b""
        self.why = "not fetched"
        self._url, self._fetch = url, fetch

    def run(self) -> None:
        """On any thread."""
        try:
            self.text, self.why = self._fetch(self._url), ""
        except Exception as error:  # a library of the web may raise anything
            self.why = f"{type(error).__name__}: {error}"


class KeySet:
    """The keys of one address. keys: as they are known."""

    def __init__(
        self,
        config: BrokerConfig,
        fetch: Fetch,
        beside: Callable[[Job, Owner], None],
        scheduler: Scheduler,
    ) -> None:
        self.keys = Keys()
        assert config.sasl_oauthbearer_jwks_endpoint_url is not None
        self.url = config.sasl_oauthbearer_jwks_endpoint_url
        self._config = config
        self._fetch = fetch
        self._beside = beside
        self._alarm = scheduler.alarm(lambda now_ms: self._begin())
        self._failures = 0  # in a row
        self._is_fetching = False
        self._fetched_ms = 0
        self._begin()

    def missed(self, now_ms: int) -> None:
        """A token names a key that is not known: perhaps it is new."""
        longest_ms = self._config.sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms
        if self.keys.known and not self._failures and now_ms >= self._fetched_ms + longest_ms:
            self._begin()

    def _begin(self) -> None:
        if not self._is_fetching:
            self._is_fetching = True
            self._beside(FetchKeys(self.url, self._fetch), self)

    def finished(self, job: Job, error: OSError | None, now_ms: int) -> None:
        """Something has come, or not."""
        assert isinstance(job, FetchKeys), job
        self._is_fetching = False
        self._fetched_ms = now_ms
        config = self._config
        try:
            if job.why:
                raise ValueError(job.why)
            self.keys.replace(job.text)
        except (ValueError, RecursionError) as fault:
            if not self._failures:
                state = "the keys of before are good" if self.keys.known else "tokens are refused"
                log.error(
                    "sasl.oauthbearer.jwks.endpoint.url=%s: no keys: %s; %s until it answers", self.url, fault, state
                )
            pause_ms = config.sasl_oauthbearer_jwks_endpoint_retry_backoff_ms << min(self._failures, 20)
            self._failures += 1
            self._alarm.set(now_ms + min(pause_ms, config.sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms))
        else:
            if self._failures:
                log.info("sasl.oauthbearer.jwks.endpoint.url=%s: answers again", self.url)
            self._failures = 0
            self._alarm.set(now_ms + config.sasl_oauthbearer_jwks_endpoint_refresh_ms)
