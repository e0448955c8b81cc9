//! Busy rules over real objects.
