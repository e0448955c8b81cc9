//! The controller's step and what it reads, as tables: a case's name is the rule it stands for.

mod doomed;
mod ending;
mod restart;
mod situation;
