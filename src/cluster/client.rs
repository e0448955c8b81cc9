//! The Kubernetes client, set up once.

use std::time::Duration;

use kube::{Client, Config};
use thiserror::Error;

/// Connecting takes milliseconds inside a cluster; an API server that does not answer in this time is away, and
/// the caller's own retry is the better wait.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Longest silence on an open watch: kube asks the server to end each after 290 s and bookmarks come every
/// minute, so a connection that is silent for longer is dead.
const READ_TIMEOUT: Duration = Duration::from_secs(295);

/// Why there is no client.
#[derive(Debug, Error)]
pub enum ClientError {
    /// Neither a kubeconfig nor the environment of a pod.
    #[error(
        "no way to reach a cluster: not in a pod, and the kubeconfig {kubeconfig} cannot be used: {reason}; set KUBECONFIG"
    )]
    NoCluster {
        /// The file that was tried.
        kubeconfig: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The client could not be built.
    #[error("cannot build the Kubernetes client")]
    Build(#[from] kube::Error),
}

/// The innermost cause of an error: what really happened, without the layers that passed it on.
pub fn root_cause(error: &dyn std::error::Error) -> String {
    std::iter::successors(Some(error), |error| error.source()).last().unwrap_or(error).to_string()
}

/// One line about an error of the client: the API server's words, or why it is not reached.
pub fn describe(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => format!("cannot reach the API server: {}", root_cause(other)),
    }
}

/// What says how to reach the cluster that KUBECONFIG names, or that this runs in.
pub async fn infer() -> Result<Config, ClientError> {
    Config::infer().await.map_err(|error| ClientError::NoCluster {
        kubeconfig: std::env::var("KUBECONFIG").unwrap_or_else(|_| "~/.kube/config".to_owned()),
        reason: root_cause(&error),
    })
}

/// A client for servers, of the cluster that this runs in, or that KUBECONFIG names.
pub async fn connect() -> Result<Client, ClientError> {
    let mut config = infer().await?;
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.read_timeout = Some(READ_TIMEOUT);
    of(config)
}

/// A client.
///
/// kube's own retries are off: by default it repeats a 429 or 503 up to fifteen times with growing pauses, so one
/// write could hang for minutes. Every caller here has its own, shorter idea of when to try again.
pub fn of(mut config: Config) -> Result<Client, ClientError> {
    config.default_retry = false;
    Ok(Client::try_from(config)?)
}
