//! Certificates of a Secret that somebody else keeps (`certs.mode: existingSecret`): pairs that signed themselves.
//! Pairs of an authority are in [`modes`](crate::modes).

use anyhow::ensure;
use belay_e2e::world::{Namespace, test_alone};
use serde_json::json;
use webhook_certs::secret::SecretData;

use crate::authorities::self_signed;
use crate::hammer::Hammer;
use crate::stage::{PATIENCE, read, rolling_restart, serves, system_namespace, trusted_are, values, victim, write};

const SECRET: &str = "somebody-elses";

const REFUSED: &str = "belay_certificate_files_refused_total";

#[test]
fn no_call_fails_while_a_secret_of_somebody_elses_is_damaged_and_replaced_with_its_authority() {
    test_alone("existing", async |ns: &Namespace| {
        let (first, second) = (self_signed()?, self_signed()?);
        let authority = |data: &SecretData| String::from_utf8(data["ca.crt"].clone());
        let (old, new) = (authority(&first)?, authority(&second)?);
        system_namespace(ns).await?;
        write(ns, SECRET, first.clone()).await?;
        let mode = json!({ "certs": { "mode": "existingSecret", "existingSecret": { "name": SECRET } } });
        let belay = ns.cluster().install_belay(values(&mode)).await?;
        let victim = victim(ns).await?;
        let hammer = Hammer::start(ns, &victim).await?;
        let seen = hammer.seen();
        trusted_are(ns, seen, &[&old]).await?;
        serves(ns, &belay, seen, &first["tls.crt"]).await?;
        hammer.goes_on(ns, "the start").await?;

        // Written by halves: the certificate is another one, and the key still the old one's.
        let mut halves = first.clone();
        halves.insert("tls.crt".to_owned(), second["tls.crt"].clone());
        write(ns, SECRET, halves).await?;
        ns.eventually("both replicas refuse a pair that is none", PATIENCE, async || {
            for pod in belay.webhook_pods().await? {
                let refused = belay.counted(std::slice::from_ref(&pod), REFUSED, "").await?;
                ensure!(refused == 1 && pod.ready, "{} has refused {refused}, ready: {}", pod.name, pod.ready);
            }
            Ok(())
        })
        .await?;
        hammer.goes_on(ns, "a damaged Secret").await?;

        // Everything at once, and without a bundle of both: whoever sees it first, the others are served by the old one.
        write(ns, SECRET, second.clone()).await?;
        trusted_are(ns, seen, &[&new, &old]).await?;
        hammer.goes_on(ns, "the new authority's trust").await?;
        serves(ns, &belay, seen, &second["tls.crt"]).await?;
        hammer.goes_on(ns, "the replicas' move to the new certificate").await?;
        rolling_restart(ns).await?;
        serves(ns, &belay, seen, &second["tls.crt"]).await?;
        hammer.goes_on(ns, "a rolling restart").await?;
        ensure!(read(ns, SECRET).await? == second, "somebody wrote to the Secret");
        let unneeded = ns.cluster().kubectl(["-n", "belay-system", "get", "secret", "belay-ca", "--ignore-not-found"]);
        ensure!(unneeded.ok().await?.is_empty(), "an authority was made that nobody needs");
        eprintln!("through it all: {}", hammer.so_far());
        Ok(())
    });
}
