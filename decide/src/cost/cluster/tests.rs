//! A cluster that is watched: over random histories, and case by case.

mod api;
mod binds;
mod budgets;
mod histories;
mod jobs;
mod rivals;
mod steps;
mod switch_on;
mod told;
mod writes;
