//! The part of the configuration that is in force at this moment, in the shape that decisions read, and the task
//! that keeps it up to date with the file.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use belay_decide::doom::Signals;
use belay_decide::handover::HandoverRules;
use belay_decide::hold::Rules;
use belay_decide::policy::DefaultPolicy;
use jiff::SignedDuration;
use tokio_util::sync::CancellationToken;

use crate::config::Config;

/// How often the file is read. The kubelet takes up to a minute to bring a changed ConfigMap into the pod, so
/// reading more often gains nothing; comparing contents also sees changes that file notifications miss.
const POLL: Duration = Duration::from_secs(5);

/// What can change while the program runs.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The eviction hold is on.
    pub hold_enabled: bool,
    /// What the eviction decision needs.
    pub rules: Rules,
    /// The platform's default.
    pub default_policy: DefaultPolicy,
    /// What the handover loop goes by.
    pub handovers: HandoverRules,
    /// What nodes are judged by besides what is known to everybody.
    pub signals: Signals,
    /// Nodes are ranked, so deletion costs are not left to busy rules alone. As it was at the start, when it was decided
    /// whether they are: a leader that is about to be replaced must not take off what it writes itself.
    pub costs_are_ranked: bool,
}

impl Settings {
    /// The settings of a configuration, for a program in this namespace.
    pub fn of(config: &Config, own_namespace: &str) -> Self {
        let history_ttl = SignedDuration::try_from(config.eviction_hold.history_ttl).unwrap_or(SignedDuration::MAX);
        let doom = &config.eviction_hold.doom;
        Self {
            hold_enabled: config.eviction_hold.enabled,
            rules: config.rules(own_namespace),
            default_policy: config.default_policy(),
            handovers: HandoverRules {
                history_ttl,
                abandon_after: config.eviction_hold.scale.abandon_after(),
                signal_stability: doom.stability(),
                soft_signals: doom.soft_signals,
            },
            signals: doom.signals(),
            costs_are_ranked: config.deletion_cost.enabled,
        }
    }
}

/// Reads the file again whenever it changes, until `stop`. A bad file is reported once and the old settings stay.
pub async fn follow(
    path: PathBuf,
    mut current: Config,
    own_namespace: String,
    settings: Arc<ArcSwap<Settings>>,
    changed: impl Fn(),
    stop: CancellationToken,
) {
    let mut reported: Option<String> = None;
    // What was read last: the same text need not be understood again, nor its expressions compiled.
    let mut seen: Option<String> = None;
    loop {
        tokio::select! {
            () = tokio::time::sleep(POLL) => {}
            () = stop.cancelled() => return,
        }
        let read = Config::read(&path);
        if read.as_ref().ok().is_some_and(|text| seen.as_ref() == Some(text)) {
            continue;
        }
        seen = read.as_ref().ok().cloned();
        match read.and_then(|text| Config::parse(&path, &text)) {
            Ok(config) if config == current => reported = None,
            Ok(config) => {
                let costs_are_ranked = settings.load().costs_are_ranked;
                settings.store(Arc::new(Settings { costs_are_ranked, ..Settings::of(&config, &own_namespace) }));
                changed();
                let fixed = Config { eviction_hold: config.eviction_hold.clone(), ..current.clone() } != config;
                if fixed {
                    tracing::warn!(
                        "configuration reloaded; changes outside evictionHold take effect at the next start"
                    );
                } else {
                    tracing::info!("configuration reloaded");
                }
                current = config;
                reported = None;
            }
            Err(error) => {
                let error = error.to_string();
                if reported.as_ref() != Some(&error) {
                    tracing::error!(%error, "bad new configuration; the old one stays in force");
                }
                reported = Some(error);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[tokio::test(start_paused = true)]
    async fn the_file_changes_what_holds_read_and_not_whether_nodes_are_ranked() {
        let text = |hold: bool, cost: bool| {
            format!("{}evictionHold: {{enabled: {hold}}}\ndeletionCost: {{enabled: {cost}}}\n", testing::NEEDED)
        };
        for ranked in [false, true] {
            let path = std::env::temp_dir().join(format!("belay-settings-{}-{ranked}.yaml", std::process::id()));
            std::fs::write(&path, text(true, ranked)).unwrap();
            let config = Config::load(&path).unwrap();
            let settings = Arc::new(ArcSwap::from_pointee(Settings::of(&config, "belay-system")));
            assert_eq!((settings.load().hold_enabled, settings.load().costs_are_ranked), (true, ranked));
            std::fs::write(&path, text(false, !ranked)).unwrap();
            let stop = CancellationToken::new();
            let stopping = stop.clone();
            follow(path.clone(), config, "belay-system".into(), Arc::clone(&settings), move || stopping.cancel(), stop)
                .await;
            std::fs::remove_file(&path).unwrap();
            assert_eq!((settings.load().hold_enabled, settings.load().costs_are_ranked), (false, ranked));
        }
    }
}
