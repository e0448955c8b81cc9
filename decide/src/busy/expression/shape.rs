//! What an expression is made of, how deep it nests, and how much work it may be.

use cel::common::ast::{ComprehensionExpr, EntryExpr, Expr, IdedExpr, operators};

use super::MAX_ENTRIES;

/// What an evaluation may take, in visits of parts and copies of values, on lists of [`MAX_ENTRIES`] entries. A million
/// takes about a tenth of a second. It leaves room for one `exists` within another over lists of the cluster, and for a
/// `map` over one; a `map` within a loop, whose result is copied with every entry, took 45 s.
const MAX_STEPS: u64 = 2_000_000;

/// Values in something that is read, where it is copied. (How much an expression reads in all is bounded besides.)
const READ_SIZE: u64 = 8;

/// A regular expression is compiled each time.
const MATCH_STEPS: u64 = 50;

/// How deep an expression nests.
pub(super) fn depth(expression: &IdedExpr) -> usize {
    parts(expression).into_iter().map(depth).max().unwrap_or_default() + 1
}

/// It may be more work than any honest expression is.
pub(super) fn is_too_much(expression: &IdedExpr) -> bool {
    Work::of(expression).steps > MAX_STEPS
}

/// What an evaluation takes at most, and what comes of it.
#[derive(Clone, Copy)]
struct Work {
    steps: u64,
    /// Values in the result.
    size: u64,
    /// Entries of the result, where it is a list or a map.
    length: u64,
}

impl Work {
    /// Each part is looked at once: they nest.
    fn of(expression: &IdedExpr) -> Self {
        let parts: Vec<Self> = parts(expression).into_iter().map(Self::of).collect();
        let steps = parts.iter().map(|part| part.steps).fold(1, u64::saturating_add);
        match &expression.expr {
            Expr::Unspecified | Expr::Literal(_) => Self::single(steps),
            // What a loop has collected so far; counted with the loop.
            Expr::Ident(name) if name.starts_with('@') => Self::single(steps),
            Expr::Ident(_) | Expr::Select(_) => Self::read(steps),
            Expr::Call(call) => Self::of_call(&call.func_name, &parts, steps),
            Expr::List(_) | Expr::Map(_) | Expr::Struct(_) => {
                let size = parts.iter().map(|part| part.size).fold(1, u64::saturating_add);
                Self { steps, size, length: parts.len() as u64 }
            }
            Expr::Comprehension(one) => Self::of_loop(one, &parts),
        }
    }

    /// One value, and no list.
    fn single(steps: u64) -> Self {
        Self { steps, size: 1, length: 0 }
    }

    /// Something of the cluster.
    fn read(steps: u64) -> Self {
        Self { steps, size: READ_SIZE, length: MAX_ENTRIES as u64 }
    }

    fn of_call(name: &str, parts: &[Self], steps: u64) -> Self {
        match (name, parts) {
            (operators::ADD, [left, right]) => Self {
                steps,
                size: left.size.saturating_add(right.size),
                length: left.length.saturating_add(right.length),
            },
            (operators::CONDITIONAL, [_, one, other]) => {
                Self { steps, size: one.size.max(other.size), length: one.length.max(other.length) }
            }
            (operators::INDEX, _) => Self::read(steps),
            ("matches", _) => Self::single(steps.saturating_add(MATCH_STEPS)),
            _ => Self::single(steps),
        }
    }

    fn of_loop(one: &ComprehensionExpr, parts: &[Self]) -> Self {
        let [range, _, condition, step, _] = parts else { return Self::single(u64::MAX) };
        let each = step.steps.saturating_add(condition.steps);
        let visits = range.steps.saturating_add(range.length.saturating_mul(each));
        if !matches!(one.accu_init.expr, Expr::List(_)) {
            return Self::single(visits);
        }
        // With each entry of `map` and `filter` all that was collected before is copied.
        let size = range.length.saturating_mul(step.size);
        Self { steps: visits.saturating_add(range.length.saturating_mul(size)), size, length: range.length }
    }
}

/// The expressions that an expression is made of.
pub(in crate::busy) fn parts(expression: &IdedExpr) -> Vec<&IdedExpr> {
    match &expression.expr {
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => Vec::new(),
        Expr::Select(select) => vec![&select.operand],
        Expr::Call(call) => call.target.as_deref().into_iter().chain(&call.args).collect(),
        Expr::List(list) => list.elements.iter().collect(),
        Expr::Map(map) => map.entries.iter().flat_map(|entry| entry_parts(&entry.expr)).collect(),
        Expr::Struct(object) => object.entries.iter().flat_map(|entry| entry_parts(&entry.expr)).collect(),
        Expr::Comprehension(one) => {
            vec![&one.iter_range, &one.accu_init, &one.loop_cond, &one.loop_step, &one.result]
        }
    }
}

fn entry_parts(entry: &EntryExpr) -> Vec<&IdedExpr> {
    match entry {
        EntryExpr::StructField(field) => vec![&field.value],
        EntryExpr::MapEntry(entry) => vec![&entry.key, &entry.value],
    }
}

/// The same, to be changed.
pub(super) fn parts_mut(expression: &mut IdedExpr) -> Vec<&mut IdedExpr> {
    match &mut expression.expr {
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => Vec::new(),
        Expr::Select(select) => vec![&mut select.operand],
        Expr::Call(call) => call.target.as_deref_mut().into_iter().chain(&mut call.args).collect(),
        Expr::List(list) => list.elements.iter_mut().collect(),
        Expr::Map(map) => map.entries.iter_mut().flat_map(|entry| entry_parts_mut(&mut entry.expr)).collect(),
        Expr::Struct(object) => object.entries.iter_mut().flat_map(|entry| entry_parts_mut(&mut entry.expr)).collect(),
        Expr::Comprehension(one) => {
            let one = &mut **one;
            vec![&mut one.iter_range, &mut one.accu_init, &mut one.loop_cond, &mut one.loop_step, &mut one.result]
        }
    }
}

fn entry_parts_mut(entry: &mut EntryExpr) -> Vec<&mut IdedExpr> {
    match entry {
        EntryExpr::StructField(field) => vec![&mut field.value],
        EntryExpr::MapEntry(entry) => vec![&mut entry.key, &mut entry.value],
    }
}
