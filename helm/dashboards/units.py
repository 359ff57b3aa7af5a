"""Values as Grafana words them, by a panel's unit."""

_DURATIONS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"), (1e-3, "ms"), (1e-6, "µs"))
_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_AFTER = {"Bps": "B/s", "ops": "/s", "reqps": "req/s", "percent": "%", "watt": "W", "decmbytes": "MB"}


def worded(value: float, unit: str) -> str:
    """A value with its unit."""
    if value != value:
        return "–"
    if unit == "percentunit":
        return f"{100 * value:.3g} %"
    if unit == "bool_yes_no":
        return "yes" if value else "no"
    if unit == "s":
        return _duration(value)
    number, prefix = _scaled(value)
    return f"{number} {prefix}{_AFTER.get(unit, '')}".rstrip()


def _duration(value: float) -> str:
    for seconds, name in _DURATIONS:
        if abs(value) >= seconds:
            return f"{value / seconds:.3g} {name}"
    return "0 s" if value == 0 else f"{value:.2g} s"


def _scaled(value: float) -> tuple[str, str]:
    for factor, prefix in _PREFIXES:
        if abs(value) >= factor:
            return f"{value / factor:.3g}", prefix
    return f"{value:.3g}", ""
