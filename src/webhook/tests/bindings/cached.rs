//! What binds leave in the cache, and the ranks there.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_burst_of_binds_needs_no_write_afterwards() {
    for is_seen in [true, false] {
        let stage = Arc::new(stage().await);
        let names: Vec<_> = (0..30).map(|at| format!("level-{at}")).collect();
        for name in &names {
            stage.store(pod("level", name));
            if is_seen {
                stage.see(&pod("level", name));
            }
        }
        // All at once, as the scheduler does.
        let nodes = ["n1", "n2", "kept"];
        let binds = names.iter().zip(nodes.into_iter().cycle()).map(|(name, node)| {
            let (stage, name) = (Arc::clone(&stage), name.clone());
            tokio::spawn(async move {
                let value = stage.bind(&bind(&name, node)).await.expect("it is to be spread");
                (name, node, value)
            })
        });
        let bound = futures::future::try_join_all(binds).await.unwrap();
        let values: BTreeSet<_> = bound.iter().map(|(_, _, value)| *value).collect();
        assert_eq!(values.len(), 30, "each height of each zone has a value of its own: {bound:?}");
        assert_eq!((stage.asked().len(), stage.stamps()), (30, "30".to_owned()), "one small read for each");

        // What the controller makes of it.
        let mut controller = Cluster::new(belay_decide::cost::Options::default(), SignedDuration::from_mins(10));
        let now = Clock::wall();
        let ranked = cluster(belay_decide::cost::Options::default());
        for name in ["n1", "n2", "kept"] {
            controller.put_node(ranked.node(name).unwrap().clone());
        }
        controller.put_set(belay_decide::cost::cluster::KnownSet {
            set: ranked.set("level").unwrap().clone(),
            deployment: None,
        });
        for (name, node, value) in &bound {
            let record = json!({COST: value.to_string()}).to_string();
            let merge = json!({"spec": {"nodeName": node},
                "metadata": {"annotations": {COST: value.to_string(), MANAGED: record}}});
            let raw = merged(pod("level", name), &merge);
            let known = project_cost::pod(&serde_json::from_value(raw).unwrap(), &LeftOut::default(), now);
            controller.put_pod(known, now);
        }
        controller.look(now);
        assert_eq!(controller.asking(), BTreeSet::new(), "seen as created: {is_seen}");
    }
}

#[tokio::test(start_paused = true)]
async fn ranks_are_kept_up_to_date_once_all_watches_are_filled_and_until_the_end() {
    let costs = Costs::new(Cluster::new(belay_decide::cost::Options::default(), SignedDuration::from_mins(10)));
    let (health, stop) = (Health::new("nodes", Gauge::default()), CancellationToken::new());
    let keeping = tokio::spawn(costs.clone().keep_ranked(vec![health.clone()], stop.clone()));
    let mut sink = CostSink(Some(costs.clone()));
    let node = |name: &str| {
        let raw = json!({"metadata": {"name": name, "creationTimestamp": "2026-01-01T00:00:00Z"}});
        project_cost::node(&serde_json::from_value(raw).unwrap(), Clock::wall())
    };
    let ranked = async |names: &[&str]| {
        let all = async {
            while !costs.read(|cluster| cluster.ranking().order().eq(names.iter().copied())) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), all).await.expect("the ranks are not as they ought to be");
    };
    sink.apply(node("n2"));
    tokio::time::sleep(Duration::from_millis(300)).await;
    ranked(&[]).await;
    health.absent();
    ranked(&["n2"]).await;
    sink.replace(vec![node("n1"), node("n2"), node("n3")]);
    ranked(&["n1", "n2", "n3"]).await;
    sink.delete(node("n2"));
    ranked(&["n1", "n3"]).await;
    stop.cancel();
    tokio::time::timeout(Duration::from_secs(20), keeping).await.expect("it goes on").unwrap();
}
