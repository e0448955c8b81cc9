//! Where the webhook's certificates come from.

use serde::Deserialize;

/// Certificates.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Certs {
    /// Where they come from.
    #[serde(default)]
    pub mode: CertsMode,
    /// The Secret that holds the CA, in Belay's own namespace (mode auto). Belay creates it.
    #[serde(default)]
    pub secret_name: String,
    /// cert-manager's cainjector writes the `caBundle` of the webhook configurations, and Belay does not (mode
    /// certManager).
    #[serde(default)]
    pub ca_injector: bool,
    /// DNS names by which the API server calls the webhook.
    pub dns_names: Vec<String>,
}

/// Where certificates come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CertsMode {
    /// Belay's own authority, and a leaf that each replica signs for itself.
    #[default]
    Auto,
    /// Files that cert-manager keeps.
    CertManager,
    /// Files of a Secret that somebody else keeps.
    ExistingSecret,
}

impl Certs {
    /// # Errors
    /// The key with the bad value, and what is wrong with it.
    pub(super) fn check(&self) -> Result<(), (&'static str, String)> {
        if self.dns_names.is_empty() {
            let problem = "must list at least one name, as belay-webhook.belay-system.svc";
            return Err(("certs.dnsNames", problem.to_owned()));
        }
        if self.mode == CertsMode::Auto && self.secret_name.is_empty() {
            let problem =
                "must name the Secret that Belay keeps its authority in, as belay-ca, where certs.mode is auto";
            return Err(("certs.secretName", problem.to_owned()));
        }
        if self.mode != CertsMode::Auto && !self.secret_name.is_empty() {
            let problem =
                "names the Secret of Belay's own authority, which it makes where certs.mode is auto: remove it";
            return Err(("certs.secretName", problem.to_owned()));
        }
        if self.ca_injector && self.mode != CertsMode::CertManager {
            let problem = "is for certs.mode certManager: else nobody would write the caBundle";
            return Err(("certs.caInjector", problem.to_owned()));
        }
        Ok(())
    }
}
