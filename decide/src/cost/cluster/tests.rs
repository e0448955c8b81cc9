//! A cluster that is watched: over random histories, and case by case.

mod api;
mod binds;
mod histories;
mod rivals;
mod told;
mod writes;
