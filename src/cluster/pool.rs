//! Values that many objects have alike, kept once.

use std::collections::HashSet;
use std::hash::Hash;
use std::sync::Arc;

use belay_decide::cost::cluster::{KnownPod, Labels};
use belay_decide::view::{NodeView, PodView, ReplicaSetView};
use parking_lot::Mutex;

/// So many are kept before it is asked whether anybody still has them.
const FEW: usize = 1024;

/// A pool of values.
#[derive(Debug)]
pub struct Pool<T: ?Sized>(Mutex<Inner<T>>);

#[derive(Debug)]
struct Inner<T: ?Sized> {
    all: HashSet<Arc<T>>,
    /// When so many are kept, those that nobody has any more go.
    purge_at: usize,
}

impl<T: ?Sized> Default for Pool<T> {
    fn default() -> Self {
        Self(Mutex::new(Inner { all: HashSet::new(), purge_at: FEW }))
    }
}

impl<T: Eq + Hash + ?Sized> Pool<T> {
    /// The one that is like this.
    pub fn share(&self, value: &Arc<T>) -> Arc<T> {
        let mut inner = self.0.lock();
        if let Some(shared) = inner.all.get(value) {
            return Arc::clone(shared);
        }
        if inner.all.len() >= inner.purge_at {
            inner.all.retain(|kept| Arc::strong_count(kept) > 1);
            // Half of them are new before it is asked again, so that asking costs each new one little.
            inner.purge_at = FEW.max(inner.all.len() * 2);
        }
        inner.all.insert(Arc::clone(value));
        Arc::clone(value)
    }

    fn keep_once(&self, value: &mut Arc<T>) {
        *value = self.share(value);
    }
}

/// What pods, nodes and ReplicaSets say alike: names of nodes and namespaces, UIDs of ReplicaSets, hashes of templates,
/// labels. Each pod is seen by two caches, each node is named by thirty pods. What comes through here is kept once, from
/// the moment on that it is projected: a list of the whole cluster would need room for all of it otherwise.
#[derive(Debug, Default)]
pub struct Alike {
    texts: Pool<str>,
    labels: Pool<Labels>,
}

impl Alike {
    /// A pod as both caches see it, or as one of them does.
    pub fn pod(&self, view: Option<&mut PodView>, known: Option<&mut KnownPod>) {
        let once = |text: &mut Arc<str>| self.texts.keep_once(text);
        let known = known.map(|known| {
            self.labels.keep_once(&mut known.labels);
            &mut known.pod
        });
        match (view, known) {
            (Some(view), known) => {
                once(&mut view.namespace);
                [&mut view.node, &mut view.replica_set, &mut view.template_hash].into_iter().flatten().for_each(once);
                let Some(pod) = known else { return };
                pod.namespace = Arc::clone(&view.namespace);
                pod.name = Arc::clone(&view.name);
                pod.uid = Arc::clone(&view.uid);
                pod.node.clone_from(&view.node);
                // One cache may leave the owner out.
                pod.set.iter_mut().for_each(once);
            }
            (None, Some(pod)) => {
                once(&mut pod.namespace);
                [&mut pod.node, &mut pod.set].into_iter().flatten().for_each(once);
            }
            (None, None) => {}
        }
    }

    /// A node, whose name its pods say.
    pub fn node(&self, view: &mut NodeView) {
        self.texts.keep_once(&mut view.name);
    }

    /// A ReplicaSet, whose UID and hash its pods say.
    pub fn replica_set(&self, view: &mut ReplicaSetView) {
        self.set(&mut view.uid);
        view.template_hash.iter_mut().for_each(|hash| self.texts.keep_once(hash));
    }

    /// A ReplicaSet's UID, which its pods say.
    pub fn set(&self, uid: &mut Arc<str>) {
        self.texts.keep_once(uid);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cluster::clock::Clock;
    use crate::cluster::project_cost::{self, LeftOut};
    use crate::cluster::{project, subset::PodSubset};

    #[test]
    fn alike_values_are_one_and_those_that_nobody_has_go() {
        let pool = Pool::default();
        let one = pool.share(&Arc::new(1));
        assert!(Arc::ptr_eq(&one, &pool.share(&Arc::new(1))));
        for other in 2..=3 * FEW {
            pool.share(&Arc::new(other));
        }
        assert!(pool.0.lock().all.len() <= FEW);
        assert!(Arc::ptr_eq(&one, &pool.share(&Arc::new(1))));
    }

    #[test]
    fn two_pods_and_both_caches_have_their_texts_in_common() {
        let alike = Alike::default();
        let see = |name: &str| {
            let pod: PodSubset = serde_json::from_value(json!({
                "metadata": {"namespace": "shop", "name": name, "uid": name, "labels": {"pod-template-hash": "abc"},
                    "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-abc", "uid": "set",
                        "controller": true}]},
                "spec": {"nodeName": "n1"},
            }))
            .unwrap();
            let mut view = project::pod(&pod, true);
            let mut known = project_cost::pod(&pod, &LeftOut::default(), Clock::wall());
            let before = (view.clone(), known.clone());
            alike.pod(Some(&mut view), Some(&mut known));
            assert_eq!((&view, &known), (&before.0, &before.1), "nothing is said otherwise");
            (view, known)
        };
        let ((one, of_one), (other, of_other)) = (see("web-1"), see("web-2"));
        let texts = |view: &PodView| [view.node.clone(), view.replica_set.clone(), view.template_hash.clone()];
        let pairs = texts(&one).into_iter().zip(texts(&other)).map(|(one, other)| one.zip(other).unwrap());
        for (one, other) in pairs.chain([(one.namespace.clone(), other.namespace.clone())]) {
            assert!(Arc::ptr_eq(&one, &other), "{one}");
        }
        let pod = &of_one.pod;
        let pairs = [
            (&one.namespace, &pod.namespace),
            (&one.name, &pod.name),
            (&one.uid, &pod.uid),
            (one.node.as_ref().unwrap(), pod.node.as_ref().unwrap()),
            (one.replica_set.as_ref().unwrap(), pod.set.as_ref().unwrap()),
        ];
        for (view, known) in pairs {
            assert!(Arc::ptr_eq(view, known), "{view}");
        }
        assert!(Arc::ptr_eq(&of_one.labels, &of_other.labels));
        // One that only the deletion costs see, and a node.
        let mut alone = of_other.clone();
        alone.pod.node = Some("n1".into());
        alike.pod(None, Some(&mut alone));
        let mut node = NodeView { name: "n1".into(), ..NodeView::default() };
        alike.node(&mut node);
        for name in [alone.pod.node.as_ref().unwrap(), &node.name] {
            assert!(Arc::ptr_eq(name, one.node.as_ref().unwrap()));
        }
    }
}
