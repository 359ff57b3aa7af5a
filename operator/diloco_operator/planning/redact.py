"""Log lines and messages of others, before they are shown in a status or an event: without what opens anything.

Tokens, keys, certificates and passwords are replaced by what they are. What is not recognised stays: processes of ours
never log a secret, this is for the code of users. What a kubelet passes on (4 KiB) takes a moment, whatever it is.
"""

import re

_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"-----BEGIN [A-Z0-9 ]+-----.*?(-----END [A-Z0-9 ]+-----|\Z)", re.DOTALL), "<PEM>"),
    (re.compile(r"\b(?:v1\.)?eyJ[\w-]{8,}\.[\w-]+(?:\.[\w-]*)?"), "<token>"),
    (re.compile(r"\b(?:hf_|ghp_|gho_|glpat-|xox[abp]-|sk-)[\w-]{12,}"), "<token>"),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"), "<key>"),
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}"), r"\1 <token>"),
    (re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"), "<user>"),
    (
        re.compile(r"(?i)(password|passwd|secret|token|api[_-]?key|access[_-]?key)(\"?\s*[=:]\s*\"?)[^\s\",;]{4,}"),
        r"\1\2<secret>",
    ),
)


def redacted(text: str) -> str:
    """`text` with every recognised secret replaced."""
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text
