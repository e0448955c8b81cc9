//! How commands for people reach a cluster: by kubectl's own flags, and with errors that say what to do.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use clap::{Args, ValueHint};
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};

use crate::cluster::client::{self, ClientError, describe};
use crate::config::parse_duration;

/// Under which head `--help` lists these flags.
const HEADING: &str = "Cluster";

/// kubectl's flags, by their names there, as far as they say which cluster is meant and who asks. The namespace is not
/// among them: it says which objects are meant, which each command knows for itself.
#[derive(Args, Clone, Debug)]
pub(super) struct ConnectArgs {
    /// The kubeconfig file; by default those of $KUBECONFIG, or ~/.kube/config.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = HEADING)]
    kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig file; by default its current one.
    #[arg(long, help_heading = HEADING)]
    context: Option<String>,
    /// Act as this user (as system:serviceaccount:NAMESPACE:NAME, as a ServiceAccount).
    #[arg(long = "as", value_name = "USER", help_heading = HEADING)]
    user: Option<String>,
    /// Act as a member of this group; may be given several times.
    #[arg(long = "as-group", value_name = "GROUP", requires = "user", help_heading = HEADING)]
    groups: Vec<String>,
    /// How long one request may go without an answer, as in 10s or 2m; 0 for as long as it takes.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = timeout, help_heading = HEADING)]
    request_timeout: Duration,
}

/// Where Belay itself is.
#[derive(Args, Clone, Debug)]
pub(super) struct BelayNamespace {
    /// The namespace that Belay runs in.
    #[arg(long, value_name = "NAMESPACE", env = "POD_NAMESPACE", default_value = "belay-system")]
    #[arg(help_heading = HEADING)]
    pub(super) belay_namespace: String,
}

impl ConnectArgs {
    /// A client; its default namespace is the context's, as kubectl's is.
    pub(super) async fn connect(&self) -> anyhow::Result<Client> {
        Ok(client::of(self.config().await?)?)
    }

    async fn config(&self) -> anyhow::Result<Config> {
        let mut config = match (&self.kubeconfig, &self.context) {
            (None, None) => client::infer().await.map_err(|error| match error {
                ClientError::NoCluster { kubeconfig, reason } => anyhow!(
                    "no way to reach a cluster: the kubeconfig {kubeconfig} cannot be used: {reason}; name another with \
                     --kubeconfig or $KUBECONFIG, or a context of it with --context"
                ),
                error @ ClientError::Build(_) => error.into(),
            })?,
            (file, context) => named(file.as_deref(), context.as_deref()).await?,
        };
        if let Some(user) = &self.user {
            config.auth_info.impersonate = Some(user.clone());
            config.auth_info.impersonate_groups = Some(self.groups.clone()).filter(|groups| !groups.is_empty());
        }
        let limit = Some(self.request_timeout).filter(|limit| !limit.is_zero());
        (config.read_timeout, config.write_timeout) = (limit, limit);
        config.connect_timeout =
            Some(limit.map_or(client::CONNECT_TIMEOUT, |limit| limit.min(client::CONNECT_TIMEOUT)));
        // Else the time in which a kept connection had nothing to do would count.
        config.reset_reader_on_write = true;
        Ok(config)
    }
}

/// What the flags name.
async fn named(file: Option<&Path>, context: Option<&str>) -> anyhow::Result<Config> {
    let (kubeconfig, of) = match file {
        Some(file) => (Kubeconfig::read_from(file), format!("the kubeconfig {}", file.display())),
        None => (Kubeconfig::read(), "the kubeconfig ($KUBECONFIG, or ~/.kube/config)".to_owned()),
    };
    let kubeconfig = kubeconfig.with_context(|| format!("cannot use {of}; name another with --kubeconfig"))?;
    let mut contexts: Vec<_> = kubeconfig.contexts.iter().map(|context| context.name.clone()).collect();
    contexts.sort_unstable();
    let known = if contexts.is_empty() { "it has none".to_owned() } else { format!("it has {}", contexts.join(", ")) };
    if let Some(context) = context.filter(|name| !contexts.iter().any(|context| context == name)) {
        bail!("{of} has no context {context:?}; {known}");
    }
    let options = KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
    Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(|error| match error {
        // An empty name is none.
        KubeconfigError::CurrentContextNotSet | KubeconfigError::LoadContext(_) => {
            anyhow!("the current context of {of} is not there; choose one with --context: {known}")
        }
        error => anyhow::Error::new(error).context(format!("cannot use {of}")),
    })
}

/// kubectl's spelling: a duration with its unit, or a plain 0.
fn timeout(text: &str) -> Result<Duration, String> {
    if text == "0" { Ok(Duration::ZERO) } else { parse_duration(text) }
}

/// An error of a request, with what the person who made it can do about it. The API server's own words name the right
/// that is missing: verb, resource and namespace.
pub(super) fn told(error: &kube::Error) -> anyhow::Error {
    let what = describe(error);
    match error {
        kube::Error::Api(status) if status.code == 403 => {
            anyhow!("{what}; ask for that right, or act as somebody who has it (--context, --as)")
        }
        kube::Error::Api(status) if status.code == 401 => {
            anyhow!("the API server does not know who asks ({what}); log in again, or choose another --context")
        }
        kube::Error::Api(_) => anyhow!(what),
        _ => anyhow!("{what}; is it the right cluster (--context)?"),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use kube::core::Status;

    use super::*;
    use crate::testing::Folder;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        connect: ConnectArgs,
    }

    fn parsed(args: &[&str]) -> Result<ConnectArgs, String> {
        let args = std::iter::once(&"belay").chain(args);
        Program::try_parse_from(args).map(|program| program.connect).map_err(|error| error.to_string())
    }

    /// Two contexts of one cluster; `first` is the current one, unless there is none.
    fn kubeconfig(current: &str) -> String {
        format!(
            "apiVersion: v1
kind: Config
current-context: {current}
clusters: [{{name: one, cluster: {{server: 'https://127.0.0.1:1'}}}}]
users: [{{name: me, user: {{token: secret}}}}]
contexts:
- {{name: second, context: {{cluster: one, user: me, namespace: shop}}}}
- {{name: first, context: {{cluster: one, user: me}}}}
"
        )
    }

    async fn config(folder: &Folder, current: &str, args: &[&str]) -> Result<Config, String> {
        let file = folder.write("kubeconfig", &kubeconfig(current));
        let named = ["--kubeconfig", file.to_str().unwrap()];
        let args = parsed(&[&named, args].concat()).unwrap();
        args.config().await.map_err(|error| format!("{error:#}"))
    }

    #[tokio::test]
    async fn the_flags_choose_cluster_namespace_and_who_asks_as_kubectls_do() {
        let folder = Folder::new();
        let of_current = config(&folder, "first", &[]).await.unwrap();
        assert_eq!(of_current.default_namespace, "default");
        assert_eq!(of_current.cluster_url, "https://127.0.0.1:1");
        assert_eq!(of_current.auth_info.impersonate, None);
        assert_eq!(of_current.read_timeout, Some(Duration::from_secs(30)));
        let args =
            ["--context", "second", "--as", "dev", "--as-group", "a", "--as-group", "b", "--request-timeout", "2s"];
        let chosen = config(&folder, "first", &args).await.unwrap();
        assert_eq!(chosen.default_namespace, "shop");
        assert_eq!(chosen.auth_info.impersonate.as_deref(), Some("dev"));
        assert_eq!(chosen.auth_info.impersonate_groups, Some(vec!["a".to_owned(), "b".to_owned()]));
        assert_eq!(
            (chosen.read_timeout, chosen.connect_timeout),
            (Some(Duration::from_secs(2)), Some(Duration::from_secs(2)))
        );
        let patient = config(&folder, "first", &["--request-timeout", "0"]).await.unwrap();
        assert_eq!((patient.read_timeout, patient.connect_timeout), (None, Some(client::CONNECT_TIMEOUT)));
    }

    #[tokio::test]
    async fn a_kubeconfig_that_does_not_do_is_told_with_what_to_do() {
        let folder = Folder::new();
        let no_context = config(&folder, "first", &["--context", "third"]).await.unwrap_err();
        assert!(no_context.ends_with("has no context \"third\"; it has first, second"), "{no_context}");
        let none_current = config(&folder, "\"\"", &[]).await.unwrap_err();
        assert!(none_current.contains("choose one with --context: it has first, second"), "{none_current}");
        let missing = parsed(&["--kubeconfig", "/nowhere/config"]).unwrap();
        let missing = format!("{:#}", missing.config().await.unwrap_err());
        assert!(missing.starts_with("cannot use the kubeconfig /nowhere/config; name another"), "{missing}");
    }

    #[test]
    fn a_wrong_flag_is_told_by_its_name() {
        for (args, words) in [
            (&["--as-group", "a"][..], "--as <USER>"),
            (&["--request-timeout", "soon"], "10m"),
            (&["--request-timeout", "5"], "10m"),
        ] {
            let error = parsed(args).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn an_error_says_what_to_do_about_it() {
        let api = |code: u16, message: &str| {
            kube::Error::Api(Box::new(Status { code, message: message.to_owned(), ..Status::default() }))
        };
        let table = [
            (api(403, "User \"dev\" cannot get resource \"pods\""), "cannot get resource \"pods\"; ask for that right"),
            (api(401, "Unauthorized"), "does not know who asks (Unauthorized); log in again"),
            (api(404, "pods \"w\" not found"), "pods \"w\" not found"),
            (kube::Error::LinesCodecMaxLineLengthExceeded, "cannot reach the API server: "),
        ];
        for (error, words) in table {
            let told = told(&error).to_string();
            assert!(told.contains(words), "{told}");
        }
    }
}
