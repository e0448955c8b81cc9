//! Pods that run a program of this machine: what it is told, what it may do, how it is stopped.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use belay_e2e::node_agent::Program;
use belay_e2e::programs::which;
use belay_e2e::world::{self, Namespace};
use k8s_openapi::api::core::v1::{ConfigMap, ContainerStatus, Pod};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(30);

/// The shell as an image: its arguments are a script.
fn play_shell(ns: &Namespace) -> anyhow::Result<()> {
    let program = Program {
        path: which("sh").context("no sh")?,
        environment: vec![("FROM_IMAGE".into(), "yes".into()), ("PATH".into(), std::env::var("PATH")?)],
    };
    ns.cluster().node_agent().play("shell", program);
    Ok(())
}

async fn create_pod(ns: &Namespace, name: &str, spec: Value) -> anyhow::Result<()> {
    let mut pod: Pod = serde_json::from_value(json!({ "metadata": { "name": name }, "spec": spec }))?;
    ns.pin(pod.spec.get_or_insert_default());
    ns.api().create(&PostParams::default(), &pod).await?;
    Ok(())
}

async fn status_of(ns: &Namespace, name: &str) -> anyhow::Result<(String, ContainerStatus)> {
    let status = ns.api::<Pod>().get(name).await?.status.context("no status")?;
    let container = status.container_statuses.and_then(|all| all.into_iter().next());
    Ok((status.phase.unwrap_or_default(), container.context("no container status")?))
}

async fn wait_for_phase(ns: &Namespace, name: &str, wanted: &str) -> anyhow::Result<ContainerStatus> {
    ns.eventually(&format!("pod {name} to be {wanted}"), SOON, async || {
        let (phase, container) = status_of(ns, name).await?;
        ensure!(phase == wanted, "it is {phase}: {:?}", container.state);
        Ok(container)
    })
    .await
}

/// Runs a pod whose program writes its process id and sleeps; returns what it wrote.
pub(crate) async fn run_a_sleeper(ns: &Namespace) -> anyhow::Result<String> {
    play_shell(ns)?;
    let spec =
        json!({ "containers": [{ "name": "c", "image": "x/shell:1", "args": ["-c", "echo $$$$; exec sleep 300"] }] });
    create_pod(ns, "sleeper", spec).await?;
    ns.eventually("the program to write", SOON, async || {
        let log = ns.cluster().pod_log(ns.name(), "sleeper")?;
        ensure!(!log.is_empty(), "nothing so far");
        Ok(log)
    })
    .await
}

#[test]
fn a_program_is_told_what_its_pod_says() {
    world::test("told", async |ns: &Namespace| {
        ns.nodes(1).await?;
        play_shell(ns)?;
        ns.apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: settings}, data: {a.yaml: 'hello: world'}}")
            .await?;
        let script = "echo name=$POD_NAME ns=$POD_NAMESPACE image=$FROM_IMAGE two=$TWO listen=$LISTEN home=${HOME-none}; \
                      cat /etc/settings/a.yaml; exit 3";
        create_pod(
            ns,
            "told",
            json!({
                "restartPolicy": "Never",
                "volumes": [{ "name": "settings", "configMap": { "name": "settings" } }],
                "containers": [{
                    "name": "c", "image": "registry.example:5000/shell:1.2@sha256:0",
                    "command": ["/entrypoint"], "args": ["-c", script],
                    "volumeMounts": [{ "name": "settings", "mountPath": "/etc/settings" }],
                    "env": [
                        { "name": "POD_NAME", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } },
                        { "name": "POD_NAMESPACE", "valueFrom": { "fieldRef": { "fieldPath": "metadata.namespace" } } },
                        { "name": "TWO", "value": "$(POD_NAME)-$(POD_NAME)" },
                        { "name": "LISTEN", "value": "0.0.0.0:8099" },
                    ],
                }],
            }),
        )
        .await?;
        let container = wait_for_phase(ns, "told", "Failed").await?;
        let ended = container.state.and_then(|state| state.terminated).context("not terminated")?;
        ensure!(ended.exit_code == 3, "{ended:?}");
        let address = ns.api::<Pod>().get("told").await?.status.and_then(|status| status.pod_ip);
        let listen = ns.cluster().reach(&address.context("no address")?, 8099)?;
        let log = ns.cluster().pod_log(ns.name(), "told")?;
        let expected =
            format!("name=told ns={} image=yes two=told-told listen={listen} home=none\nhello: world", ns.name());
        ensure!(log.trim() == expected, "{log}");
        Ok(())
    });
}

#[test]
fn kubectl_shows_and_follows_a_programs_log() {
    world::test("logs", async |ns: &Namespace| {
        ns.nodes(1).await?;
        play_shell(ns)?;
        let script = "echo one; echo two; while [ ! -e go ]; do sleep 0.05; done; echo three";
        let container = json!({ "name": "c", "image": "shell", "args": ["-c", script] });
        create_pod(ns, "writer", json!({ "restartPolicy": "Never", "containers": [container] })).await?;
        ns.eventually("two lines", SOON, async || {
            let shown = ns.kubectl(["logs", "writer"]).ok().await?;
            ensure!(shown == "one\ntwo\n", "{shown}");
            Ok(())
        })
        .await?;
        let following = ns.kubectl(["logs", "--follow", "--tail=1", "writer"]).start().await?;
        following.line("two", SOON).await?;
        let exec = ns.kubectl(["exec", "writer", "--", "true"]).output().await?;
        ensure!(exec.text().contains("a simulated node serves logs and nothing else"), "{exec}");
        let folder = ns.cluster().control_plane().folder().join("pods");
        let uid = ns.api::<Pod>().get("writer").await?.metadata.uid.context("no UID")?;
        std::fs::write(folder.join(uid).join("go"), "")?;
        let exit = following.exit(SOON).await?;
        ensure!(exit.success() && exit.stdout() == "two\nthree\n", "{exit}");
        Ok(())
    });
}

#[test]
fn a_program_speaks_with_its_own_service_accounts_rights() {
    world::test("rights", async |ns: &Namespace| {
        ns.nodes(1).await?;
        let kubectl = Program {
            path: ns.cluster().programs().kubectl.clone(),
            environment: vec![("HOME".into(), "/tmp".into())],
        };
        ns.cluster().node_agent().play("kubectl", kubectl);
        ns.apply(
            "{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: reader},
              rules: [{apiGroups: [''], resources: [configmaps], verbs: [list]}]}\n---\n
             {apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: reader},
              roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader},
              subjects: [{kind: ServiceAccount, name: default}]}",
        )
        .await?;
        for (name, resource, phase, said) in [
            ("may", "configmaps", "Succeeded", "kube-root-ca.crt"),
            ("may-not", "secrets", "Failed", "cannot list resource \"secrets\""),
        ] {
            let args = ["get", resource, "--cache-dir=/tmp/cache"];
            let spec = json!({
                "restartPolicy": "Never",
                "volumes": [{ "name": "tmp", "emptyDir": {} }],
                "containers": [{ "name": "c", "image": "kubectl", "args": args,
                                 "volumeMounts": [{ "name": "tmp", "mountPath": "/tmp" }] }],
            });
            create_pod(ns, name, spec).await?;
            wait_for_phase(ns, name, phase).await?;
            let log = ns.cluster().pod_log(ns.name(), name)?;
            ensure!(log.contains(said), "{name}: {log}");
            ensure!(
                phase == "Succeeded" || log.contains(&format!("system:serviceaccount:{}:default", ns.name())),
                "{log}"
            );
        }
        Ok(())
    });
}

#[test]
fn a_program_is_ready_while_its_probe_says_so_and_restarted_when_it_is_killed() {
    world::test("probed", async |ns: &Namespace| {
        ns.nodes(1).await?;
        play_shell(ns)?;
        // A real server with a health endpoint that is always at hand.
        let etcd = ns.cluster().programs().etcd.display().to_string();
        let script = format!(
            "echo pid $$$$; exec {etcd} --unsafe-no-fsync --log-level=error --data-dir=/data \
             --listen-client-urls=http://0.0.0.0:2379 --advertise-client-urls=http://0.0.0.0:2379 \
             --listen-peer-urls=http://0.0.0.0:2380 --initial-advertise-peer-urls=http://0.0.0.0:2380 \
             --initial-cluster=default=http://0.0.0.0:2380"
        );
        let began = Instant::now();
        create_pod(
            ns,
            "etcd",
            json!({
                "volumes": [{ "name": "data", "emptyDir": {} }],
                "containers": [{
                    "name": "etcd", "image": "shell", "args": ["-c", script],
                    "ports": [{ "name": "client", "containerPort": 2379 }],
                    "readinessProbe": {
                        "httpGet": { "path": "/readyz", "port": "client" }, "periodSeconds": 4, "failureThreshold": 1,
                    },
                    "volumeMounts": [{ "name": "data", "mountPath": "/data" }],
                }],
            }),
        )
        .await?;
        let is = async |ready: bool, restarts: i32| {
            let (_, container) = status_of(ns, "etcd").await?;
            ensure!(container.restart_count == restarts, "{} restarts", container.restart_count);
            ensure!(container.ready == ready, "Ready: {}, {:?}", container.ready, container.state);
            anyhow::Ok(())
        };
        ns.eventually("etcd to be Ready", SOON, async || is(true, 0).await).await?;
        ensure!(began.elapsed() < Duration::from_secs(4), "the first success takes a period: {:?}", began.elapsed());

        let log = ns.cluster().pod_log(ns.name(), "etcd")?;
        let process = log.lines().find_map(|line| line.strip_prefix("pid ")).context("no process id")?.to_owned();
        signal("STOP", &process)?;
        ns.eventually("etcd that does not answer to be unready", SOON, async || is(false, 0).await).await?;
        signal("CONT", &process)?;
        ns.eventually("etcd that answers to be Ready again", SOON, async || is(true, 0).await).await?;

        ns.cluster().kill_pod(ns.name(), "etcd")?;
        ns.eventually("etcd to be restarted and Ready", SOON, async || is(true, 1).await).await?;
        let (_, container) = status_of(ns, "etcd").await?;
        let last = container.last_state.and_then(|last| last.terminated).context("no last state")?;
        ensure!(last.exit_code == 137, "{last:?}");
        Ok(())
    });
}

fn signal(name: &str, process: &str) -> anyhow::Result<()> {
    let sent = std::process::Command::new("sh").args(["-c", &format!("kill -{name} {process}")]).status()?;
    ensure!(sent.success(), "cannot send {name} to {process}");
    Ok(())
}

#[test]
fn a_program_that_fails_its_liveness_probe_is_asked_to_stop_and_restarted() {
    world::test("dead", async |ns: &Namespace| {
        ns.nodes(1).await?;
        play_shell(ns)?;
        let script = "trap 'echo asked; exit 0' TERM; while :; do sleep 0.05; done";
        let probe = json!({ "tcpSocket": { "port": 8097 }, "periodSeconds": 1, "failureThreshold": 1 });
        let container = json!({ "name": "c", "image": "shell", "args": ["-c", script], "livenessProbe": probe });
        create_pod(ns, "dead", json!({ "containers": [container] })).await?;
        let container = ns
            .eventually("a restart", SOON, async || {
                let (_, container) = status_of(ns, "dead").await?;
                ensure!(container.restart_count > 0, "none so far");
                Ok(container)
            })
            .await?;
        let last = container.last_state.and_then(|last| last.terminated).context("no last state")?;
        ensure!(last.message.clone().unwrap_or_default().contains("liveness probe failed"), "{last:?}");
        ensure!(ns.cluster().pod_log(ns.name(), "dead")?.contains("asked"), "it was killed unasked");
        Ok(())
    });
}

#[test]
fn a_program_is_asked_to_stop_and_killed_only_after_its_grace_period() {
    world::test("stopped", async |ns: &Namespace| {
        ns.nodes(1).await?;
        play_shell(ns)?;
        for (name, script, least, most) in [
            ("obedient", "trap 'echo asked; exit 0' TERM; echo up; while :; do sleep 0.05; done", 0.0, 2.0),
            ("stubborn", "trap 'echo asked' TERM; echo up; while :; do sleep 0.05; done", 3.0, 6.0),
        ] {
            let container = json!({ "name": "c", "image": "shell", "args": ["-c", script] });
            create_pod(ns, name, json!({ "terminationGracePeriodSeconds": 3, "containers": [container] })).await?;
            ns.eventually("the program to be up", SOON, async || {
                ensure!(ns.cluster().pod_log(ns.name(), name)?.contains("up"), "it is not");
                Ok(())
            })
            .await?;
            let began = Instant::now();
            ns.api::<Pod>().delete(name, &DeleteParams::default()).await?;
            ns.eventually("the pod to be gone", SOON, async || {
                ensure!(ns.api::<Pod>().get_opt(name).await?.is_none(), "it is there");
                Ok(())
            })
            .await?;
            let took = began.elapsed().as_secs_f64();
            ensure!((least..most).contains(&took), "{name} was gone after {took:.1} s");
            let log = ns.cluster().pod_log(ns.name(), name)?;
            ensure!(log.contains("asked"), "{name} was not asked: {log}");
        }
        Ok(())
    });
}

#[test]
fn a_mounted_config_map_is_awaited_and_followed() {
    world::test("followed", async |ns: &Namespace| {
        ns.nodes(1).await?;
        play_shell(ns)?;
        let script = "while :; do cat /etc/settings/value; sleep 0.05; done";
        let spec = json!({
            "volumes": [{ "name": "settings", "configMap": { "name": "settings" } }],
            "containers": [{ "name": "c", "image": "shell", "args": ["-c", script],
                             "volumeMounts": [{ "name": "settings", "mountPath": "/etc/settings" }] }],
        });
        create_pod(ns, "follower", spec).await?;
        ns.eventually("the pod to say what it lacks", SOON, async || {
            let (phase, container) = status_of(ns, "follower").await?;
            ensure!(phase == "Pending", "it is {phase}");
            let waiting = container.state.and_then(|state| state.waiting).context("it does not wait")?;
            let message = waiting.message.unwrap_or_default();
            ensure!(message.contains("ConfigMap settings does not exist"), "{message}");
            Ok(())
        })
        .await?;
        ns.apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: settings}, data: {value: first}}").await?;
        let reads = async |value: &str| {
            let log = ns.cluster().pod_log(ns.name(), "follower")?;
            ensure!(log.contains(value), "{} bytes without {value}", log.len());
            anyhow::Ok(())
        };
        ns.eventually("the first value", SOON, async || reads("first").await).await?;
        let patch = Patch::Merge(json!({ "data": { "value": "second" } }));
        ns.api::<ConfigMap>().patch("settings", &PatchParams::default(), &patch).await?;
        ns.eventually("the second value", SOON, async || reads("second").await).await?;
        Ok(())
    });
}
