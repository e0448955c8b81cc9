//! The volumes of a pod, as folders of this machine.

use std::collections::BTreeMap;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use futures::StreamExt as _;
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{
    ConfigMap, KeyToPath, Secret, ServiceAccount, ServiceAccountTokenProjection, Volume, VolumeProjection,
};
use kube::Api;
use kube::api::PostParams;
use kube::runtime::watcher;
use tokio_util::task::AbortOnDropHandle;

use super::container::Playing;
use super::environment::{Mounts, field_of};
use crate::watching::{Change, changes};

/// A token lasts as long as any test cluster, so that it need not be rotated; it ends with its pod anyway.
const TOKEN_SECONDS: i64 = 24 * 3600;

type Files = BTreeMap<String, Vec<u8>>;

/// The volumes of one container, kept current while this lives.
#[derive(Debug, Default)]
pub(super) struct Volumes {
    pub(super) mounts: Mounts,
    refreshers: Vec<AbortOnDropHandle<()>>,
}

/// Makes every volume that the container mounts.
///
/// # Errors
/// When an object that a volume is made from does not exist (yet), or a volume is of a kind that is not played.
pub(super) async fn prepare(playing: &Playing, folder: &Path) -> anyhow::Result<Volumes> {
    let mut prepared = Volumes::default();
    let volumes = playing.pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref());
    for mount in playing.spec.volume_mounts.iter().flatten() {
        let volume = volumes
            .unwrap_or_default()
            .iter()
            .find(|volume| volume.name == mount.name)
            .with_context(|| format!("the pod has no volume {}", mount.name))?;
        let place = folder.join(&volume.name);
        let files = files_of(playing, volume).await.with_context(|| format!("volume {}", volume.name))?;
        replace_files(&place, &files)?;
        prepared.refreshers.extend(keep_current(playing, volume, &place));
        let mounted = mount.sub_path.as_ref().map_or_else(|| place.clone(), |path| place.join(path));
        prepared.mounts.add(&mount.mount_path, mounted);
    }
    Ok(prepared)
}

async fn files_of(playing: &Playing, volume: &Volume) -> anyhow::Result<Files> {
    if let Some(source) = &volume.config_map {
        config_map(playing, &source.name, source.items.as_deref(), source.optional).await
    } else if let Some(source) = &volume.secret {
        let name = source.secret_name.clone().unwrap_or_default();
        secret(playing, &name, source.items.as_deref(), source.optional).await
    } else if let Some(source) = &volume.projected {
        let mut files = Files::new();
        for projection in source.sources.iter().flatten() {
            files.extend(projected(playing, projection).await?);
        }
        Ok(files)
    } else if volume.empty_dir.is_some() {
        Ok(Files::new())
    } else {
        bail!("this kind of volume is not played by the node agent")
    }
}

async fn projected(playing: &Playing, projection: &VolumeProjection) -> anyhow::Result<Files> {
    if let Some(source) = &projection.service_account_token {
        let token = token(playing, source).await.context("ServiceAccount token")?;
        Ok(Files::from([(source.path.clone(), token.into_bytes())]))
    } else if let Some(source) = &projection.config_map {
        config_map(playing, &source.name, source.items.as_deref(), source.optional).await
    } else if let Some(source) = &projection.secret {
        secret(playing, &source.name, source.items.as_deref(), source.optional).await
    } else if let Some(source) = &projection.downward_api {
        let mut files = Files::new();
        for item in source.items.iter().flatten() {
            let field = item.field_ref.as_ref().context("only fieldRef is played by the node agent")?;
            let value = field_of(&playing.pod, &field.field_path, playing)?;
            files.insert(item.path.clone(), value.into_bytes());
        }
        Ok(files)
    } else {
        bail!("this kind of projection is not played by the node agent: {projection:?}")
    }
}

/// A token of the pod's own ServiceAccount, bound to the pod: what the program may do is what the chart's RBAC says.
async fn token(playing: &Playing, source: &ServiceAccountTokenProjection) -> anyhow::Result<String> {
    let pod = &playing.pod;
    let account = pod.spec.as_ref().and_then(|spec| spec.service_account_name.clone());
    let account = account.unwrap_or_else(|| "default".to_owned());
    let accounts: Api<ServiceAccount> = playing.api();
    let request = TokenRequest {
        spec: Some(TokenRequestSpec {
            audiences: source.audience.clone().map(|audience| vec![audience]),
            expiration_seconds: Some(TOKEN_SECONDS),
            bound_object_ref: Some(BoundObjectReference {
                api_version: Some("v1".into()),
                kind: Some("Pod".into()),
                name: pod.metadata.name.clone(),
                uid: pod.metadata.uid.clone(),
            }),
            ..TokenRequestSpec::default()
        }),
        ..TokenRequest::default()
    };
    let answer = accounts
        .create_token_request(&account, &PostParams::default(), &request)
        .await
        .with_context(|| format!("of {account}"))?;
    let token = answer.status.and_then(|status| status.token);
    token.context("the API server issued no token")
}

async fn config_map(
    playing: &Playing,
    name: &str,
    items: Option<&[KeyToPath]>,
    optional: Option<bool>,
) -> anyhow::Result<Files> {
    let found = playing.api::<ConfigMap>().get_opt(name).await?;
    if found.is_none() && optional != Some(true) {
        bail!("ConfigMap {name} does not exist");
    }
    Ok(select(found.map(config_map_files).unwrap_or_default(), items))
}

fn config_map_files(map: ConfigMap) -> Files {
    let texts = map.data.into_iter().flatten().map(|(key, text)| (key, text.into_bytes()));
    let binary = map.binary_data.into_iter().flatten().map(|(key, bytes)| (key, bytes.0));
    texts.chain(binary).collect()
}

async fn secret(
    playing: &Playing,
    name: &str,
    items: Option<&[KeyToPath]>,
    optional: Option<bool>,
) -> anyhow::Result<Files> {
    let found = playing.api::<Secret>().get_opt(name).await?;
    if found.is_none() && optional != Some(true) {
        bail!("Secret {name} does not exist");
    }
    Ok(select(found.map(secret_files).unwrap_or_default(), items))
}

fn secret_files(secret: Secret) -> Files {
    secret.data.into_iter().flatten().map(|(key, bytes)| (key, bytes.0)).collect()
}

fn select(mut files: Files, items: Option<&[KeyToPath]>) -> Files {
    match items {
        None => files,
        Some(items) => items.iter().filter_map(|item| Some((item.path.clone(), files.remove(&item.key)?))).collect(),
    }
}

/// A volume of a ConfigMap or a Secret follows it, as a kubelet's does, only sooner.
fn keep_current(playing: &Playing, volume: &Volume, place: &Path) -> Option<AbortOnDropHandle<()>> {
    if let Some(source) = volume.config_map.clone() {
        let files = move |map| select(config_map_files(map), source.items.as_deref());
        return Some(follow::<ConfigMap>(playing, &source.name, place, files));
    }
    let source = volume.secret.clone()?;
    let files = move |secret| select(secret_files(secret), source.items.as_deref());
    Some(follow::<Secret>(playing, &source.secret_name.unwrap_or_default(), place, files))
}

fn follow<K>(
    playing: &Playing,
    name: &str,
    place: &Path,
    files: impl Fn(K) -> Files + Send + 'static,
) -> AbortOnDropHandle<()>
where
    K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope>
        + Clone
        + serde::de::DeserializeOwned
        + std::fmt::Debug
        + Send
        + 'static,
    K::DynamicType: Default,
{
    let (objects, place): (Api<K>, PathBuf) = (playing.api(), place.to_owned());
    let only = watcher::Config::default().fields(&format!("metadata.name={name}"));
    AbortOnDropHandle::new(tokio::spawn(async move {
        let mut objects = std::pin::pin!(changes(objects, only));
        while let Some(change) = objects.next().await {
            if let Change::Applied(object) = change
                && let Err(error) = replace_files(&place, &files(object))
            {
                tracing::error!("cannot refresh a volume: {error:#}");
            }
        }
    }))
}

/// The link to the folder of the version in force, and its name while it is made.
const DATA: &str = "..data";
const NEXT_DATA: &str = "..data_tmp";

/// Makes the folder hold these files, all of them at once: each version has a folder of its own, which one link names, and
/// the files are links through that one (kubernetes, `pkg/volume/util/atomic_writer.go`). A version that is there already
/// is not touched.
fn replace_files(folder: &Path, files: &Files) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let present = std::fs::read_link(folder.join(DATA)).ok();
    let unchanged = |version: &PathBuf| files_in(&folder.join(version)).is_ok_and(|found| found == *files);
    if files.is_empty() || present.as_ref().is_some_and(unchanged) {
        return Ok(());
    }
    let version = free_name(folder);
    write_version(folder, &version, files).with_context(|| format!("cannot write {}", folder.display()))?;
    if let Some(present) = present {
        let old = folder.join(present);
        std::fs::remove_dir_all(&old).with_context(|| format!("cannot remove {}", old.display()))?;
    }
    Ok(())
}

/// A name for a version that is not there.
fn free_name(folder: &Path) -> PathBuf {
    let mut names = (1_u64..).map(|number| PathBuf::from(format!("..{number}")));
    names.find(|name| !folder.join(name).exists()).unwrap_or_default()
}

fn write_version(folder: &Path, version: &Path, files: &Files) -> std::io::Result<()> {
    for (name, content) in files {
        let path = folder.join(version).join(name);
        std::fs::create_dir_all(path.parent().unwrap_or(folder))?;
        std::fs::write(&path, content)?;
    }
    let _ = std::fs::remove_file(folder.join(NEXT_DATA));
    symlink(version, folder.join(NEXT_DATA))?;
    std::fs::rename(folder.join(NEXT_DATA), folder.join(DATA))?;
    for name in files.keys().filter_map(|name| name.split('/').next()) {
        if !folder.join(name).is_symlink() {
            symlink(Path::new(DATA).join(name), folder.join(name))?;
        }
    }
    Ok(())
}

/// Every file below a folder, by its path in it.
fn files_in(folder: &Path) -> std::io::Result<Files> {
    let mut files = Files::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(folder).unwrap_or(&path).to_string_lossy().into_owned();
                files.insert(name, std::fs::read(&path)?);
            }
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_written_whole_and_left_alone_when_unchanged() {
        let folder = std::env::temp_dir().join(format!("belay-volumes-{}", std::process::id()));
        let write = |content: &str| {
            replace_files(&folder, &Files::from([("a/b.yaml".to_owned(), content.as_bytes().to_vec())])).unwrap();
            let path = folder.join("a/b.yaml");
            (std::fs::read_to_string(&path).unwrap(), std::fs::metadata(&path).unwrap().modified().unwrap())
        };
        let (first, written) = write("1");
        assert_eq!(first, "1");
        assert_eq!(write("1"), ("1".to_owned(), written));
        assert_eq!(write("2").0, "2");
        assert_eq!(
            std::fs::read_dir(&folder).unwrap().count(),
            3,
            "nothing is left but a version, its link and a file's"
        );
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn items_choose_and_rename_keys() {
        let files = Files::from([("a".to_owned(), vec![1]), ("b".to_owned(), vec![2])]);
        let item = KeyToPath { key: "a".into(), path: "x/y".into(), ..KeyToPath::default() };
        assert_eq!(select(files.clone(), Some(&[item])), Files::from([("x/y".to_owned(), vec![1])]));
        assert_eq!(select(files.clone(), None), files);
    }
}
