//! What starts a real Kubernetes control plane for Belay's end-to-end tests, and what plays the rest of a cluster.
//!
//! Real here: etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kubectl, Helm, and the `belay` binary
//! itself. Played: the kubelets ([`node_agent`]), kube-proxy ([`service_proxy`], [`load`]) and the container images of
//! test workloads. So everything that Belay meets at the API server is what it meets in production, and a request
//! that a test counts as served went over a socket that was open only while its pod was up.
//!
//! Tests use [`world`]; the other modules are its parts, shared with `cargo xtask`.
//!
//! Linux only: every instance owns one octet of `127.0.0.0/8` (see [`instance`]).

#[cfg(not(target_os = "linux"))]
compile_error!("the test cluster runs on Linux only: it needs all of 127.0.0.0/8, setpriv and /proc");

mod account;
pub mod arc;
pub mod audit;
pub mod availability;
pub mod chance;
pub mod clock;
pub mod control_plane;
pub mod descheduler;
pub mod endpoints;
pub mod eviction_requests;
pub mod evictions;
pub mod instance;
pub mod karpenter;
pub mod keda;
pub mod load;
pub mod metrics;
pub mod network;
pub mod node_agent;
pub mod pki;
pub mod plain_http;
pub mod process;
pub mod programs;
pub mod service_proxy;
pub mod soak;
pub mod standing;
pub mod tools;
pub mod watching;
pub mod world;
