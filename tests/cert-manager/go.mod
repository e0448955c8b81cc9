// cert-manager, whose definitions tests install. `tests/src/programs` takes them from the module; nothing of it is
// compiled, and nothing here is linked into Belay.
module belay.dev/tests/cert-manager

go 1.26.0

require github.com/cert-manager/cert-manager v1.21.2
