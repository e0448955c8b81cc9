//! Where the demo plays: a cluster of its own, or one that the user named. Both are handled with the same real kubectl
//! and Helm; they differ in where pods come from and how they are reached.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use belay_e2e::process::Spawner;
use belay_e2e::programs::{Programs, which};
use belay_e2e::tools::{Running, Tool};
use belay_e2e::world::{Cluster, Namespace, Options, PodInfo, Workload, eventually};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DynamicObject, ListParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client, Config};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::requests::{Proxied, RATE, Requests};
use super::{DemoArgs, WORKLOAD};

/// Seconds that the demo's web server takes to become ready, as a small service does.
const STARTS_IN: u32 = 4;

/// Seconds that it goes on serving after it was asked to stop, until every client has seen that it leaves. Any rollout
/// needs that, with Belay or without.
const PRE_STOP: u32 = 3;

/// A foreign cluster may pull images first.
const AVAILABLE_WITHIN: Duration = Duration::from_mins(5);

const BELAY_NAMESPACE: &str = "belay-system";

/// The stage.
pub(super) struct Stage {
    namespace: String,
    client: Client,
    tools: Tools,
    place: Place,
}

enum Place {
    Own { cluster: Cluster, namespace: Namespace },
    Foreign { runtime: Runtime, image: Option<String>, web_image: String, web_port: u16 },
}

/// kubectl and Helm for a cluster.
struct Tools {
    spawner: Arc<Spawner>,
    kubectl: PathBuf,
    helm: PathBuf,
    kubeconfig: PathBuf,
}

/// What is seen of the stage at one moment.
pub(super) struct Seen {
    pub(super) pods: Vec<PodInfo>,
    pub(super) holds: Vec<Value>,
    pub(super) slot: Value,
}

impl Seen {
    /// One pod, ready, and no hold that is still open.
    pub(super) fn is_whole(&self) -> bool {
        let completed = self.holds.iter().all(|hold| hold["status"]["phase"] == "Completed");
        completed && self.pods.len() == 1 && self.pods.iter().all(|pod| pod.ready && !pod.terminating)
    }
}

impl Stage {
    /// Starts or finds the cluster, and makes the demo's namespace.
    pub(super) fn set(args: &DemoArgs) -> anyhow::Result<Self> {
        match &args.kubeconfig {
            None => Self::own(),
            Some(kubeconfig) => Self::foreign(args, kubeconfig),
        }
    }

    fn own() -> anyhow::Result<Self> {
        let began = Instant::now();
        println!("Starting a control plane: etcd, kube-apiserver, kube-controller-manager, kube-scheduler.");
        let cluster = Cluster::start(Options::default())?;
        let namespace = cluster.block_on(async {
            let namespace = cluster.namespace("demo").await?;
            namespace.nodes(2).await?;
            anyhow::Ok(namespace)
        })?;
        println!("Ready in {:.1?}: Kubernetes 1.37, two simulated nodes.", began.elapsed());
        let tools = Tools {
            spawner: cluster.control_plane().spawner().clone(),
            kubectl: cluster.programs().kubectl.clone(),
            helm: cluster.programs().helm.clone(),
            kubeconfig: cluster.kubeconfig(),
        };
        let client = cluster.client();
        let name = namespace.name().to_owned();
        Ok(Self { namespace: name, client, tools, place: Place::Own { cluster, namespace } })
    }

    fn foreign(args: &DemoArgs, kubeconfig: &Path) -> anyhow::Result<Self> {
        let runtime = Runtime::new().context("cannot start a runtime")?;
        let (kubectl, helm) = match (which("kubectl"), which("helm")) {
            (Some(kubectl), Some(helm)) => (kubectl, helm),
            _ => {
                let programs = Programs::ensure()?;
                (programs.kubectl, programs.helm)
            }
        };
        let kubeconfig =
            kubeconfig.canonicalize().with_context(|| format!("no kubeconfig at {}", kubeconfig.display()))?;
        let tools = Tools { spawner: Arc::new(Spawner::new(runtime.handle().clone())?), kubectl, helm, kubeconfig };
        let namespace = "belay-demo".to_owned();
        let client = runtime.block_on(async {
            let read = kube::config::Kubeconfig::read_from(&tools.kubeconfig)?;
            let mut config = Config::from_custom_kubeconfig(read, &kube::config::KubeConfigOptions::default()).await?;
            config.default_retry = false;
            let client = Client::try_from(config)?;
            let nodes: Api<Node> = Api::all(client.clone());
            let all = nodes.list(&ListParams::default()).await.context("the cluster does not answer")?;
            let open = all.iter().filter(|node| {
                node.spec.as_ref().is_some_and(|spec| {
                    spec.unschedulable != Some(true)
                        && spec.taints.iter().flatten().all(|taint| taint.effect != "NoSchedule")
                })
            });
            ensure!(open.count() >= 2, "the demo needs two nodes that take pods");
            anyhow::Ok(client)
        })?;
        let place = Place::Foreign {
            runtime,
            image: args.image.clone(),
            web_image: args.web_image.clone(),
            web_port: args.web_port,
        };
        let stage = Self { namespace, client, tools, place };
        stage.block_on(async {
            stage.apply(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": stage.namespace}})).await
        })?;
        Ok(stage)
    }

    pub(super) fn block_on<F: Future>(&self, future: F) -> F::Output {
        match &self.place {
            Place::Own { cluster, .. } => cluster.block_on(future),
            Place::Foreign { runtime, .. } => runtime.block_on(future),
        }
    }

    fn kubectl(&self, args: &[&str]) -> Tool {
        match &self.place {
            Place::Own { cluster, .. } => cluster.kubectl(args),
            Place::Foreign { .. } => self.tools.tool(&self.tools.kubectl, args),
        }
    }

    async fn apply(&self, object: &Value) -> anyhow::Result<()> {
        self.kubectl(&["--namespace", &self.namespace, "apply", "-f", "-"])
            .stdin(&object.to_string())
            .ok()
            .await
            .map(drop)
    }

    /// The Deployment and its Service, available.
    pub(super) async fn workload(&self) -> anyhow::Result<()> {
        println!("A Deployment of one replica: ready {STARTS_IN} s after it starts, preStop sleep of {PRE_STOP} s.");
        match &self.place {
            Place::Own { namespace, .. } => {
                let starts = Duration::from_secs(u64::from(STARTS_IN));
                let web = namespace.web(WORKLOAD).ready_after(starts).pre_stop(i64::from(PRE_STOP)).create().await?;
                web.available(AVAILABLE_WITHIN).await?;
            }
            Place::Foreign { web_image, web_port, .. } => {
                self.apply(&foreign_workload(web_image, *web_port)).await?;
                let deployments: Api<Deployment> = Api::namespaced(self.client.clone(), &self.namespace);
                eventually("the web server to be available", AVAILABLE_WITHIN, async || {
                    let status = deployments.get(WORKLOAD).await?.status.unwrap_or_default();
                    ensure!(status.available_replicas == Some(1), "it is {status:?}");
                    Ok(())
                })
                .await?;
            }
        }
        Ok(())
    }

    /// Installs Belay with Helm, unless the user's cluster has it.
    pub(super) async fn install_belay(&self) -> anyhow::Result<()> {
        let began = Instant::now();
        match &self.place {
            Place::Own { cluster, .. } => {
                println!("Building Belay where it changed, then: helm install belay charts/belay -n {BELAY_NAMESPACE}");
                cluster.belay().await?;
            }
            Place::Foreign { image, .. } => {
                let found = self
                    .tools
                    .tool(&self.tools.kubectl, &["get", "crd", "handoverpolicies.belay.dev"])
                    .output()
                    .await?;
                if found.success() && image.is_none() {
                    println!("Belay is installed in this cluster already.");
                    return Ok(());
                }
                let Some(image) = image else {
                    bail!(
                        "Belay is not installed in this cluster: name its image with --image, as the cluster can pull it"
                    )
                };
                let (repository, tag) = image.rsplit_once(':').context("--image must be REPOSITORY:TAG")?;
                println!("Installing Belay: helm upgrade --install belay charts/belay --namespace {BELAY_NAMESPACE}");
                let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/belay");
                let chart = chart.to_str().context("the work tree's path is not UTF-8")?.to_owned();
                let (repository, tag) = (format!("image.repository={repository}"), format!("image.tag={tag}"));
                let args = [
                    "upgrade",
                    "--install",
                    "belay",
                    &chart,
                    "--namespace",
                    BELAY_NAMESPACE,
                    "--create-namespace",
                    "--wait",
                    "--set",
                    &repository,
                    "--set",
                    &tag,
                ];
                self.tools.tool(&self.tools.helm, &args).ok().await?;
            }
        }
        println!("Ready in {:.1?}: two webhook replicas, two controllers.", began.elapsed());
        Ok(())
    }

    /// Opts the Deployment in, and waits until Belay says that it protects it.
    pub(super) async fn protect(&self) -> anyhow::Result<()> {
        println!("Opting the Deployment in: a HandoverPolicy that names it.");
        self.apply(&json!({
            "apiVersion": "belay.dev/v1alpha1",
            "kind": "HandoverPolicy",
            "metadata": {"name": WORKLOAD},
            "spec": {"targetRef": {"name": WORKLOAD}},
        }))
        .await?;
        let policies = self.objects("HandoverPolicy", "handoverpolicies");
        eventually("Belay to protect the Deployment", AVAILABLE_WITHIN, async || {
            let policy = policies.get(WORKLOAD).await?;
            let conditions = policy.data["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let protected = conditions.iter().any(|one| one["type"] == "Protected" && one["status"] == "True");
            ensure!(protected, "its status is {}", policy.data["status"]);
            Ok(())
        })
        .await
    }

    /// The pod that serves.
    pub(super) async fn victim(&self) -> anyhow::Result<PodInfo> {
        let seen = self.seen().await?;
        let mut serving = seen.pods.into_iter().filter(|pod| pod.ready && !pod.terminating);
        serving.next().context("no pod of the Deployment serves")
    }

    pub(super) async fn requests(&self) -> anyhow::Result<Requests> {
        Ok(match &self.place {
            Place::Own { namespace, .. } => Requests::Endpoints(namespace.load(WORKLOAD, RATE).await?),
            Place::Foreign { .. } => Requests::Proxy(Proxied::start(self.client.clone(), &self.namespace, WORKLOAD)),
        })
    }

    /// A real drain of the node; on the user's cluster it evicts the demo's pods alone.
    pub(super) async fn drain(&self, node: &str) -> anyhow::Result<Running> {
        let mut args = vec!["drain", node, "--ignore-daemonsets", "--delete-emptydir-data"];
        if matches!(self.place, Place::Foreign { .. }) {
            args.push("--pod-selector=app=web");
        }
        self.kubectl(&args).start().await
    }

    pub(super) async fn uncordon(&self, node: &str) -> anyhow::Result<()> {
        self.kubectl(&["uncordon", node]).ok().await.map(drop)
    }

    /// Looks at the stage.
    pub(super) async fn seen(&self) -> anyhow::Result<Seen> {
        let pods = match &self.place {
            Place::Own { namespace, .. } => Workload::of(namespace, WORKLOAD).pods().await?,
            Place::Foreign { .. } => {
                let api: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
                let mut pods: Vec<_> = api.list(&ListParams::default()).await?.into_iter().map(PodInfo::from).collect();
                pods.sort_by(|a, b| a.name.cmp(&b.name));
                pods
            }
        };
        let holds = match self.objects("EvictionHold", "evictionholds").list(&ListParams::default()).await {
            Ok(list) => list.items.iter().map(serde_json::to_value).collect::<Result<_, _>>()?,
            // Before Belay is installed its kinds are not known.
            Err(kube::Error::Api(status)) if status.code == 404 => Vec::new(),
            Err(error) => return Err(error.into()),
        };
        let deployments: Api<Deployment> = Api::namespaced(self.client.clone(), &self.namespace);
        let deployment = serde_json::to_value(deployments.get(WORKLOAD).await?)?;
        let slot = deployment["spec"]["template"]["metadata"]["annotations"]["belay.dev/restart"].clone();
        Ok(Seen { pods, holds, slot })
    }

    fn objects(&self, kind: &str, plural: &str) -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk("belay.dev", "v1alpha1", kind);
        let resource = ApiResource::from_gvk_with_plural(&kind, plural);
        Api::namespaced_with(self.client.clone(), &self.namespace, &resource)
    }

    /// Tells how to look around, and waits for Ctrl-C.
    pub(super) fn invite(&self) {
        let kubectl =
            which("kubectl").map_or_else(|| self.tools.kubectl.display().to_string(), |_| "kubectl".to_owned());
        let node = self.block_on(self.victim()).map_or_else(|_| "NODE".to_owned(), |pod| pod.node);
        let namespace = &self.namespace;
        println!("\nStill running. Drain the node again, and watch it from two other terminals:\n");
        println!("  export KUBECONFIG={}", self.tools.kubeconfig.display());
        println!("  {kubectl} get evictionholds -A -o wide --watch\n");
        println!("  export KUBECONFIG={}", self.tools.kubeconfig.display());
        println!("  {kubectl} drain {node} --ignore-daemonsets --delete-emptydir-data");
        println!("  {kubectl} uncordon {node}          # or the next replacement finds no node");
        println!("  {kubectl} describe handoverpolicy {WORKLOAD} -n {namespace}");
        println!("  {kubectl} get events -n {namespace}\n");
        println!("Ctrl-C ends it.");
        if let Err(error) = self.block_on(tokio::signal::ctrl_c()) {
            println!("cannot wait for Ctrl-C: {error}");
        }
    }

    /// Takes away what the demo made. A cluster of its own ends with the program.
    pub(super) fn clear(self) {
        if let Place::Foreign { image, .. } = &self.place {
            let cleared = self.block_on(async {
                self.kubectl(&["delete", "namespace", &self.namespace]).ok().await?;
                if image.is_some() {
                    let args = ["uninstall", "belay", "--namespace", BELAY_NAMESPACE, "--wait"];
                    self.tools.tool(&self.tools.helm, &args).ok().await?;
                }
                anyhow::Ok(())
            });
            if let Err(error) = cleared {
                println!("not everything was cleared away: {error:#}");
            }
        }
    }
}

impl Tools {
    fn tool(&self, program: &Path, args: &[&str]) -> Tool {
        Tool::new(self.spawner.clone(), program, args).env("KUBECONFIG", &self.kubeconfig)
    }
}

fn foreign_workload(image: &str, port: u16) -> Value {
    let labels = json!({"app": WORKLOAD});
    let container = json!({
        "name": "web",
        "image": image,
        "ports": [{"containerPort": port}],
        "readinessProbe": {"httpGet": {"path": "/", "port": port}, "initialDelaySeconds": STARTS_IN, "periodSeconds": 1},
        "lifecycle": {"preStop": {"sleep": {"seconds": PRE_STOP}}},
    });
    json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": WORKLOAD}, "spec": {
            "replicas": 1, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}}}},
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": WORKLOAD}, "spec": {
            "selector": labels, "ports": [{"port": 80, "targetPort": port}]}},
    ]})
}
