//! What a program of a pod is told: arguments and environment, translated from the pod's world into this machine's.
//!
//! A container has its own file system and its own address; a local process has neither. So mount paths become the
//! folders that hold the volumes, and `0.0.0.0` becomes the pod's own loopback address. Nothing else is changed.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, EnvFromSource, EnvVar, EnvVarSource, Pod, Secret};
use kube::ResourceExt as _;

use super::container::Playing;

/// The address on which a program in a container listens to everybody.
const EVERYBODY: &str = "0.0.0.0";

/// Where each mount path of a container really is.
#[derive(Debug, Default)]
pub(super) struct Mounts(Vec<(String, PathBuf)>);

impl Mounts {
    pub(super) fn add(&mut self, mount_path: &str, folder: PathBuf) {
        let mount_path = mount_path.trim_end_matches('/');
        self.0.push((mount_path.to_owned(), folder));
        // The most specific path first.
        self.0.sort_by_key(|(path, _)| std::cmp::Reverse(path.len()));
    }

    /// The folder that is mounted at exactly this path.
    pub(super) fn get(&self, mount_path: &str) -> Option<&PathBuf> {
        self.0.iter().find(|(path, _)| path == mount_path).map(|(_, folder)| folder)
    }

    /// Replaces every mount path in a text, in one pass: what was put in is not looked at again.
    pub(super) fn translate(&self, text: &str) -> String {
        let mut translated = String::with_capacity(text.len());
        let mut rest = text;
        let mut previous = None;
        while let Some(next) = rest.chars().next() {
            // A path starts where no path goes on, and ends at a slash or where no name goes on.
            let starts = next == '/' && !previous.is_some_and(is_of_a_name);
            let hit = self.0.iter().filter(|_| starts).find_map(|(path, folder)| {
                let after = rest.strip_prefix(path.as_str())?;
                (!after.starts_with(is_of_a_name)).then_some((after, path, folder))
            });
            if let Some((after, path, folder)) = hit {
                translated.push_str(&folder.to_string_lossy());
                previous = path.chars().last();
                rest = after;
            } else {
                translated.push(next);
                previous = Some(next);
                rest = &rest[next.len_utf8()..];
            }
        }
        translated
    }
}

fn is_of_a_name(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '.' | '_' | '-')
}

/// Replaces `$(NAME)` by the value of that variable, and `$$` by `$`, as a kubelet does in arguments and values; what
/// names no known variable stays as it is.
pub(super) fn expand(text: &str, variables: &BTreeMap<String, String>) -> String {
    let mut expanded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        expanded.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        if let Some(escaped) = after.strip_prefix('$') {
            expanded.push('$');
            rest = escaped;
        } else if let Some((value, left)) = reference(after, variables) {
            expanded.push_str(value);
            rest = left;
        } else {
            expanded.push('$');
            rest = after;
        }
    }
    expanded.push_str(rest);
    expanded
}

fn reference<'a, 'v>(text: &'a str, variables: &'v BTreeMap<String, String>) -> Option<(&'v str, &'a str)> {
    let (name, left) = text.strip_prefix('(')?.split_once(')')?;
    Some((variables.get(name)?, left))
}

/// Replaces `0.0.0.0:port` by what `listen` answers for the port.
pub(super) fn replace_listeners(
    text: &str,
    listen: impl Fn(u16) -> anyhow::Result<SocketAddr>,
) -> anyhow::Result<String> {
    let mut replaced = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(EVERYBODY) {
        replaced.push_str(&rest[..at]);
        let after = &rest[at + EVERYBODY.len()..];
        let digits = after
            .strip_prefix(':')
            .map(|port| &port[..port.find(|c: char| !c.is_ascii_digit()).unwrap_or(port.len())])
            .unwrap_or_default();
        if let Ok(port) = digits.parse::<u16>() {
            replaced.push_str(&listen(port)?.to_string());
            rest = &after[1 + digits.len()..];
        } else {
            replaced.push_str(EVERYBODY);
            rest = after;
        }
    }
    replaced.push_str(rest);
    Ok(replaced)
}

/// The container's environment: `defaults` first, then what the pod says, later ones seeing earlier ones.
pub(super) async fn variables(
    playing: &Playing,
    defaults: &[(String, String)],
) -> anyhow::Result<BTreeMap<String, String>> {
    let mut variables: BTreeMap<String, String> = defaults.iter().cloned().collect();
    variables.insert("HOSTNAME".into(), playing.pod.name_any());
    for source in playing.spec.env_from.iter().flatten() {
        let prefix = source.prefix.clone().unwrap_or_default();
        let values = values_of(playing, source).await.context("envFrom")?;
        variables.extend(values.into_iter().map(|(key, value)| (format!("{prefix}{key}"), value)));
    }
    for variable in playing.spec.env.iter().flatten() {
        let value = value_of(playing, variable, &variables)
            .await
            .with_context(|| format!("environment variable {}", variable.name))?;
        variables.extend(value.map(|value| (variable.name.clone(), value)));
    }
    Ok(variables)
}

/// All values of a ConfigMap or a Secret.
async fn values_of(playing: &Playing, source: &EnvFromSource) -> anyhow::Result<BTreeMap<String, String>> {
    if let Some(from) = &source.config_map_ref {
        let map = playing.api::<ConfigMap>().get_opt(&from.name).await?;
        let data = map.map(|map| map.data.unwrap_or_default());
        present(data, from.optional, &format!("ConfigMap {}", from.name)).map(Option::unwrap_or_default)
    } else if let Some(from) = &source.secret_ref {
        let secret = playing.api::<Secret>().get_opt(&from.name).await?;
        let data = secret.map(|secret| secret.data.unwrap_or_default());
        let data = present(data, from.optional, &format!("Secret {}", from.name))?.unwrap_or_default();
        let text = |bytes: ByteString| String::from_utf8_lossy(&bytes.0).into_owned();
        Ok(data.into_iter().map(|(key, value)| (key, text(value))).collect())
    } else {
        bail!("it names neither a ConfigMap nor a Secret")
    }
}

async fn value_of(
    playing: &Playing,
    variable: &EnvVar,
    known: &BTreeMap<String, String>,
) -> anyhow::Result<Option<String>> {
    match &variable.value_from {
        None => Ok(Some(expand(variable.value.as_deref().unwrap_or_default(), known))),
        Some(source) => value_from(playing, source).await,
    }
}

async fn value_from(playing: &Playing, source: &EnvVarSource) -> anyhow::Result<Option<String>> {
    if let Some(field) = &source.field_ref {
        return field_of(&playing.pod, &field.field_path, playing).map(Some);
    }
    if let Some(key) = &source.config_map_key_ref {
        let value = playing.api::<ConfigMap>().get_opt(&key.name).await?.and_then(|map| map.data?.remove(&key.key));
        return present(value, key.optional, &format!("key {} of ConfigMap {}", key.key, key.name));
    }
    if let Some(key) = &source.secret_key_ref {
        let value = playing.api::<Secret>().get_opt(&key.name).await?.and_then(|secret| secret.data?.remove(&key.key));
        let value = value.map(|bytes| String::from_utf8_lossy(&bytes.0).into_owned());
        return present(value, key.optional, &format!("key {} of Secret {}", key.key, key.name));
    }
    bail!("this kind of valueFrom is not played by the node agent: {source:?}")
}

fn present<T>(value: Option<T>, optional: Option<bool>, what: &str) -> anyhow::Result<Option<T>> {
    if value.is_none() && optional != Some(true) {
        bail!("{what} does not exist");
    }
    Ok(value)
}

/// A field of the downward API. Pods see their `10.A.x.y` address, which others reach them by.
pub(super) fn field_of(pod: &Pod, path: &str, playing: &Playing) -> anyhow::Result<String> {
    let spec = pod.spec.as_ref();
    let value = match path {
        "metadata.name" => pod.metadata.name.clone(),
        "metadata.namespace" => pod.metadata.namespace.clone(),
        "metadata.uid" => pod.metadata.uid.clone(),
        "spec.nodeName" => spec.and_then(|spec| spec.node_name.clone()),
        "spec.serviceAccountName" => spec.and_then(|spec| spec.service_account_name.clone()),
        "status.podIP" | "status.podIPs" => Some(playing.address.to_string()),
        _ => {
            let entry = |prefix: &str| path.strip_prefix(prefix)?.strip_suffix("']").map(str::to_owned);
            if let Some(key) = entry("metadata.labels['") {
                Some(pod.labels().get(&key).cloned().unwrap_or_default())
            } else if let Some(key) = entry("metadata.annotations['") {
                Some(pod.annotations().get(&key).cloned().unwrap_or_default())
            } else {
                bail!("the field {path} is not played by the node agent")
            }
        }
    };
    value.with_context(|| format!("the pod has no {path}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_paths_are_replaced_once_and_only_as_whole_paths() {
        let mut mounts = Mounts::default();
        mounts.add("/tmp", "/tmp/belay-1/pods/u/scratch".into());
        mounts.add("/etc/belay", "/tmp/belay-1/pods/u/config".into());
        mounts.add("/etc/belay/certs/", "/tmp/belay-1/pods/u/certs".into());
        for (text, expected) in [
            ("/etc/belay/config.yaml", "/tmp/belay-1/pods/u/config/config.yaml"),
            ("--config=/etc/belay/config.yaml", "--config=/tmp/belay-1/pods/u/config/config.yaml"),
            ("/etc/belay/certs/tls.crt", "/tmp/belay-1/pods/u/certs/tls.crt"),
            ("/tmp", "/tmp/belay-1/pods/u/scratch"),
            ("/tmp:/etc/belay", "/tmp/belay-1/pods/u/scratch:/tmp/belay-1/pods/u/config"),
            ("/etc/belayed", "/etc/belayed"),
            ("/var/tmp", "/var/tmp"),
            ("no path", "no path"),
        ] {
            assert_eq!(mounts.translate(text), expected, "{text}");
        }
    }

    #[test]
    fn variables_are_expanded_as_a_kubelet_does() {
        let variables = BTreeMap::from([("A".to_owned(), "1".to_owned())]);
        for (text, expected) in [
            ("$(A)/$(A)", "1/1"),
            ("$(B)", "$(B)"),
            ("$$(A)", "$(A)"),
            ("$A", "$A"),
            ("$(A", "$(A"),
            ("cost: 5$", "cost: 5$"),
        ] {
            assert_eq!(expand(text, &variables), expected, "{text}");
        }
    }

    #[test]
    fn listeners_on_every_address_become_the_pods_own() {
        let listen = |port: u16| Ok(SocketAddr::from(([127, 1, 2, 3], port + 1)));
        for (text, expected) in [
            ("0.0.0.0:8443", "127.1.2.3:8444"),
            ("--listen=0.0.0.0:80,0.0.0.0:81", "--listen=127.1.2.3:81,127.1.2.3:82"),
            ("0.0.0.0", "0.0.0.0"),
            ("0.0.0.0:http", "0.0.0.0:http"),
            ("127.0.0.1:80", "127.0.0.1:80"),
        ] {
            assert_eq!(replace_listeners(text, listen).unwrap(), expected, "{text}");
        }
    }
}
