//! Which fields of an object the expressions of a rule read.
//!
//! A pod has tens of kilobytes, of which an expression reads a few words. Only those are kept in memory, and only a
//! change of those is a change: the cache stays lean and the controller quiet.

use std::collections::BTreeMap;

use cel::common::ast::{Expr, IdedExpr, LiteralValue};
use serde_json::{Map, Value as Json};

use super::expression::{ORDERED, parts};

/// Fields of an object. A list is as its elements: `Some` of a list keeps those fields of each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fields {
    /// Everything below.
    All,
    /// These; without any, only whether the value is there.
    Some(BTreeMap<String, Fields>),
}

impl Default for Fields {
    fn default() -> Self {
        Self::Some(BTreeMap::new())
    }
}

impl Fields {
    /// Keeps the fields at this path with everything below.
    pub fn keep(&mut self, path: &[&str]) {
        self.add(path, Self::All);
    }

    /// What any of them keeps.
    pub fn union<'a>(all: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut union = Self::default();
        for fields in all {
            union.merge(fields);
        }
        union
    }

    fn merge(&mut self, other: &Self) {
        match (&mut *self, other) {
            (Self::Some(mine), Self::Some(theirs)) => {
                for (key, below) in theirs {
                    mine.entry(key.clone()).or_default().merge(below);
                }
            }
            _ => *self = Self::All,
        }
    }

    fn add(&mut self, path: &[&str], below: Self) {
        let Self::Some(fields) = self else { return };
        match path.split_first() {
            Some((first, rest)) => fields.entry((*first).to_owned()).or_default().add(rest, below),
            None if below == Self::All => *self = Self::All,
            None => {}
        }
    }

    /// The object with nothing but these fields.
    pub fn of(&self, json: &Json) -> Json {
        match (self, json) {
            (Self::Some(fields), Json::Object(object)) => {
                let kept = fields.iter().filter_map(|(key, below)| Some((key.clone(), below.of(object.get(key)?))));
                Json::Object(kept.collect::<Map<_, _>>())
            }
            (Self::Some(_), Json::Array(items)) => Json::Array(items.iter().map(|item| self.of(item)).collect()),
            _ => json.clone(),
        }
    }
}

/// Adds what an expression reads of a variable.
pub(super) fn collect(expression: &IdedExpr, variable: &str, fields: &mut Fields) {
    let mut scope = vec![(variable.to_owned(), Some(Vec::new()))];
    value_of(expression, &mut scope, fields);
}

/// Where a name of the expression leads to below the variable; names of loops lead into what they loop over, which may
/// be something else.
type Scope = Vec<(String, Option<Vec<String>>)>;

/// The expression's value is used as a whole.
fn value_of(expression: &IdedExpr, scope: &mut Scope, fields: &mut Fields) {
    if let Some(path) = path_of(expression, scope, fields) {
        fields.keep(&borrowed(&path));
    }
}

/// The path that an expression stands for, where it stands for one; what it reads on the way there is added.
fn path_of(expression: &IdedExpr, scope: &mut Scope, fields: &mut Fields) -> Option<Vec<String>> {
    match &expression.expr {
        Expr::Ident(name) => scope.iter().rev().find(|(known, _)| known == name)?.1.clone(),
        Expr::Select(select) => {
            let mut path = path_of(&select.operand, scope, fields)?;
            path.push(select.field.clone());
            if select.test {
                fields.add(&borrowed(&path), Fields::default());
                return None;
            }
            Some(path)
        }
        // What a loop goes through.
        Expr::Call(call) if call.func_name == ORDERED => path_of(call.args.first()?, scope, fields),
        Expr::Call(call) if call.func_name == cel::common::ast::operators::INDEX => {
            let [operand, index] = call.args.as_slice() else { return parts_of(expression, scope, fields) };
            match &index.expr {
                Expr::Literal(LiteralValue::String(key)) => {
                    let mut path = path_of(operand, scope, fields)?;
                    path.push(key.inner().to_owned());
                    Some(path)
                }
                // An element of a list: lists are as their elements.
                Expr::Literal(LiteralValue::Int(_)) => path_of(operand, scope, fields),
                _ => parts_of(expression, scope, fields),
            }
        }
        Expr::Comprehension(one) => {
            let over = path_of(&one.iter_range, scope, fields);
            value_of(&one.accu_init, scope, fields);
            let before = scope.len();
            if let Some(path) = &over {
                // That there are elements counts, even where nothing of them is read.
                fields.add(&borrowed(path), Fields::default());
            }
            let names = [Some(&one.iter_var), one.iter_var2.as_ref()];
            scope.extend(names.into_iter().flatten().map(|name| (name.clone(), over.clone())));
            for part in [&one.loop_cond, &one.loop_step, &one.result] {
                value_of(part, scope, fields);
            }
            scope.truncate(before);
            None
        }
        _ => parts_of(expression, scope, fields),
    }
}

fn parts_of(expression: &IdedExpr, scope: &mut Scope, fields: &mut Fields) -> Option<Vec<String>> {
    for part in parts(expression) {
        value_of(part, scope, fields);
    }
    None
}

fn borrowed(path: &[String]) -> Vec<&str> {
    path.iter().map(String::as_str).collect()
}
