//! The accept loop: a bounded number of connections, and patience where the system has run out of something.

use std::io::{Error, ErrorKind};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{interval, sleep};

use super::Shared;

/// First and longest pause after a failed accept. Without file descriptors (EMFILE) the connection stays in the
/// backlog and accepting fails again at once, for as long as it takes: a loop without a pause burns a core that those
/// who could give descriptors back would need. A second is short beside the patience of a caller.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(1));

/// Accepts connections until `over`, then the ones that already wait: dropping a listener resets those.
pub(super) async fn until(
    over: impl Future<Output = ()>,
    listener: &TcpListener,
    shared: &Shared,
    start: impl Fn(OwnedSemaphorePermit, TcpStream),
) {
    let room = Arc::new(Semaphore::new(shared.options.max_connections));
    let mut over = pin!(over);
    let mut back_off = BACK_OFF.0;
    loop {
        let accepted = async {
            let permit = find_room(&room, shared).await?;
            let (stream, _) = listener.accept().await?;
            Ok((permit, stream))
        };
        let accepted = tokio::select! {
            biased;
            () = &mut over => break,
            accepted = accepted => accepted,
        };
        match accepted {
            Ok((permit, stream)) => {
                back_off = BACK_OFF.0;
                start(permit, stream);
            }
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                shared.telemetry.accept_failed();
                tracing::warn!(%error, pause = ?back_off, "cannot accept a connection, trying again");
                tokio::select! {
                    () = &mut over => break,
                    () = sleep(back_off) => {}
                }
                back_off = (back_off * 2).min(BACK_OFF.1);
            }
        }
    }
    while let Ok(permit) = Arc::clone(&room).try_acquire_owned() {
        match listener.accept().now_or_never() {
            Some(Ok((stream, _))) => start(permit, stream),
            Some(Err(error)) if is_of_one_connection(&error) => {}
            _ => return,
        }
    }
}

/// A place for one connection more; where all are taken, one that is idle is asked to go.
async fn find_room(room: &Arc<Semaphore>, shared: &Shared) -> Result<OwnedSemaphorePermit, Error> {
    if let Ok(permit) = Arc::clone(room).try_acquire_owned() {
        return Ok(permit);
    }
    let spare_after = shared.options.spare_after;
    let mut looking = interval(spare_after.max(BACK_OFF.0));
    let permit = Arc::clone(room).acquire_owned();
    let mut permit = pin!(permit);
    loop {
        tokio::select! {
            biased;
            // A closed semaphore ends no loop: nobody closes it.
            permit = &mut permit => return permit.map_err(Error::other),
            _ = looking.tick() => {
                if shared.crowd.make_room(spare_after) {
                    shared.telemetry.made_room();
                }
            }
        }
    }
}

/// Errors of the connection that was to be accepted, which say nothing of the next one (accept(2)).
fn is_of_one_connection(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset | ErrorKind::ConnectionRefused)
}
