//! What Belay does, as pure functions.
