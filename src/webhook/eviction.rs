//! `POST /validate/eviction`: may this pod be evicted now?

use belay_decide::hold::{self, Answer as Decided};

use super::Handlers;
use super::review::{Answer, Eviction, Refusal, Request};

/// Answers one eviction review.
pub fn answer(handlers: &Handlers, request: &Request<'_>) -> Answer {
    let eviction: Eviction<'_> =
        request.object.and_then(|object| serde_json::from_str(object.get()).ok()).unwrap_or_default();
    let meta = eviction.metadata.as_ref();
    let name = request.name.as_deref().or(meta.and_then(|meta| meta.name.as_deref())).unwrap_or_default();
    let namespace =
        request.namespace.as_deref().or(meta.and_then(|meta| meta.namespace.as_deref())).unwrap_or_default();
    let asked = hold::Request {
        namespace,
        name,
        uid: eviction.uid(),
        dry_run: request.dry_run == Some(true) || eviction.is_dry_run(),
        evictor: request.user(),
    };

    let settings = handlers.settings.load();
    if !settings.hold_enabled {
        return Answer::default();
    }
    let now = handlers.clock.now();
    let decision = handlers.index.victim(namespace, name, &settings.default_policy, handlers.is_synced(), |facts| {
        let mut memory = handlers.victims.lock();
        let remembered = facts.victim.and_then(|victim| memory.get(&victim.uid));
        let decision = hold::decide(&asked, &settings.rules, facts, remembered.as_ref(), now);
        if let (Some(victim), Some(new)) = (facts.victim, decision.memory) {
            memory.put(&victim.uid, new);
        }
        decision
    });
    if let Some(spec) = decision.record {
        handlers.recorder.record(namespace, spec);
    }
    match decision.answer {
        Decided::Allow(allowed) => {
            handlers.metrics.eviction("Allow", allowed.reason());
            tracing::debug!(%namespace, pod = %name, reason = allowed.reason(), "eviction let through");
            Answer { warnings: allowed.warning().into_iter().collect(), ..Answer::default() }
        }
        Decided::Hold(held) => {
            handlers.metrics.eviction("Hold", held.reason);
            tracing::debug!(%namespace, pod = %name, reason = held.reason, "eviction held");
            Answer {
                refusal: Some(Refusal {
                    message: held.message,
                    cause: held.reason,
                    awaited: held.awaited,
                    retry_after_seconds: held.retry_after_seconds,
                }),
                ..Answer::default()
            }
        }
    }
}
