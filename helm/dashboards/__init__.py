"""Grafana dashboards of DiLoCo jobs, written by code; `make manifests` puts them into the chart.

One module a dashboard says which questions it answers with which queries; `kit` has the words they are written in, and
`write` puts them as JSON into the chart. `pictures` draws their panels from a real Prometheus. Nothing here runs in a
cluster. Rules: data source, job, namespace and site are variables; a panel without data is an ordinary panel; a gauge
that two scrapes may see (two operators in turn, a Service and a pod) is taken by `max`.
"""
