//! The names that an expression takes from outside, and where they stand in its text.

use std::collections::BTreeSet;

use cel::common::ast::{Expr, IdedExpr};

use super::shape::parts;

/// The names that an expression takes from outside. (The parser's own list also has the names of loops.)
#[derive(Default)]
pub(super) struct Names {
    pub(super) variables: BTreeSet<String>,
    pub(super) functions: BTreeSet<String>,
}

impl Names {
    pub(super) fn of(expression: &IdedExpr) -> Self {
        let mut names = Self::default();
        names.collect(expression, &mut Vec::new());
        names
    }

    fn collect<'e>(&mut self, expression: &'e IdedExpr, bound: &mut Vec<&'e str>) {
        let before = bound.len();
        match &expression.expr {
            Expr::Ident(name) if !bound.contains(&name.as_str()) => {
                self.variables.insert(name.clone());
            }
            // Operators are calls of names that are none.
            Expr::Call(call) if call.func_name.chars().all(is_part) => {
                self.functions.insert(call.func_name.clone());
            }
            Expr::Struct(object) => {
                self.variables.insert(object.type_name.clone());
            }
            Expr::Comprehension(one) => {
                self.collect(&one.iter_range, bound);
                self.collect(&one.accu_init, bound);
                bound.extend([&*one.iter_var, &*one.accu_var].into_iter().chain(one.iter_var2.as_deref()));
                for part in [&one.loop_cond, &one.loop_step, &one.result] {
                    self.collect(part, bound);
                }
                bound.truncate(before);
                return;
            }
            _ => {}
        }
        for part in parts(expression) {
            self.collect(part, bound);
        }
    }
}

/// Line and column, from 1, of a name's first occurrence: as a function where it is `called`, else as a variable.
pub(super) fn position(text: &str, name: &str, called: bool) -> (usize, usize) {
    let stands = |(_, word, is_field, is_called): &(usize, &str, bool, bool)| {
        *word == name && *is_called == called && (called || !is_field)
    };
    let found = words(text).into_iter().find(stands).map(|(at, ..)| at);
    let at = found.or_else(|| text.find(name)).unwrap_or_default();
    let before = text.get(..at).unwrap_or_default();
    let line = before.rsplit('\n').next().unwrap_or_default();
    (before.matches('\n').count() + 1, line.chars().count() + 1)
}

/// The words of a text with where they begin, whether a dot stands before, and whether they are called. Literals and
/// comments have none.
fn words(text: &str) -> Vec<(usize, &str, bool, bool)> {
    let mut words = Vec::new();
    let mut rest = text;
    let mut last = ' ';
    while let Some(first) = rest.chars().next() {
        let at = text.len() - rest.len();
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if matches!(first, '\'' | '"') {
            literal(rest, first, matches!(last, 'r' | 'R'))
        } else if is_part(first) {
            rest.find(|next: char| !is_part(next)).unwrap_or(rest.len())
        } else {
            first.len_utf8()
        };
        let (word, after) = rest.split_at_checked(length).unwrap_or((rest, ""));
        if is_part(first) && !first.is_ascii_digit() {
            words.push((at, word, last == '.', after.trim_start().starts_with('(')));
        }
        if !first.is_whitespace() {
            last = word.chars().next_back().unwrap_or(last);
        }
        rest = after;
    }
    words
}

/// Length of the literal that the text begins with.
fn literal(text: &str, quote: char, raw: bool) -> usize {
    let triple = [quote; 3].iter().collect::<String>();
    let end = if text.starts_with(&triple) { triple } else { quote.to_string() };
    let mut at = end.len();
    while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
        if rest.starts_with(&end) {
            return at + end.len();
        }
        let escaped = !raw && rest.starts_with('\\');
        at += rest.chars().take(1 + usize::from(escaped)).map(char::len_utf8).sum::<usize>();
    }
    text.len()
}

fn is_part(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}
