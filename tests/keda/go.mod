// KEDA, whose definition of ScaledObjects tests install. `tests/src/programs` takes it from the module; nothing of it is
// compiled, and nothing here is linked into Belay.
module belay.dev/tests/keda

go 1.26.0

require github.com/kedacore/keda/v2 v2.21.0
