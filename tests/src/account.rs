//! Accounts of programs that run beside Belay and are no part of it: each is a ServiceAccount of its own, so that the
//! audit log tells its writes from those of others.

use std::path::PathBuf;

use anyhow::Context as _;
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::Api;
use kube::api::PostParams;
use serde_json::json;

use crate::control_plane::write_kubeconfig;
use crate::world::Cluster;

/// Makes the account `name` in a namespace of the same name, where it is missing, and a kubeconfig of it. It may write
/// anything, as the person at the keyboard may: what it is allowed is not under test.
///
/// # Errors
/// When the API server refuses the objects, or the file cannot be written.
pub(crate) async fn kubeconfig(cluster: &Cluster, name: &str) -> anyhow::Result<PathBuf> {
    let objects = [
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } }),
        json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": name, "namespace": name } }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": { "name": name },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin" },
            "subjects": [{ "kind": "ServiceAccount", "name": name, "namespace": name }],
        }),
    ];
    let objects = objects.map(|object| object.to_string()).join("\n---\n");
    cluster.kubectl(["apply", "-f", "-"]).stdin(&objects).ok().await?;
    let path = cluster.control_plane().folder().join(format!("{name}.kubeconfig"));
    let user = json!({ "token": token(cluster, name).await? });
    let control_plane = cluster.control_plane();
    write_kubeconfig(&path, control_plane.server(), &control_plane.authority(), name, &user)?;
    Ok(path)
}

/// The user that such an account is to the API server.
pub(crate) fn user(name: &str) -> String {
    format!("system:serviceaccount:{name}:{name}")
}

async fn token(cluster: &Cluster, name: &str) -> anyhow::Result<String> {
    let accounts: Api<ServiceAccount> = Api::namespaced(cluster.client(), name);
    let hour: TokenRequest = serde_json::from_value(json!({ "spec": { "audiences": [], "expirationSeconds": 3600 } }))?;
    let answer = accounts.create_token_request(name, &PostParams::default(), &hour).await;
    let answer = answer.with_context(|| format!("a token for {name}"))?;
    answer.status.and_then(|status| status.token).context("a token request without an answer")
}
