//! Which pod a connection to a Service goes to: kube-proxy's rule, for [`crate::service_proxy`] and [`crate::load`].

use std::net::Ipv4Addr;

use k8s_openapi::api::discovery::v1::EndpointSlice;

/// One address of a Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// The pod's address.
    pub address: Ipv4Addr,
    /// The port there.
    pub port: u16,
    /// Takes new connections.
    pub ready: bool,
    /// Would take connections, were it not terminating.
    pub serving: bool,
    /// Its pod was asked to go.
    pub terminating: bool,
    /// The pod's name, empty when the endpoint is of no pod.
    pub pod: String,
}

/// The endpoints of a Service's slices for the Service's port of that name (empty for an unnamed one).
pub fn of_slices<'a>(slices: impl Iterator<Item = &'a EndpointSlice>, port_name: &str) -> Vec<Endpoint> {
    slices.flat_map(|slice| of_slice(slice, port_name)).collect()
}

fn of_slice(slice: &EndpointSlice, port_name: &str) -> Vec<Endpoint> {
    let mut ports = slice.ports.iter().flatten();
    let port = ports
        .find(|port| port.name.as_deref().unwrap_or_default() == port_name)
        .and_then(|port| port.port)
        .and_then(|port| u16::try_from(port).ok());
    let Some(port) = port else {
        return Vec::new();
    };
    let endpoints = slice.endpoints.iter().flatten();
    endpoints
        .flat_map(|endpoint| {
            let conditions = endpoint.conditions.clone().unwrap_or_default();
            // What a missing value means is said in the API's own documentation of these fields.
            let ready = conditions.ready.unwrap_or(true);
            let pod = endpoint.target_ref.as_ref().and_then(|target| target.name.clone());
            endpoint.addresses.iter().filter_map(move |address| {
                Some(Endpoint {
                    address: address.parse().ok()?,
                    port,
                    ready,
                    serving: conditions.serving.unwrap_or(ready),
                    terminating: conditions.terminating.unwrap_or(false),
                    pod: pod.clone().unwrap_or_default(),
                })
            })
        })
        .collect()
}

/// The endpoint for the `turn`th connection: among the ready ones; when there is none, among those that still serve
/// while they terminate (kube-proxy, `pkg/proxy/topology.go`, KEP-1669); else none.
pub fn choose(endpoints: &[Endpoint], turn: usize) -> Option<&Endpoint> {
    let pick = |eligible: &dyn Fn(&Endpoint) -> bool| {
        let eligible: Vec<&Endpoint> = endpoints.iter().filter(|endpoint| eligible(endpoint)).collect();
        (!eligible.is_empty()).then(|| eligible[turn % eligible.len()])
    };
    pick(&|endpoint| endpoint.ready).or_else(|| pick(&|endpoint| endpoint.serving && endpoint.terminating))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn slice(conditions: &[serde_json::Value]) -> EndpointSlice {
        let endpoints: Vec<_> = conditions
            .iter()
            .enumerate()
            .map(|(index, conditions)| {
                json!({ "addresses": [format!("10.1.1.{index}")], "conditions": conditions,
                        "targetRef": { "kind": "Pod", "name": format!("pod-{index}") } })
            })
            .collect();
        serde_json::from_value(json!({
            "metadata": {}, "addressType": "IPv4", "endpoints": endpoints,
            "ports": [{ "name": "http", "port": 8080 }],
        }))
        .unwrap()
    }

    #[test]
    fn ready_ones_come_first_then_those_that_serve_while_they_terminate() {
        let ready = json!({ "ready": true, "serving": true, "terminating": false });
        let unready = json!({ "ready": false, "serving": false, "terminating": false });
        let going = json!({ "ready": false, "serving": true, "terminating": true });
        let dead = json!({ "ready": false, "serving": false, "terminating": true });
        for (why, conditions, expected) in [
            ("nothing there", vec![], vec![]),
            ("only unready ones", vec![unready.clone(), dead.clone()], vec![]),
            ("a ready one", vec![going.clone(), ready.clone(), unready.clone()], vec!["pod-1"]),
            ("none ready, one going", vec![unready, going, dead], vec!["pod-1"]),
            ("no conditions mean ready", vec![json!({}), ready], vec!["pod-0", "pod-1"]),
        ] {
            let slices = [slice(&conditions)];
            let endpoints = of_slices(slices.iter(), "http");
            let mut chosen: Vec<&str> =
                (0..4).filter_map(|turn| choose(&endpoints, turn)).map(|endpoint| endpoint.pod.as_str()).collect();
            chosen.sort_unstable();
            chosen.dedup();
            assert_eq!(chosen, expected, "{why}");
        }
    }

    #[test]
    fn a_port_is_known_by_its_name() {
        let slices = [slice(&[json!({})])];
        assert_eq!(of_slices(slices.iter(), "http")[0].port, 8080);
        assert_eq!(of_slices(slices.iter(), "metrics"), []);
    }
}
