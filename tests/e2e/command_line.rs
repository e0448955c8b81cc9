//! The program at a keyboard: as kubectl's plugin, on a terminal and in a pipe, and by its exit codes.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use belay_e2e::tools::{Exit, Tool};
use belay_e2e::world::Namespace;
use serde_json::{Value, json};

use crate::busy_support::worker;
use crate::support::{SOON, test_with_belay};

/// The program under the names that kubectl looks for.
struct Plugin<'a> {
    ns: &'a Namespace,
    folder: PathBuf,
    path: OsString,
}

impl<'a> Plugin<'a> {
    async fn install(ns: &'a Namespace) -> anyhow::Result<Self> {
        let folder = ns.cluster().control_plane().folder().join(format!("plugin-{}", ns.name()));
        std::fs::create_dir_all(&folder)?;
        let program = ns.cluster().belay().await?.program().await?;
        for name in ["kubectl-belay", "kubectl_complete-belay"] {
            std::os::unix::fs::symlink(&program, folder.join(name))?;
        }
        let path =
            std::env::join_paths(std::iter::once(folder.clone()).chain([PathBuf::from("/usr/bin"), "/bin".into()]))?;
        Ok(Self { ns, folder, path })
    }

    async fn run(&self, args: &[&str]) -> anyhow::Result<Exit> {
        self.ns.cluster().kubectl(args).env("PATH", &self.path).output().await
    }

    /// A kubeconfig of a context `here`, whose namespace is the test's, and which is not the current one.
    fn kubeconfig(&self) -> anyhow::Result<String> {
        let text = std::fs::read_to_string(self.ns.cluster().kubeconfig())?;
        let mut config: Value = serde_json::from_str(&text)?;
        let mut context = config["contexts"][0].clone();
        context["name"] = json!("here");
        context["context"]["namespace"] = json!(self.ns.name());
        config["contexts"] = json!([context]);
        config["current-context"] = json!("elsewhere");
        let file = self.folder.join("kubeconfig");
        std::fs::write(&file, config.to_string())?;
        file.to_str().map(str::to_owned).context("the work folder's path is not UTF-8")
    }
}

async fn pod(ns: &Namespace) -> anyhow::Result<()> {
    ns.nodes(1).await?;
    ns.pod(json!({ "metadata": { "name": "other" } })).await?;
    ns.ready("other", SOON).await.map(drop)
}

#[test]
fn kubectl_runs_the_program_as_its_plugin_and_its_flags_mean_there_what_they_mean_to_kubectl() {
    test_with_belay("plugin", async |ns: &Namespace| {
        pod(ns).await?;
        let plugin = Plugin::install(ns).await?;
        let (here, kubeconfig) = (ns.name(), plugin.kubeconfig()?);
        let both = format!("{here}/other");
        let spellings: [&[&str]; 5] = [
            &["pod", "other", "-n", here],
            &["pods/other", "--namespace", here],
            &["-n", here, "po", "other", "-o", "text"],
            &["pod", &both],
            &["pod/other", "--kubeconfig", &kubeconfig, "--context", "here"],
        ];
        for spelling in spellings {
            let exit = plugin.run(&[&["belay", "explain"], spelling].concat()).await?;
            ensure!(exit.success() && exit.stdout().starts_with(&format!("Pod {here}/other on ")), "{exit}");
        }

        let table: [(&[&str], i32, &str); 5] = [
            (&["pod/other", "--kubeconfig", &kubeconfig], 1, "the current context of the kubeconfig"),
            (&["pod/other", "--context", "nowhere"], 1, "has no context \"nowhere\"; it has belay"),
            (&["pod/nobody", "-n", here], 1, "kubectl belay: cannot read the pod"),
            (&["pod/other", "-n", here, "--as", "nobody"], 1, "cannot list resource \"configmaps\""),
            (&["pod"], 2, "which pod?"),
        ];
        for (args, code, words) in table {
            let exit = plugin.run(&[&["belay", "explain"], args].concat()).await?;
            ensure!(exit.code == Some(code) && exit.text().contains(words), "not {code} and {words:?}: {exit}");
        }

        let help = plugin.run(&["belay", "explain", "--help"]).await?;
        ensure!(help.success() && help.stdout().contains("Usage: kubectl belay explain"), "{help}");
        let candidates = plugin.run(&["__complete", "belay", "explain", ""]).await?;
        let lines: Vec<_> = candidates.stdout().lines().map(str::to_owned).collect();
        ensure!(
            ["pod", "node", "workload", ":4"].iter().all(|word| lines.iter().any(|line| line == word)),
            "{candidates}"
        );
        Ok(())
    });
}

#[test]
fn an_explanation_fits_the_terminal_in_colour_and_in_a_pipe_it_is_plain_rows() {
    test_with_belay("terminal", async |ns: &Namespace| {
        ns.nodes(1).await?;
        worker(ns, "worker", "patient", "working").await?;
        ns.ready("worker", SOON).await?;
        let program = ns.cluster().belay().await?.program().await?;
        let command = format!("'{}' explain pod worker -n {}", program.display(), ns.name());
        let on_terminal = async |environment: &str| -> anyhow::Result<String> {
            // `script` runs it on a terminal of its own.
            let line = format!("stty cols 80 && {environment} {command}");
            let spawner = ns.cluster().control_plane().spawner().clone();
            let tool = Tool::new(spawner, Path::new("script"), ["-qec", &line, "/dev/null"]);
            tool.env("TERM", "xterm").env("KUBECONFIG", ns.cluster().kubeconfig()).ok().await
        };
        let coloured = on_terminal("").await?;
        ensure!(coloured.contains("\u{1b}[1mRemovers:"), "{coloured:?}");
        let plain = on_terminal("NO_COLOR=1").await?;
        ensure!(!plain.contains('\u{1b}'), "{plain:?}");
        for line in plain.lines() {
            ensure!(line.chars().count() <= 80, "{} columns: {line}", line.chars().count());
        }
        let piped = ns.cluster().belay().await?.run(["explain", "pod", "worker", "-n", ns.name()]).await?.ok().await?;
        ensure!(!piped.contains('\u{1b}'), "{piped:?}");
        let row = piped.lines().find(|line| line.contains("kubectl drain")).context("no row of kubectl drain")?;
        ensure!(row.chars().count() > 80, "a row is one line: {row}");
        Ok(())
    });
}

#[test]
fn every_command_ends_with_the_code_that_is_documented() {
    test_with_belay("codes", async |ns: &Namespace| {
        pod(ns).await?;
        let belay = ns.cluster().belay().await?;
        let folder = ns.cluster().control_plane().folder();
        let file = |name: &str, text: &str| -> anyhow::Result<String> {
            let file = folder.join(name);
            std::fs::write(&file, text)?;
            file.to_str().map(str::to_owned).context("the work folder's path is not UTF-8")
        };
        let needed = "certs: {secretName: ca, dnsNames: [b]}\nwebhookConfigurations: {validating: b, mutating: b}\n";
        let good = file("good.yaml", needed)?;
        let wrong = file("wrong.yaml", &format!("{needed}writesPerSecond: 0"))?;
        let here = ns.name();
        let table: [(&[&str], i32, &str); 14] = [
            (&["explain", "pod", "other", "-n", here], 0, "Pod "),
            (&["explain", "pod", "other", "-n", here, "-o", "json"], 0, "\"removers\""),
            (&["explain", "pod", "nobody", "-n", here], 1, "not found"),
            (&["explain", "node", "nobody"], 1, "there is no node nobody"),
            (&["explain", "statefulset", "web"], 2, "deployment"),
            (&["check-config", &good], 0, "good.yaml: good"),
            (&["check-config", &good, "-o", "json"], 0, "\"good\": true"),
            (&["check-config", &wrong], 1, "wrong.yaml is wrong: writesPerSecond: must be 1 or more"),
            (&["check-config", &wrong, "-o", "json"], 1, "\"key\": \"writesPerSecond\""),
            (&["cleanup", "--dry-run"], 0, "nothing was changed"),
            (&["cleanup", "--dry-run", "-o", "json"], 0, "\"dryRun\": true"),
            (&["crds"], 0, "kind: CustomResourceDefinition"),
            (&["completions", "bash"], 0, "complete "),
            (&["explain-everything"], 2, "unrecognized subcommand"),
        ];
        for (args, code, words) in table {
            let exit = belay.run(args.iter().copied()).await?.output().await?;
            ensure!(exit.code == Some(code) && exit.text().contains(words), "not {code} and {words:?}: {exit}");
            ensure!(
                code == 0 || !exit.lines.iter().all(|line| !line.stderr),
                "an error is told on standard error: {exit}"
            );
        }
        Ok(())
    });
}
