//! Values that many objects have alike, kept once.

use std::collections::HashSet;
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::Mutex;

/// So many are kept before it is asked whether anybody still has them.
const FEW: usize = 1024;

/// A pool of values.
#[derive(Debug)]
pub struct Pool<T>(Mutex<Inner<T>>);

#[derive(Debug)]
struct Inner<T> {
    all: HashSet<Arc<T>>,
    /// When so many are kept, those that nobody has any more go.
    purge_at: usize,
}

impl<T> Default for Pool<T> {
    fn default() -> Self {
        Self(Mutex::new(Inner { all: HashSet::new(), purge_at: FEW }))
    }
}

impl<T: Eq + Hash> Pool<T> {
    /// The one that is like this.
    pub fn share(&self, value: Arc<T>) -> Arc<T> {
        let mut inner = self.0.lock();
        if let Some(shared) = inner.all.get(&value) {
            return Arc::clone(shared);
        }
        if inner.all.len() >= inner.purge_at {
            inner.all.retain(|kept| Arc::strong_count(kept) > 1);
            // Half of them are new before it is asked again, so that asking costs each new one little.
            inner.purge_at = FEW.max(inner.all.len() * 2);
        }
        inner.all.insert(Arc::clone(&value));
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alike_values_are_one_and_those_that_nobody_has_go() {
        let pool = Pool::default();
        let one = pool.share(Arc::new(1));
        assert!(Arc::ptr_eq(&one, &pool.share(Arc::new(1))));
        for other in 2..=3 * FEW {
            pool.share(Arc::new(other));
        }
        assert!(pool.0.lock().all.len() <= FEW);
        assert!(Arc::ptr_eq(&one, &pool.share(Arc::new(1))));
    }
}
