//! The program's only clock. Decisions take the time as a parameter; what reads it does so here.

use std::time::Instant;

use belay_decide::hold::Moment;
use jiff::Timestamp;

/// Reads wall time and uptime.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    started: Instant,
}

impl Clock {
    /// A clock whose uptime begins now.
    pub fn start() -> Self {
        Self { started: Instant::now() }
    }

    /// Both clocks at once.
    pub fn now(&self) -> Moment {
        Moment { wall: Self::wall(), uptime: self.started.elapsed() }
    }

    /// Wall time.
    #[expect(clippy::disallowed_methods, reason = "the one place where wall time is read")]
    pub fn wall() -> Timestamp {
        Timestamp::now()
    }
}
