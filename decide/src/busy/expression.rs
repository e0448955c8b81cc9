//! One CEL expression of a rule: compiled within bounds, evaluated within bounds.
//!
//! The `cel` crate knows no cost budget, and its parser recurses deeply. So an expression is bounded before it is
//! parsed (length), after (depth, nested loops, names), and whenever it runs (size of what it reads): by then a
//! single evaluation is at most some thousand steps. Expressions come from the platform's configuration, not from
//! the users of a cluster; the bounds keep an honest mistake from becoming an outage.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, LazyLock};

use cel::common::ast::{EntryExpr, Expr, IdedExpr, LiteralValue};
use cel::{Context, Env, Program, Value};
use jiff::Timestamp;
use serde_json::Value as Json;
use thiserror::Error;

use super::fields::{self, Fields};

/// Longest expression, in bytes. The longest of the presets has about 400.
pub const MAX_LENGTH: usize = 2048;

/// Deepest nesting. Measured with little optimisation, an evaluation of depth 25 takes less than 128 KiB of the 2 MiB
/// that a thread has. (Chains of `&&` and `||` are balanced by the parser and hardly count.)
const MAX_DEPTH: usize = 32;

/// Loops within loops (`exists` within `exists`).
const MAX_LOOPS: usize = 2;

/// Longest list or map that an expression reads. With [`MAX_LOOPS`] it bounds the steps; no status or pod that a rule
/// could be about has more entries.
const MAX_ENTRIES: usize = 256;

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

/// Making the environment is most of the cost of a small evaluation.
static ENVIRONMENT: LazyLock<Arc<Env>> = LazyLock::new(|| Arc::new(Env::stdlib()));

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
    /// It loops too often within loops.
    #[error("it has more than {MAX_LOOPS} loops (exists, all, map, filter) within each other")]
    TooManyLoops,
    /// A name that means nothing here.
    #[error("column {column}: {name} is not known; an expression reads {known}")]
    UnknownName {
        /// From 1.
        column: usize,
        /// The name.
        name: String,
        /// What may be read in this rule.
        known: String,
    },
    /// A function that does not exist.
    #[error("column {column}: there is no function {name}")]
    UnknownFunction {
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
    #[error("a list or map that it reads has more than {MAX_ENTRIES} entries")]
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
    program: Program,
    reads: BTreeSet<&'static str>,
}

impl Expression {
    /// Compiles; `known` are the variables that the rule gives it.
    pub fn compile(text: &str, known: &[&'static str]) -> Result<Self, CompileError> {
        if text.len() > MAX_LENGTH {
            return Err(CompileError::TooLong(text.len()));
        }
        let program = parse(text)?;
        let mut names = Names::default();
        names.collect(program.expression(), &mut Vec::new());
        let unknown = names.variables.iter().filter(|name| !known.contains(&name.as_str()));
        // The first mistake of the text is told first.
        if let Some((column, name)) = unknown.map(|name| (position(text, name), name)).min() {
            return Err(CompileError::UnknownName { column, name: name.clone(), known: known.join(", ") });
        }
        let unknown = names.functions.iter().filter(|name| !FUNCTIONS.contains(&name.as_str()));
        if let Some((column, name)) = unknown.map(|name| (position(text, name), name)).min() {
            return Err(CompileError::UnknownFunction { column, name: name.clone() });
        }
        let reads = known.iter().copied().filter(|name| names.variables.contains(*name)).collect();
        match &program.expression().expr {
            Expr::Literal(LiteralValue::Boolean(_)) => {}
            Expr::Literal(_) | Expr::List(_) | Expr::Map(_) | Expr::Struct(_) => return Err(CompileError::Constant),
            _ => {}
        }
        Ok(Self { text: text.to_owned(), program, reads })
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
        fields::collect(self.program.expression(), variable, fields);
    }

    /// Evaluates.
    pub fn evaluate(&self, inputs: &Inputs<'_>) -> Result<bool, EvaluationError> {
        let linked = inputs.linked.iter().copied();
        if inputs.linked.len() > MAX_ENTRIES || linked.chain([inputs.pod]).chain(inputs.owner).any(is_too_large) {
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
        match self.program.execute(&context) {
            Ok(Value::Bool(answer)) => Ok(answer),
            Ok(other) => Err(EvaluationError::NotABoolean(other.type_of().to_string())),
            Err(error) => Err(EvaluationError::Failed(error.to_string())),
        }
    }
}

/// Parses on a stack of its own that no input of the allowed length can exhaust, and throws away what is too deep
/// there as well: freeing it recurses too.
fn parse(text: &str) -> Result<Program, CompileError> {
    let owned = text.to_owned();
    let parse = move || {
        let program = match catch_unwind(|| Program::compile(&owned)) {
            Ok(Ok(program)) => program,
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
        let shape = Shape::of(program.expression());
        if shape.depth > MAX_DEPTH {
            Err(CompileError::TooDeep)
        } else if shape.loops > MAX_LOOPS {
            Err(CompileError::TooManyLoops)
        } else {
            Ok(program)
        }
    };
    let thread = std::thread::Builder::new().name("cel".to_owned()).stack_size(PARSER_STACK).spawn(parse);
    thread.ok().and_then(|thread| thread.join().ok()).unwrap_or(Err(CompileError::Unreadable))
}

/// The parser lists every token that it would have liked; that helps nobody.
fn brief(message: &str) -> String {
    let (brief, _) = message.split_once(" expecting {").unwrap_or((message, ""));
    brief.trim_start_matches("Syntax error: ").to_owned()
}

/// Column of a name's first whole occurrence in the text, from 1.
fn position(text: &str, name: &str) -> usize {
    let is_part = |character: char| character.is_alphanumeric() || character == '_';
    let starts = text.match_indices(name).map(|(at, _)| at);
    let whole = starts.filter(|at| {
        let before = text.get(..*at).and_then(|before| before.chars().next_back());
        let after = text.get(at + name.len()..).and_then(|after| after.chars().next());
        !before.is_some_and(|c| is_part(c) || c == '.') && !after.is_some_and(is_part)
    });
    let at = whole.min().or_else(|| text.find(name)).unwrap_or_default();
    text.get(..at).map_or(0, |before| before.chars().count()) + 1
}

/// How deep an expression nests, and how many loops lie within each other.
#[derive(Clone, Copy, Default)]
struct Shape {
    depth: usize,
    loops: usize,
}

impl Shape {
    fn of(expression: &IdedExpr) -> Self {
        let parts = parts(expression).into_iter().map(Self::of);
        let within = parts.fold(Self::default(), |most, part| Self {
            depth: most.depth.max(part.depth),
            loops: most.loops.max(part.loops),
        });
        let is_loop = matches!(expression.expr, Expr::Comprehension(_));
        Self { depth: within.depth + 1, loops: within.loops + usize::from(is_loop) }
    }
}

/// The names that an expression takes from outside. (The parser's own list also has the names of loops.)
#[derive(Default)]
struct Names {
    variables: BTreeSet<String>,
    functions: BTreeSet<String>,
}

impl Names {
    fn collect<'e>(&mut self, expression: &'e IdedExpr, bound: &mut Vec<&'e str>) {
        let before = bound.len();
        match &expression.expr {
            Expr::Ident(name) if !bound.contains(&name.as_str()) => {
                self.variables.insert(name.clone());
            }
            Expr::Call(call) if call.func_name.starts_with(|first: char| first.is_alphabetic()) => {
                self.functions.insert(call.func_name.clone());
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

/// The expressions that an expression is made of.
pub(super) fn parts(expression: &IdedExpr) -> Vec<&IdedExpr> {
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

fn is_too_large(json: &Json) -> bool {
    match json {
        Json::Array(items) => items.len() > MAX_ENTRIES || items.iter().any(is_too_large),
        Json::Object(entries) => entries.len() > MAX_ENTRIES || entries.values().any(is_too_large),
        _ => false,
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
