use std::time::Duration;
use belay_e2e::karpenter::{Consolidation, Karpenter, Pool};
use belay_e2e::world::{self, Cluster, Namespace, Options};

#[test]
fn pending_pods_get_nodes() {
    let cluster = Cluster::start(Options::default()).expect("cluster");
    world::test_on(&cluster, "karpenter", async |ns: &Namespace| {
        let t = std::time::Instant::now();
        let karpenter = Karpenter::start(ns.cluster(), &["PodDeletionCostManagement=true"]).await?;
        eprintln!("started {:?}", t.elapsed());
        let pool = Pool::create(ns, Consolidation::WhenEmptyOrUnderutilized, Duration::from_secs(3600)).await?;
        let mut webs = vec![];
        for n in ["web", "api"] {
            webs.push(ns.web(n).replicas(50).edit(|d| {
                let c = &mut d.spec.template.spec.as_mut().unwrap().containers[0];
                c.resources = Some(serde_json::from_value(serde_json::json!({"requests": {"cpu": "380m"}})).unwrap());
            }).create().await?);
        }
        for web in &webs { web.available(Duration::from_secs(90)).await?; }
        eprintln!("available {:?}", t.elapsed());
        let nodes = pool.initialized(10, Duration::from_secs(60)).await?;
        eprintln!("nodes {nodes:?} {:?}", t.elapsed());
        eprintln!("{}", ns.kubectl(["get","pods","-o","wide"]).ok().await?);
        let mut last = 0;
        while t.elapsed() < Duration::from_secs(200) {
            let n = Karpenter::pod_writes(ns.cluster())?.len();
            if n != last { eprintln!("{:?} writes {n} decisions {:?}", t.elapsed(), karpenter.decisions()?); last = n;}
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        karpenter.stop().await;
        Ok(())
    });
}
