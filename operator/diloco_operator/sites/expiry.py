"""Until when credentials are good, where they say so: a client certificate always does, a token when it is a JWT."""

import base64
import binascii
import json

from cryptography import x509

from diloco_operator.sites.kubeconfig import ClusterCredentials


def expires_at(credentials: ClusterCredentials) -> float | None:
    """Unix seconds; None: they do not say, or are replaced by themselves."""
    if credentials.client_cert_pem:
        leaf = x509.load_pem_x509_certificates(credentials.client_cert_pem.encode())[0]
        return leaf.not_valid_after_utc.timestamp()
    return _claim(credentials.token)


def _claim(token: str) -> float | None:
    """What a token says of itself; nobody believes more of it than this."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (binascii.Error, ValueError):
        return None
    expires = claims.get("exp") if isinstance(claims, dict) else None
    return float(expires) if isinstance(expires, int | float) and not isinstance(expires, bool) else None
