//! One CEL expression of a rule: compiled within bounds, evaluated within bounds.
//!
//! The `cel` crate knows no cost budget, and its parser recurses deeply. So an expression is bounded before it is
//! parsed (length), after (depth, work, names), and whenever it runs (size of what it reads): by then a single
//! evaluation is at most a fraction of a second, mostly some microseconds. Expressions come from the platform's
//! configuration, not from the users of a cluster; the bounds keep an honest mistake from becoming an outage.
//!
//! It also walks through a map in another order each time, so that an expression that fails for one of its keys would
//! fail now and then. Here loops have an order: that of the keys.

mod names;
mod shape;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, LazyLock};

use cel::common::ast::{CallExpr, Expr, IdedExpr, LiteralValue};
use cel::common::types::{self, CelList, CelMap, CelType};
use cel::common::value::Val;
use cel::parser::Parser;
use cel::{Context, Env, ExecutionError, Value};
use jiff::Timestamp;
use serde_json::Value as Json;
use thiserror::Error;

use self::names::{Names, position};
pub(super) use self::shape::parts;
use super::fields::{self, Fields};

/// Longest expression, in bytes. The longest of the presets has about 400.
pub const MAX_LENGTH: usize = 2048;

/// Deepest nesting. Measured with little optimisation, an evaluation of depth 25 takes less than 128 KiB of the 2 MiB
/// that a thread has. (Chains of `&&` and `||` are balanced by the parser and hardly count.)
const MAX_DEPTH: usize = 32;

/// Longest list or map that an expression reads, and what the work of loops is reckoned with. No status or pod that a
/// rule could be about has more entries.
const MAX_ENTRIES: usize = 256;

/// Values in all that an expression reads: 256 pods with 64 fields each, where a whole pod has some hundred.
const MAX_VALUES: usize = 16_384;

/// Longest text of an error that is kept: it stands in answers to drainers and in the status of holds.
const MAX_PROBLEM: usize = 200;

/// What the parser may take: it uses up to 100 KiB for each level of nesting. Only pages that it touches are real, and
/// they are given back at once.
const PARSER_STACK: usize = 256 << 20;

/// The functions and macros of the interpreter, all without effects. (Unknown ones would fail only when first met.)
const FUNCTIONS: &[&str] = &[
    "size",
    "contains",
    "startsWith",
    "endsWith",
    "matches",
    "string",
    "bytes",
    "double",
    "int",
    "uint",
    "type",
    "duration",
    "timestamp",
    "getFullYear",
    "getMonth",
    "getDayOfYear",
    "getDayOfMonth",
    "getDate",
    "getDayOfWeek",
    "getHours",
    "getMinutes",
    "getSeconds",
    "getMilliseconds",
];

/// What an expression may read.
pub(super) const VARIABLES: [&str; 4] = ["pod", "owner", "linked", "now"];

/// The function that puts what a loop goes through in order. No expression can name it.
pub(super) const ORDERED: &str = "@ordered";

/// Making the environment is most of the cost of a small evaluation.
static ENVIRONMENT: LazyLock<Arc<Env>> = LazyLock::new(|| {
    let mut environment = Env::stdlib();
    // It fails for a name that is taken, and this one cannot be.
    let _ = environment.add_overload(ORDERED, "ordered", vec![types::DYN_TYPE], ordered);
    Arc::new(environment)
});

/// Why an expression is not accepted.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CompileError {
    /// It is too long to be looked at.
    #[error("it has {0} bytes; at most {MAX_LENGTH} are allowed")]
    TooLong(usize),
    /// It is not CEL.
    #[error("line {line}, column {column}: {problem}")]
    Syntax {
        /// From 1.
        line: isize,
        /// From 1.
        column: isize,
        /// The parser's words.
        problem: String,
    },
    /// It nests too deeply.
    #[error("it nests deeper than {MAX_DEPTH} levels")]
    TooDeep,
    /// It could take too long.
    #[error(
        "it is too much work on lists of {MAX_ENTRIES} entries: put no map or filter into a loop, no matches into two, and no more than one exists, exists_one or all into another"
    )]
    TooMuchWork,
    /// A name that means nothing here.
    #[error("line {line}, column {column}: {name} is not known; an expression reads {known}")]
    UnknownName {
        /// From 1.
        line: usize,
        /// From 1.
        column: usize,
        /// The name.
        name: String,
        /// What may be read in this rule.
        known: String,
    },
    /// A function that does not exist.
    #[error("line {line}, column {column}: there is no function {name}")]
    UnknownFunction {
        /// From 1.
        line: usize,
        /// From 1.
        column: usize,
        /// Its name.
        name: String,
    },
    /// It can never be true or false.
    #[error("it is a constant and not a condition")]
    Constant,
    /// The parser failed in an unforeseen way.
    #[error("the parser cannot read it")]
    Unreadable,
}

/// Why an expression gave no answer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum EvaluationError {
    /// What it reads is too large.
    #[error(
        "what it reads is too large: {MAX_ENTRIES} entries of a list or map and {MAX_VALUES} values in all are allowed"
    )]
    TooLarge,
    /// It failed, such as for a field that is absent.
    #[error("{0}")]
    Failed(String),
    /// It is neither true nor false.
    #[error("it gave {0} instead of true or false")]
    NotABoolean(String),
    /// The interpreter failed in an unforeseen way.
    #[error("the interpreter failed on it")]
    Broken,
}

/// What an expression is evaluated on.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// The pod.
    pub pod: &'a Json,
    /// Its owner; absent where the rule has none.
    pub owner: Option<&'a Json>,
    /// The pods linked to it.
    pub linked: &'a [&'a Json],
    /// The time.
    pub now: Timestamp,
}

/// A compiled expression.
#[derive(Debug)]
pub struct Expression {
    text: String,
    /// Its loops go through what [`ORDERED`] gives them.
    root: IdedExpr,
    reads: BTreeSet<&'static str>,
}

impl Expression {
    /// Compiles; `known` are the variables that the rule gives it.
    pub fn compile(text: &str, known: &[&'static str]) -> Result<Self, CompileError> {
        if text.len() > MAX_LENGTH {
            return Err(CompileError::TooLong(text.len()));
        }
        let mut root = parse(text)?;
        let names = Names::of(&root);
        let first = |unknown: &mut dyn Iterator<Item = &String>, called| {
            // The first mistake of the text is told first.
            unknown.map(|name| (position(text, name, called), name.clone())).min()
        };
        if let Some(((line, column), name)) =
            first(&mut names.variables.iter().filter(|name| !is_known(known, name)), false)
        {
            return Err(CompileError::UnknownName { line, column, name, known: known.join(", ") });
        }
        if let Some(((line, column), name)) =
            first(&mut names.functions.iter().filter(|name| !FUNCTIONS.contains(&name.as_str())), true)
        {
            return Err(CompileError::UnknownFunction { line, column, name });
        }
        let reads = known.iter().copied().filter(|name| names.variables.contains(*name)).collect();
        match &root.expr {
            Expr::Literal(LiteralValue::Boolean(_)) => {}
            Expr::Literal(_) | Expr::List(_) | Expr::Map(_) => return Err(CompileError::Constant),
            _ => {}
        }
        order(&mut root);
        Ok(Self { text: text.to_owned(), root, reads })
    }

    /// As it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// It reads this variable.
    pub fn reads(&self, variable: &str) -> bool {
        self.reads.contains(variable)
    }

    /// Adds to `fields` what it reads of `variable`.
    pub(super) fn add_fields(&self, variable: &str, fields: &mut Fields) {
        fields::collect(&self.root, variable, fields);
    }

    /// Evaluates.
    pub fn evaluate(&self, inputs: &Inputs<'_>) -> Result<bool, EvaluationError> {
        let mut room = MAX_VALUES;
        let mut all = inputs.linked.iter().copied().chain([inputs.pod]).chain(inputs.owner);
        if inputs.linked.len() > MAX_ENTRIES || !all.all(|json| fits(json, &mut room)) {
            return Err(EvaluationError::TooLarge);
        }
        catch_unwind(AssertUnwindSafe(|| self.run(inputs))).unwrap_or(Err(EvaluationError::Broken))
    }

    fn run(&self, inputs: &Inputs<'_>) -> Result<bool, EvaluationError> {
        let mut context = Context::with_env(Arc::clone(&ENVIRONMENT));
        if self.reads("pod") {
            context.add_variable_from_value("pod", value(inputs.pod));
        }
        if let Some(owner) = inputs.owner.filter(|_| self.reads("owner")) {
            context.add_variable_from_value("owner", value(owner));
        }
        if self.reads("linked") {
            let linked: Vec<_> = inputs.linked.iter().map(|pod| value(pod)).collect();
            context.add_variable_from_value("linked", Value::List(Arc::new(linked)));
        }
        if self.reads("now") {
            let now = chrono::DateTime::from_timestamp(inputs.now.as_second(), 0).unwrap_or_default();
            context.add_variable_from_value("now", Value::Timestamp(now.fixed_offset()));
        }
        match context.resolve(&self.root) {
            Ok(Value::Bool(answer)) => Ok(answer),
            Ok(other) => Err(EvaluationError::NotABoolean(other.type_of().to_string())),
            Err(error) => Err(EvaluationError::Failed(describe(error))),
        }
    }
}

/// One of the variables, or the name of a type.
fn is_known(known: &[&str], name: &str) -> bool {
    known.contains(&name) || CelType::for_ident(name).is_some()
}

/// Parses on a stack of its own that no input of the allowed length can exhaust, and throws away what is too deep
/// there as well: freeing it recurses too.
fn parse(text: &str) -> Result<IdedExpr, CompileError> {
    let owned = text.to_owned();
    let parse = move || {
        let root = match catch_unwind(|| Parser::new().parse(&owned)) {
            Ok(Ok(root)) => root,
            Ok(Err(errors)) if errors.errors.iter().any(|error| error.msg.contains(TOO_DEEP_FOR_PARSER)) => {
                return Err(CompileError::TooDeep);
            }
            Ok(Err(errors)) => {
                let first = errors.errors.into_iter().min_by_key(|error| error.pos);
                return Err(first.map_or(CompileError::Unreadable, |error| CompileError::Syntax {
                    line: error.pos.0,
                    column: error.pos.1,
                    problem: brief(&error.msg),
                }));
            }
            Err(_) => return Err(CompileError::Unreadable),
        };
        if shape::depth(&root) > MAX_DEPTH {
            Err(CompileError::TooDeep)
        } else if shape::is_too_much(&root) {
            Err(CompileError::TooMuchWork)
        } else {
            Ok(root)
        }
    };
    let thread = std::thread::Builder::new().name("cel".to_owned()).stack_size(PARSER_STACK).spawn(parse);
    thread.ok().and_then(|thread| thread.join().ok()).unwrap_or(Err(CompileError::Unreadable))
}

/// The parser's word for an expression beyond its own bound, which is wider than [`MAX_DEPTH`].
const TOO_DEEP_FOR_PARSER: &str = "Recursion limit";

/// The parser lists every token that it would have liked; that helps nobody.
fn brief(message: &str) -> String {
    let (brief, _) = message.split_once(" expecting {").unwrap_or((message, ""));
    one_line(brief.trim_start_matches("Syntax error: "))
}

/// The interpreter's errors show whole values, secrets of the object among them and in another order each time. Their
/// kinds are enough.
fn describe(error: ExecutionError) -> String {
    let of_type = |value: Value| value.type_of().to_string();
    let text = match error {
        ExecutionError::NoSuchKey(key) => format!("there is no {key}"),
        ExecutionError::UndeclaredReference(name) => format!("{name} does not take values of these types"),
        ExecutionError::FunctionError { function, message } => format!("{function}: {message}"),
        ExecutionError::DivisionByZero(_) | ExecutionError::RemainderByZero(_) => "division by zero".to_owned(),
        ExecutionError::Overflow(operator, ..) => format!("overflow in {operator}"),
        ExecutionError::IndexOutOfBounds(_) => "there is no such entry in the list".to_owned(),
        ExecutionError::UnsupportedBinaryOperator(operator, one, other) => {
            format!("{operator} does not take {} and {}", of_type(one), of_type(other))
        }
        ExecutionError::UnexpectedType { want, .. } => format!("a value of another type than {want}"),
        _ => "values of these types cannot be used so".to_owned(),
    };
    one_line(&text)
}

fn one_line(text: &str) -> String {
    let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if flat.chars().count() <= MAX_PROBLEM {
        return flat;
    }
    flat.chars().take(MAX_PROBLEM).chain(['…']).collect()
}

/// Puts [`ORDERED`] around what each loop goes through.
fn order(expression: &mut IdedExpr) {
    if let Expr::Comprehension(one) = &mut expression.expr {
        let range = std::mem::take(&mut one.iter_range);
        let call = CallExpr { func_name: ORDERED.to_owned(), target: None, args: vec![range] };
        one.iter_range = IdedExpr { id: 0, expr: Expr::Call(call) };
    }
    for part in shape::parts_mut(expression) {
        order(part);
    }
}

/// A map's keys in order; whatever else as it is.
fn ordered(args: Vec<Cow<'_, dyn Val>>) -> Result<Cow<'_, dyn Val>, ExecutionError> {
    let range = args.into_iter().next().ok_or(ExecutionError::NoSuchOverload)?;
    let keys = range.downcast_ref::<CelMap>().map(|map| {
        let mut keys: Vec<_> = map.keys().collect();
        keys.sort();
        keys.into_iter().map(|key| key.inner().clone_as_boxed()).collect::<Vec<_>>()
    });
    Ok(keys.map_or(range, |keys| Cow::<dyn Val>::Owned(Box::new(CelList::from(keys)))))
}

/// It is within bounds, and leaves so much room for more.
fn fits(json: &Json, room: &mut usize) -> bool {
    let Some(left) = room.checked_sub(1) else { return false };
    *room = left;
    match json {
        Json::Array(items) => items.len() <= MAX_ENTRIES && items.iter().all(|item| fits(item, room)),
        Json::Object(entries) => entries.len() <= MAX_ENTRIES && entries.values().all(|entry| fits(entry, room)),
        _ => true,
    }
}

fn value(json: &Json) -> Value {
    match json {
        Json::Null => Value::Null,
        Json::Bool(one) => Value::Bool(*one),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(whole), _) => Value::Int(whole),
            (None, Some(large)) => Value::UInt(large),
            (None, None) => Value::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::String(Arc::new(text.clone())),
        Json::Array(items) => Value::List(Arc::new(items.iter().map(value).collect())),
        Json::Object(entries) => {
            let entries = entries.iter().map(|(key, one)| (cel::objects::Key::from(key.as_str()), value(one)));
            Value::Map(cel::objects::Map { map: Arc::new(entries.collect()) })
        }
    }
}
