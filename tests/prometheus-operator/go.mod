// The Prometheus Operator, whose definitions tests install. `tests/src/programs` takes them from the module; nothing of it is
// compiled, and nothing here is linked into Belay.
module belay.dev/tests/prometheus-operator

go 1.26.0

require github.com/prometheus-operator/prometheus-operator v0.85.0
