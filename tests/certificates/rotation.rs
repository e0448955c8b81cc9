//! Belay's own certificates (`certs.mode: auto`) through everything that happens to them in years, in minutes.

use anyhow::{Context as _, ensure};
use belay_e2e::world::{Namespace, test_alone};
use jiff::SignedDuration;
use serde_json::json;
use webhook_certs::CaSecret;
use webhook_certs::leaf::LEAF_LIFETIME;

use crate::authorities;
use crate::hammer::Hammer;
use crate::stage::{
    PATIENCE, SYSTEM, ago, read, rolling_restart, served_by, set, system_namespace, trusted, values, victim, write,
};
use crate::support::SOON;

/// The Secret of the authority.
const SECRET: &str = "belay-ca";

async fn authority(ns: &Namespace) -> anyhow::Result<CaSecret> {
    Ok(CaSecret::parse(&read(ns, SECRET).await?)?)
}

#[test]
fn no_call_fails_while_leaves_are_renewed_the_authority_is_rotated_and_replicas_are_restarted() {
    test_alone("rotation", async |ns: &Namespace| {
        let first = authorities::of_an_hour()?;
        system_namespace(ns).await?;
        write(ns, SECRET, first.to_data()).await?;
        let belay = ns.cluster().install_belay(values(&json!({}))).await?;
        let victim = victim(ns).await?;
        let hammer = Hammer::start(ns, &victim).await?;
        let seen = hammer.seen();
        trusted(ns, seen, &first.bundle_pem()).await?;
        hammer.goes_on(ns, "the start").await?;

        let replicas = belay.webhook_pods().await?;
        ns.eventually("both replicas have renewed their leaves twice", PATIENCE, async || {
            let counts: Vec<_> = replicas.iter().map(|pod| seen.leaves_of(&pod.name)).collect();
            ensure!(replicas.len() == 2 && counts.iter().all(|count| *count > 2), "{counts:?} leaves were seen");
            Ok(())
        })
        .await?;
        served_by(ns, &belay, seen, &first.bundle_pem()).await?;
        hammer.goes_on(ns, "renewals of leaves").await?;

        let restored = authorities::of_last_year()?;
        write(ns, SECRET, restored.to_data()).await?;
        let published = ns
            .eventually("the next authority is published", SOON, async || {
                let secret = authority(ns).await?;
                secret.next().is_some().then_some(secret).context("there is no next authority yet")
            })
            .await?;
        let next = published.next().context("it was just there")?.certificate().clone();
        ensure!(published.active() == restored.active(), "the next authority signs before it is trusted everywhere");
        let served: Vec<_> = published.retiring().collect();
        ensure!(served == [first.active().certificate()], "replicas are served by an authority that nobody trusts");
        trusted(ns, seen, &published.bundle_pem()).await?;
        hammer.goes_on(ns, "Publish").await?;

        rolling_restart(ns).await?;
        hammer.goes_on(ns, "a rolling restart between Publish and Activate").await?;

        ns.eventually("the next authority is activated", PATIENCE, async || {
            let secret = authority(ns).await?;
            ensure!(secret.active().certificate() == &next, "the old one still signs");
            Ok(())
        })
        .await?;
        hammer.goes_on(ns, "Activate").await?;
        served_by(ns, &belay, seen, next.to_pem().as_bytes()).await?;
        hammer.goes_on(ns, "the replicas' move to the new authority").await?;

        // The last leaf of an old authority is a week from its end; for the Secret that week is over.
        set(ns, SECRET, "observed-at", &ago(LEAF_LIFETIME + SignedDuration::from_mins(1))).await?;
        trusted(ns, seen, next.to_pem().as_bytes()).await?;
        let retired = authority(ns).await?;
        ensure!(retired.retiring().next().is_none(), "an old authority is still trusted");
        hammer.goes_on(ns, "Retire").await?;

        rolling_restart(ns).await?;
        served_by(ns, &belay, seen, next.to_pem().as_bytes()).await?;
        hammer.goes_on(ns, "a rolling restart").await?;
        let connections = ns.cluster().connections_to(SYSTEM, "belay-webhook");
        eprintln!("through it all: {}, over {connections} connections of the API server", hammer.so_far());
        Ok(())
    });
}
