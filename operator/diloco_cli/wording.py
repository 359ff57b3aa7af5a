"""Numbers as people read them: counts, durations, shares, bytes. Pure."""

_COUNT_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_BYTE_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def count(value: float | None) -> str:
    """`999`, `12.3k`, `1.23M`; `-` for None."""
    if value is None:
        return "-"
    return _scaled(value, _COUNT_UNITS) or f"{value:.0f}"


def size(num_bytes: float) -> str:
    """`512 B`, `1.23 MB`."""
    for unit, name in _BYTE_UNITS:
        if num_bytes >= unit * 0.9995:
            return f"{_three_digits(num_bytes / unit)} {name}"
    return f"{num_bytes:.0f} B"


def duration(seconds: float | None) -> str:
    """`45 s`, `1 min 20 s`, `2 h 03 min`; `-` for None."""
    if seconds is None:
        return "-"
    whole = round(max(0.0, seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def share(value: float | None) -> str:
    """A share of 1 in percent, `98.2 %`; `-` for None."""
    return "-" if value is None else f"{value * 100:.1f} %"


def loss(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _scaled(value: float, units: tuple[tuple[float, str], ...]) -> str:
    for unit, name in units:
        if value >= unit * 0.9995:
            return f"{_three_digits(value / unit)}{name}"
    return ""


def _three_digits(value: float) -> str:
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:.0f}"
