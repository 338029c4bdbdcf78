"""ssl.principal.mapping.rules. Cases: KIP-371 and the documentation of Apache Kafka."""

from __future__ import annotations

import pytest

from kbroker.security.cipher_suites import openssl_name
from kbroker.security.principal_rules import PrincipalRules

SHOWN = (
    "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,"
    "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L,"
    "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L,"
    "DEFAULT"
)


@pytest.mark.parametrize(
    ("rules", "subject", "user"),
    [
        ("DEFAULT", "CN=x,O=y", "CN=x,O=y"),
        (SHOWN, "CN=serviceuser,OU=ServiceUsers,O=Unknown,L=Unknown,ST=Unknown,C=Unknown", "serviceuser"),
        (SHOWN, "CN=adminUser,OU=Admin,O=Unknown,L=Unknown,ST=Unknown,C=Unknown", "adminuser@admin"),
        (SHOWN, "cn=kafka1.example.com,dc=example,dc=com", "kafka1.example.com"),
        (SHOWN, "OU=none", "OU=none"),
        ("RULE:^CN=(.*?),.*$/$1/U", "CN=me,O=y", "ME"),
        ("RULE:^CN=(.*?)$/$1/", "OU=me", None),
        ("RULE:CN=me/you/", "CN=me,O=y", None),
        (r"RULE:^CN=(.*?)\/(.*?)$/$2\/$1/", "CN=a/b", "b/a"),
        ("RULE:^CN=(.*)$/$1-$2/", "CN=a", "a-$2"),
        ("RULE:^CN=(.*)$/$1/L , RULE:^(.*)$/other/", "X", "other"),
        ("", "CN=me", None),
    ],
)
def test_the_first_rule_that_applies_counts(rules: str, subject: str, user: str | None) -> None:
    assert PrincipalRules(rules).name_of(subject) == user


@pytest.mark.parametrize(
    "rules", ["default", "RULE:a", "RULE:a/b", "RULE:a/b/X", "DEFAULT,,", "RULE:(/b/", "DEFAULT x"]
)
def test_what_is_no_rule_is_refused(rules: str) -> None:
    with pytest.raises(ValueError, match=r"RULE:|no rule"):
        PrincipalRules(rules)


@pytest.mark.parametrize(
    ("java", "openssl"),
    [
        ("TLS_AES_256_GCM_SHA384", "TLS_AES_256_GCM_SHA384"),
        ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "ECDHE-RSA-AES128-GCM-SHA256"),
        ("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "ECDHE-ECDSA-AES256-GCM-SHA384"),
        ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-ECDSA-CHACHA20-POLY1305"),
        ("TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA384", "ECDHE-RSA-AES256-SHA384"),
        ("TLS_DHE_RSA_WITH_AES_128_CBC_SHA", "DHE-RSA-AES128-SHA"),
        ("TLS_RSA_WITH_AES_128_GCM_SHA256", "AES128-GCM-SHA256"),
        ("TLS_RSA_WITH_NULL_SHA256", None),
        ("AES128-SHA", None),
    ],
)
def test_suites_have_openssls_names(java: str, openssl: str | None) -> None:
    assert openssl_name(java) == openssl
