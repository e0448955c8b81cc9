//! The Kubernetes client, set up once.

use std::time::Duration;

use kube::config::{InferConfigError, KubeconfigError};
use kube::{Client, Config};
use thiserror::Error;

/// Connecting takes milliseconds inside a cluster; an API server that does not answer in this time is away, and
/// the caller's own retry is the better wait.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Longest silence on an open watch: kube asks the server to end each after 290 s and bookmarks come every
/// minute, so a connection that is silent for longer is dead.
const READ_TIMEOUT: Duration = Duration::from_secs(295);

/// Why there is no client.
#[derive(Debug, Error)]
pub enum ClientError {
    /// Neither a kubeconfig nor the environment of a pod.
    #[error("no way to reach a cluster: set KUBECONFIG, or run in a pod with a service account ({0})")]
    NoCluster(#[from] InferConfigError),
    /// The kubeconfig is unusable.
    #[error("the kubeconfig cannot be used: {0}")]
    Kubeconfig(#[from] KubeconfigError),
    /// The client could not be built.
    #[error("cannot build the Kubernetes client: {0}")]
    Build(#[from] kube::Error),
}

/// A client for the cluster this runs in, or that KUBECONFIG names.
///
/// kube's own retries are off: by default it repeats a 429 or 503 up to fifteen times with growing pauses, so one
/// write could hang for minutes. Every caller here has its own, shorter idea of when to try again.
pub async fn connect() -> Result<Client, ClientError> {
    let mut config = Config::infer().await?;
    config.default_retry = false;
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.read_timeout = Some(READ_TIMEOUT);
    Ok(Client::try_from(config)?)
}
