//! Which fields of an object the expressions of a rule read.
//!
//! A pod has tens of kilobytes, of which an expression reads a few words. Only those are kept in memory, and only a
//! change of those is a change: the cache stays lean and the controller quiet.

use std::collections::BTreeMap;

use cel::common::ast::{Expr, IdedExpr, LiteralValue, operators};
use serde_json::{Map, Value as Json};

use super::expression::{ORDERED, parts};

/// Fields of an object, or of a list or map of objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fields {
    /// Everything below.
    All,
    /// Some of it.
    Some(Kept),
}

/// What is kept below a value; without any, only whether the value is there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Of an object, these fields.
    fields: BTreeMap<String, Fields>,
    /// Of a list, all elements and this of each. (Of a map everything: its keys count.)
    each: Option<Box<Fields>>,
}

/// One step down.
#[derive(Clone, Copy)]
enum Step<'a> {
    Field(&'a str),
    Element,
}

impl Default for Fields {
    fn default() -> Self {
        Self::Some(Kept::default())
    }
}

impl Fields {
    /// Keeps the fields at this path with everything below.
    pub fn keep(&mut self, path: &[&str]) {
        let path: Vec<_> = path.iter().map(|field| Step::Field(field)).collect();
        self.add(&path, Self::All);
    }

    /// What any of them keeps.
    pub fn union<'a>(all: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut union = Self::default();
        for fields in all {
            union.merge(fields);
        }
        union
    }

    /// Of a list of these fields, those of one element.
    pub(super) fn of_element(self) -> Self {
        match self {
            Self::All => Self::All,
            Self::Some(kept) => kept.each.map(|each| *each).unwrap_or_default(),
        }
    }

    fn merge(&mut self, other: &Self) {
        match (&mut *self, other) {
            (Self::Some(mine), Self::Some(theirs)) => {
                for (key, below) in &theirs.fields {
                    mine.fields.entry(key.clone()).or_default().merge(below);
                }
                if let Some(each) = &theirs.each {
                    mine.each.get_or_insert_default().merge(each);
                }
            }
            _ => *self = Self::All,
        }
    }

    fn add(&mut self, path: &[Step<'_>], below: Self) {
        let Self::Some(kept) = self else { return };
        match path.split_first() {
            Some((Step::Field(first), rest)) => {
                kept.fields.entry((*first).to_owned()).or_default().add(rest, below);
            }
            Some((Step::Element, rest)) => kept.each.get_or_insert_default().add(rest, below),
            None if below == Self::All => *self = Self::All,
            None => {}
        }
    }

    /// The object with nothing but these fields.
    pub fn of(&self, json: &Json) -> Json {
        match (self, json) {
            (Self::Some(Kept { fields, each: None }), Json::Object(object)) => {
                let kept = fields.iter().filter_map(|(key, below)| Some((key.clone(), below.of(object.get(key)?))));
                Json::Object(kept.collect::<Map<_, _>>())
            }
            (Self::Some(kept), Json::Array(items)) => {
                let each = kept.each.as_deref().map(|each| items.iter().map(|item| each.of(item)).collect());
                Json::Array(each.unwrap_or_default())
            }
            _ => json.clone(),
        }
    }
}

/// Adds what an expression reads of a variable.
pub(super) fn collect(expression: &IdedExpr, variable: &str, fields: &mut Fields) {
    let mut scope = vec![(variable, Some(Vec::new()))];
    value_of(expression, &mut scope, fields);
}

/// Where a name of the expression leads to below the variable; names of loops lead into what they loop over, which may
/// be something else.
type Scope<'e> = Vec<(&'e str, Option<Vec<Step<'e>>>)>;

/// The expression's value is used as a whole.
fn value_of<'e>(expression: &'e IdedExpr, scope: &mut Scope<'e>, fields: &mut Fields) {
    if let Some(path) = path_of(expression, scope, fields) {
        fields.add(&path, Fields::All);
    }
}

/// The path that an expression stands for, where it stands for one; what it reads on the way there is added.
fn path_of<'e>(expression: &'e IdedExpr, scope: &mut Scope<'e>, fields: &mut Fields) -> Option<Vec<Step<'e>>> {
    match &expression.expr {
        Expr::Ident(name) => scope.iter().rev().find(|(known, _)| known == name)?.1.clone(),
        Expr::Select(select) => {
            let mut path = path_of(&select.operand, scope, fields)?;
            path.push(Step::Field(&select.field));
            if select.test {
                fields.add(&path, Fields::default());
                return None;
            }
            Some(path)
        }
        Expr::Call(call) if call.func_name == ORDERED => path_of(call.args.first()?, scope, fields),
        Expr::Call(call) if call.func_name == operators::INDEX => {
            let [operand, index] = call.args.as_slice() else { return parts_of(expression, scope, fields) };
            let step = match &index.expr {
                Expr::Literal(LiteralValue::String(key)) => Step::Field(key.inner()),
                Expr::Literal(LiteralValue::Int(_)) => Step::Element,
                _ => return parts_of(expression, scope, fields),
            };
            let mut path = path_of(operand, scope, fields)?;
            path.push(step);
            Some(path)
        }
        Expr::Call(call) if call.func_name == "size" => {
            let [counted] = parts(expression)[..] else { return parts_of(expression, scope, fields) };
            elements_of(counted, scope, fields);
            None
        }
        Expr::Comprehension(one) => {
            let element = elements_of(&one.iter_range, scope, fields);
            value_of(&one.accu_init, scope, fields);
            let before = scope.len();
            let names = [Some(&one.iter_var), one.iter_var2.as_ref()];
            scope.extend(names.into_iter().flatten().map(|name| (name.as_str(), element.clone())));
            for part in [&one.loop_cond, &one.loop_step, &one.result] {
                value_of(part, scope, fields);
            }
            scope.truncate(before);
            None
        }
        _ => parts_of(expression, scope, fields),
    }
}

/// The elements of an expression's value count, even where nothing of them is read. Says where they are.
fn elements_of<'e>(list: &'e IdedExpr, scope: &mut Scope<'e>, fields: &mut Fields) -> Option<Vec<Step<'e>>> {
    let mut path = path_of(list, scope, fields)?;
    path.push(Step::Element);
    fields.add(&path, Fields::default());
    Some(path)
}

fn parts_of<'e>(expression: &'e IdedExpr, scope: &mut Scope<'e>, fields: &mut Fields) -> Option<Vec<Step<'e>>> {
    for part in parts(expression) {
        value_of(part, scope, fields);
    }
    None
}
