//! `belay check-config`: says what is wrong with a configuration file, before a cluster does.

use std::path::Path;

use crate::config::Config;

pub(super) fn run(file: &Path) -> anyhow::Result<()> {
    Config::load(file)?;
    println!("{}: good", file.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_rules_are_checked_as_the_servers_check_them() {
        let folder = std::env::temp_dir().join(format!("belay-check-config-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("config.yaml");
        let check = |when: &str| {
            let text = format!(
                "certs: {{secretName: ca, dnsNames: [belay.svc]}}
webhookConfigurations: {{validating: b, mutating: b}}
busyHints:
  enabled: true
  rules: [{{name: one, podSelector: {{matchLabels: {{a: b}}}}, states: [{{state: Busy, when: \"{when}\"}}]}}]"
            );
            std::fs::write(&file, text).unwrap();
            run(&file).map_err(|error| format!("{error:#}"))
        };
        assert_eq!(check("has(pod.spec)"), Ok(()));
        let problem = check("has(owner.spec)").unwrap_err();
        let _ = std::fs::remove_dir_all(&folder);
        assert!(problem.contains("config.yaml is wrong: busyHints.rules: rule one: states[0] (Busy)"), "{problem}");
    }
}
