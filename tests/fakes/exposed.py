"""What a registry exposes, as a scrape would read it, and how it compares with the table of all series."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from diloco_api.metrics import Exposer, sample_names, series_of


def samples(registry: CollectorRegistry) -> Iterator[Sample]:
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        yield from family.samples


def values(registry: CollectorRegistry, name: str) -> dict[tuple[str, ...], float]:
    """By labels in the order of the table."""
    order = (*sample_names()[name].labels, *(("le",) if name.endswith("_bucket") else ()))
    return {
        tuple(sample.labels[label] for label in order): sample.value
        for sample in samples(registry)
        if sample.name == name
    }


def breaches(registry: CollectorRegistry, exposer: Exposer) -> list[str]:
    """Where exposed series and table differ, either way."""
    known, seen, found = sample_names(), set(), set()
    for sample in samples(registry):
        series = known.get(sample.name)
        if series is None or series.exposer is not exposer:
            found.add(f"{sample.name}: exposed, not in the table")
            continue
        seen.add(sample.name)
        wanted = set(series.labels) | ({"le"} if sample.name.endswith("_bucket") else set())
        if set(sample.labels) != wanted:
            found.add(f"{sample.name}: labels {sorted(sample.labels)}, in the table {sorted(wanted)}")
    found |= {f"{name}: in the table, not exposed" for row in series_of(exposer) for name in row.sample_names} - {
        f"{name}: in the table, not exposed" for name in seen
    }
    return sorted(found)
