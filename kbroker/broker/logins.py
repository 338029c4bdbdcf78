"""Logins of clients: for each listener that speaks SASL which mechanisms there are, and what a verdict wants done.

The rules are `security/login.py`'s. Here is what they need of a broker: settings, credentials, time, threads. A login
that succeeds makes the session's principal; one that is to be repeated (KIP-368) has an alarm, behind which its session
takes a new login and nothing else. One that fails is answered late, and its connection ends with the answer. Both are
counted, by listener, mechanism and reason.

A user's own function is asked beside the loop; its connection waits for it, and no other does.
"""

from __future__ import annotations

import logging
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from kbroker.broker.facts import BrokerConfigChanged, HangUp, Reply
from kbroker.broker.session import ANONYMOUS, Principal
from kbroker.config.given import ConfigError
from kbroker.config.limits import LOGINS_BESIDE
from kbroker.config.resolve import listener_prefix
from kbroker.config.sasl import GSSAPI, OAUTHBEARER, UNSECURED_VALIDATOR, MechanismConfig, SaslConfig, sasl_config
from kbroker.metadata.entities import EntitiesChanged, user_path
from kbroker.security.login import (
    MIN_REAUTH_INTERVAL_MS,
    Accepted,
    Beside,
    Challenge,
    Login,
    LoginError,
    Mechanism,
    Reason,
    State,
)
from kbroker.security.plain import Plain, passwords_of
from kbroker.security.scram import HASHES, NONCE_BYTES, Credential, ScramServer, printable, read_credential
from kbroker.usage import installed_by
from protocol.errors import ErrorCode
from protocol.messages.handshake import SaslAuthenticateResponse

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from kbroker.broker.delegation_tokens import Tokens
    from kbroker.broker.facts import Handler, Tell, Ticket
    from kbroker.broker.jobs import Job, Owner
    from kbroker.broker.session import Session
    from kbroker.metadata.configs import Configs
    from kbroker.metadata.entities import Entities
    from kbroker.ports import Clock, Random
    from kbroker.timing import Scheduler
    from protocol.message import Message

    Make = Callable[[], Mechanism]

log = logging.getLogger("kbroker.logins")


class Check:
    """A job: a user's function is asked about a login. accepted, error: what came of it."""

    def __init__(self, beside: Beside, session: Session, ticket: Ticket) -> None:
        self.accepted: Accepted | None = None
        self.error = LoginError(Reason.UNAVAILABLE, "the callback was not asked")
        self.session, self.ticket = session, ticket
        self._check = beside.check

    def run(self) -> None:
        """On any thread. What the function raises may tell a password: only its kind is said."""
        try:
            self.accepted = self._check()
        except LoginError as error:
            self.error = error
        except Exception as error:
            self.error = LoginError(Reason.UNAVAILABLE, f"the callback failed: {type(error).__name__}")


class Logins:
    """listeners: names of those that speak SASL. beside: runs a job on a thread. fetch: what is at an address; waits.

    succeeded: how many, by listener and mechanism. failed: by listener, mechanism and reason.
    """

    def __init__(
        self,
        listeners: Collection[str],
        configs: Configs,
        entities: Entities,
        clock: Clock,
        random: Random,
        scheduler: Scheduler,
        tell: Tell,
        beside: Callable[[Job, Owner], None],
        fetch: Callable[[str], bytes],
        tokens: Tokens | None = None,
    ) -> None:
        """Raises: ConfigError."""
        self._tokens = tokens
        self._fetch = fetch
        self._scheduler = scheduler
        self.succeeded: Counter[tuple[str, str]] = Counter()
        self.failed: Counter[tuple[str, str, str]] = Counter()
        self._configs = configs
        self._entities = entities
        self._clock = clock
        self._random = random
        self._tell = tell
        self._beside = beside
        self._checks = 0  # under way
        self._ends = scheduler.alarms_by_key(self._session_ends)
        self._late = scheduler.alarms_by_key(self._answer_late)
        self._answers: dict[Ticket, tuple[Message | None, str]] = {}  # those that come late
        self._sasl: dict[str, SaslConfig] = {}
        self._makes: dict[str, dict[str, Make]] = {}
        for listener in listeners:
            self._configure(listener)

    @property
    def handlers(self) -> Mapping[type, Handler]:
        """Changed settings and credentials."""
        return {BrokerConfigChanged: self._reconfigure, EntitiesChanged: self._look_at_credentials}

    # -- settings

    def _reconfigure(self, fact: BrokerConfigChanged, now_ms: int) -> None:
        """Those of connections to come."""
        for listener in self._sasl:
            try:
                self._configure(listener)
            except ConfigError as error:
                log.error("logins on listener %s go on as before: %s", listener, "; ".join(error.lines))

    def _configure(self, listener: str) -> None:
        sasl = sasl_config(self._configs.layers, listener)
        if self._sasl.get(listener) == sasl:
            return
        self._makes[listener] = {name: self._maker(each, sasl) for name, each in sasl.mechanisms.items()}
        self._sasl[listener] = sasl

    def _maker(self, mechanism: MechanismConfig, sasl: SaslConfig) -> Make:
        """What makes the broker's end of an exchange. Raises: ConfigError."""
        if mechanism.name in HASHES:
            find = partial(self._find, mechanism.name)
            return lambda: ScramServer(mechanism.name, find, printable(self._random.token(NONCE_BYTES)))
        callback = None
        if ":" in mechanism.callback:
            from kbroker.security.callbacks import load

            callback = load("sasl.server.callback.handler.class", mechanism.callback)
        if mechanism.name == GSSAPI:
            return _by_tickets(mechanism, sasl)
        if mechanism.name == OAUTHBEARER:
            from kbroker.security.oauthbearer import OAuthBearer

            check = self._token_check(mechanism, sasl, callback)
            return lambda: OAuthBearer(check)
        passwords = passwords_of(mechanism.module.options) if mechanism.module is not None else {}
        return lambda: Plain(passwords, callback)

    def _token_check(
        self, mechanism: MechanismConfig, sasl: SaslConfig, callback: Callable[[str], object] | None
    ) -> Callable[[str, int], Accepted | Beside]:
        """How tokens are checked. Raises: ConfigError."""
        from kbroker.security import oauthbearer as rules

        if callback is not None:
            return rules.by_callback(callback)
        if mechanism.callback == UNSECURED_VALIDATOR:
            options = mechanism.module.options if mechanism.module is not None else {}
            unsecured = rules.Unsecured.of("sasl.jaas.config", options)
            log.warning("listener %s takes tokens that are not signed: anybody may be anybody", sasl.listener)
            return lambda bearer, wall_ms: rules.validate_unsecured(bearer, unsecured, wall_ms)
        _require_jwt(sasl.listener)
        from kbroker.broker.jwks import KeySet

        key_set = KeySet(sasl.config, self._fetch, self._beside, self._scheduler)
        expected = rules.Expected.of(sasl.config)

        def check(bearer: str, wall_ms: int) -> Accepted:
            try:
                return rules.validate(bearer, key_set.keys, expected, wall_ms)
            finally:
                if key_set.keys.wanted:
                    key_set.missed(self._clock.now_ms())

        return check

    # -- credentials

    def _find(self, mechanism: str, user: str, is_token: bool) -> Credential | None:
        if is_token:
            return None if self._tokens is None else self._tokens.credential(mechanism, user)
        text = self._entities.of(user_path(user)).get(mechanism)
        try:
            return None if text is None else read_credential(mechanism, text)
        except ValueError:
            return None  # `_look_at_credentials` has said so

    def _look_at_credentials(self, fact: EntitiesChanged, now_ms: int) -> None:
        """A credential that makes no sense lets no one in: it is said once, when it comes."""
        for path in fact.paths:
            for mechanism, text in self._entities.of(path).items():
                if mechanism in HASHES:
                    try:
                        read_credential(mechanism, text)
                    except ValueError as error:
                        log.error("%s of %s in the metadata store lets no one in: %s", mechanism, path, error)

    # -- one login

    def open(self, session: Session) -> Login | None:
        """A connection has come; None where its listener knows no logins."""
        makes = self._makes.get(session.listener)
        if makes is None:
            return None
        return Login(makes, self._sasl[session.listener].config.sasl_server_max_receive_size)

    def may_begin(self, session: Session, now_ms: int) -> bool:
        """Whether SaslHandshake begins a login, or one again."""
        login = session.login
        if login is None or login.state is not State.COMPLETE:
            return login is not None
        began_ms = login.began_again_ms
        if began_ms is not None and now_ms < began_ms + MIN_REAUTH_INTERVAL_MS:
            return False
        login.began_again_ms = now_ms
        return True

    def evaluate(self, token: bytes, session: Session, ticket: Ticket, now_ms: int) -> SaslAuthenticateResponse | None:
        """A token has come. Returns: the answer, None if it comes as a Reply, or not at all."""
        login = session.login
        assert login is not None, session
        try:
            verdict = login.evaluate(token, self._clock.wall_ms())
            if isinstance(verdict, Challenge):
                return SaslAuthenticateResponse(error_code=ErrorCode.NONE, error_message=None, auth_bytes=verdict.token)
            if isinstance(verdict, Accepted):
                return self._accepted(verdict, session, now_ms)
            if self._checks >= LOGINS_BESIDE:
                raise LoginError(Reason.UNAVAILABLE, f"{LOGINS_BESIDE} logins wait for callbacks")
        except LoginError as error:
            self.refuse(error, session, ticket, now_ms)
            return None
        self._checks += 1
        self._beside(Check(verdict, session, ticket), self)
        return None

    def finished(self, job: Job, error: OSError | None, now_ms: int) -> None:
        """A callback has said something, or has failed."""
        assert isinstance(job, Check), job
        self._checks -= 1
        if job.session.login is None:
            return  # the connection is gone
        try:
            if job.accepted is None:
                raise job.error
            self._tell(Reply(job.ticket, self._accepted(job.accepted, job.session, now_ms)))
        except LoginError as failure:
            self.refuse(failure, job.session, job.ticket, now_ms)

    def _accepted(self, accepted: Accepted, session: Session, now_ms: int) -> SaslAuthenticateResponse:
        """Let a client in. Raises: LoginError."""
        login = session.login
        assert login is not None, session
        lifetime_ms = self._lifetime_ms(accepted, session)
        login.accept(accepted)
        session.principal = Principal("User", accepted.user)
        session.mechanism, session.by_token = login.mechanism, accepted.by_token
        if lifetime_ms:
            self._ends.set(session, now_ms + lifetime_ms)
        else:
            session.login = None
        self.succeeded[session.listener, login.mechanism] += 1
        return SaslAuthenticateResponse(
            error_code=ErrorCode.NONE,
            error_message=None,
            auth_bytes=accepted.token,
            session_lifetime_ms=lifetime_ms,
        )

    def _lifetime_ms(self, accepted: Accepted, session: Session) -> int:
        """How long the session may last, 0 for ever: a clock that jumps later changes nothing. Raises: LoginError."""
        assert session.login is not None, session
        reauth_ms = self._sasl[session.listener].mechanisms[session.login.mechanism].max_reauth_ms
        if accepted.expires_ms is None:
            return reauth_ms
        left_ms = accepted.expires_ms - self._clock.wall_ms()
        if left_ms <= 0:
            raise LoginError(Reason.TOKEN, f"what user {accepted.user!r:.100} has shown has expired")
        return min(left_ms, reauth_ms) if reauth_ms else left_ms

    def _session_ends(self, session: Session, now_ms: int) -> None:
        if session.login is not None:
            session.login.expire()

    def disconnected(self, session: Session) -> None:
        """The connection is gone."""
        if session.login is not None:
            self._ends.cancel(session)
            session.login = None

    # -- failures

    def refuse(
        self, error: LoginError, session: Session, ticket: Ticket, now_ms: int, response: Message | None = None
    ) -> None:
        """A login has failed: that is answered in a while, and then the connection ends.

        response: the answer; None for what SaslAuthenticate says. What came bare is not answered at all.
        """
        login = session.login
        assert login is not None, session
        self.count_failure(error, session)
        is_bare = login.takes_bare_token
        if response is None and not is_bare:
            again = "re-authentication" if login.user else "authentication"
            told = f"Authentication failed during {again} due to invalid credentials with SASL mechanism "
            response = SaslAuthenticateResponse(
                error_code=ErrorCode.SASL_AUTHENTICATION_FAILED,
                error_message=error.told or told + login.mechanism,
                auth_bytes=b"",
            )
        login.fail()
        session.principal = ANONYMOUS
        self._answers[ticket] = response, f"failed to log in by {login.mechanism or 'any mechanism'}: {error}"
        delay_ms = self._sasl[session.listener].config.connection_failed_authentication_delay_ms
        self._late.set(ticket, now_ms + delay_ms)  # type: ignore[arg-type]  # it is a request

    def out_of_turn(self, what: str, session: Session) -> str:
        """Something has come that a login does not admit. Returns: why the connection ends."""
        assert session.login is not None, session
        state = session.login.state
        error = LoginError(Reason.EXPIRED if state is State.EXPIRED else Reason.STATE, f"{what} in state {state.value}")
        self.count_failure(error, session)
        return str(error)

    def count_failure(self, error: LoginError, session: Session) -> None:
        """Count a failed login; why its connection ends is said by who closes it."""
        assert session.login is not None, session
        self.failed[session.listener, session.login.mechanism, error.reason.value] += 1

    def _answer_late(self, ticket: Ticket, now_ms: int) -> None:
        response, why = self._answers.pop(ticket)
        if response is not None:
            self._tell(Reply(ticket, response))
        self._tell(HangUp(ticket, why))


def _by_tickets(mechanism: MechanismConfig, sasl: SaslConfig) -> Make:
    """The broker's end of GSSAPI. Raises: ConfigError."""
    from kbroker.security.kerberos import Gssapi, Service
    from kbroker.security.kerberos_names import KerberosNames

    assert mechanism.module is not None, mechanism
    options = mechanism.module.options
    key = f"{listener_prefix(sasl.listener)}gssapi.sasl.jaas.config"
    try:
        service = Service(options["principal"], options["keyTab"])
    except ValueError as error:
        raise ConfigError([f"{key}: {error}"]) from None
    try:
        names = KerberosNames(sasl.config.sasl_kerberos_principal_to_local_rules, service.realm)
    except ValueError as error:
        raise ConfigError([f"sasl.kerberos.principal.to.local.rules: {error}"]) from None
    return lambda: Gssapi(service.context(), names.user_of)


def _require_jwt(listener: str) -> None:
    """Raises: ConfigError where what reads tokens is not installed."""
    try:
        import cryptography  # noqa: F401
        import jwt  # noqa: F401
    except ImportError:
        why = f"PyJWT and cryptography are not installed: {installed_by('security')}"
        raise ConfigError([f"sasl.enabled.mechanisms: OAUTHBEARER on listener {listener}: {why}"]) from None
