// The Prometheus operator, of which the tests read the CustomResourceDefinitions only.
module diloco.dev/tests/prometheus-operator

go 1.24

require github.com/prometheus-operator/prometheus-operator v0.86.1
