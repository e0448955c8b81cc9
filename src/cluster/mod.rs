//! Input from and output to the cluster: watches and the lean cache, the one applier of writes, leader election.

pub mod apply;
pub mod client;
pub mod clock;
pub mod costs;
pub mod index;
pub mod lease;
pub mod mounted;
pub mod owners;
pub mod pool;
pub mod probe;
pub mod project;
pub mod project_autoscaler;
pub mod project_busy;
pub mod project_cost;
pub mod project_lifecycle;
pub mod subset;
pub mod trust;
pub mod watch;
