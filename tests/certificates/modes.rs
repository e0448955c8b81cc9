//! From one mode to another and back, by `helm upgrade`, under load.

use anyhow::ensure;
use belay_e2e::world::{Namespace, test_alone};
use serde_json::{Value, json};

use crate::authorities::Authority;
use crate::cert_manager::CertManager;
use crate::hammer::Hammer;
use crate::stage::{read, served_by, serves, trusted_are, values, victim, write};

/// The Secrets of cert-manager's certificates: the authority and the leaf.
const AUTHORITY: &str = "belay-webhook-ca";
const LEAF: &str = "belay-webhook-tls";

const SECRET: &str = "somebody-elses";

fn mode(certs: &Value) -> Value {
    values(&json!({ "certs": certs }))
}

#[test]
fn no_call_fails_on_the_way_from_mode_to_mode_and_while_cert_manager_renews() {
    test_alone("modes", async |ns: &Namespace| {
        let belay = ns.cluster().install_belay(mode(&json!({}))).await?;
        let victim = victim(ns).await?;
        let hammer = Hammer::start(ns, &victim).await?;
        let seen = hammer.seen();
        hammer.goes_on(ns, "the start").await?;
        let own = String::from_utf8(read(ns, "belay-ca").await?["ca.crt"].clone())?;
        let cert_manager = CertManager::play(ns).await?;

        belay.upgrade(mode(&json!({ "mode": "certManager", "certManager": { "caInjector": false } }))).await?;
        let issued = String::from_utf8(read(ns, AUTHORITY).await?["tls.crt"].clone())?;
        trusted_are(ns, seen, &[&issued, &own]).await?;
        serves(ns, &belay, seen, &read(ns, LEAF).await?["tls.crt"]).await?;
        hammer.goes_on(ns, "the change to cert-manager, with what was trusted before").await?;

        belay.upgrade(mode(&json!({ "mode": "certManager" }))).await?;
        trusted_are(ns, seen, &[&issued]).await?;
        hammer.goes_on(ns, "the change to the cainjector").await?;

        let before = read(ns, LEAF).await?["tls.crt"].clone();
        cert_manager.renew(LEAF).await?;
        let renewed = read(ns, LEAF).await?["tls.crt"].clone();
        ensure!(before != renewed, "nothing was renewed");
        serves(ns, &belay, seen, &renewed).await?;
        hammer.goes_on(ns, "a renewal by cert-manager").await?;

        let theirs = Authority::new("somebody else")?;
        write(ns, SECRET, theirs.pair()?).await?;
        belay.upgrade(mode(&json!({ "mode": "existingSecret", "existingSecret": { "name": SECRET } }))).await?;
        trusted_are(ns, seen, &[&theirs.pem(), &issued]).await?;
        serves(ns, &belay, seen, &read(ns, SECRET).await?["tls.crt"]).await?;
        hammer.goes_on(ns, "the change to an existing Secret").await?;

        // The Secret of the first authority is still there, and knows none of what is trusted now.
        belay.upgrade(mode(&json!({}))).await?;
        trusted_are(ns, seen, &[&own, &theirs.pem(), &issued]).await?;
        served_by(ns, &belay, seen, own.as_bytes()).await?;
        hammer.goes_on(ns, "the change back to an authority of Belay's own").await?;
        eprintln!("through it all: {}", hammer.so_far());
        Ok(())
    });
}
