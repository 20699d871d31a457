//! Files and functions stay small enough to read at one go.

use super::SourceFile;

/// Longest file of code, in lines.
pub const FILE_LINES_MAX: usize = 600;
/// Longest function, in lines, from its signature to its closing brace.
pub const FUNCTION_LINES_MAX: usize = 70;

/// Breaches in one file. Tests and generated files are as long as their subject.
pub fn check(file: &SourceFile) -> Vec<String> {
    let path = file.path.as_str();
    if is_test(path) || is_generated(path) {
        return Vec::new();
    }
    let functions = match path.rsplit_once('.') {
        Some((_, "rs")) => rust_functions(&file.text),
        Some((_, "py")) => python_functions(&file.text),
        Some((_, "c" | "h" | "p4" | "sv")) => Vec::new(),
        _ => return Vec::new(),
    };
    let mut breaches = Vec::new();
    let line_count = file.text.lines().count();
    if line_count > FILE_LINES_MAX {
        breaches.push(format!(
            "{path}: {line_count} lines, at most {FILE_LINES_MAX}: split it by concept; tests go to a file of their own"
        ));
    }
    let too_long = |function: &Function| function.line_count > FUNCTION_LINES_MAX;
    breaches.extend(functions.iter().filter(|function| too_long(function)).map(|function| {
        format!(
            "{path}:{}: function `{}` has {} lines, at most {FUNCTION_LINES_MAX}: give its parts names of their own",
            function.line, function.name, function.line_count
        )
    }));
    breaches
}

/// True for test code, by its place.
pub fn is_test(path: &str) -> bool {
    path.split('/').any(|part| part == "tests") || path.ends_with("/tests.rs") || path.ends_with("_test.py")
}

fn is_generated(path: &str) -> bool {
    path.ends_with("/generated.rs") || path.ends_with("/_generated.py")
}

struct Function {
    name: String,
    /// Where it starts, from 1.
    line: usize,
    line_count: usize,
}

/// Functions of a file that rustfmt has laid out: one ends at the first closing brace in its own column.
fn rust_functions(text: &str) -> Vec<Function> {
    let lines: Vec<_> = text.lines().collect();
    let mut functions = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let Some(name) = rust_function_name(line) else { continue };
        let indent = &line[..line.len() - line.trim_start().len()];
        let ends = |end: &&str| end.strip_prefix(indent) == Some("}") || end.strip_prefix(indent) == Some(";");
        let on_one_line = line.ends_with('}') || line.ends_with(';');
        let below = lines[index..].iter().position(ends).unwrap_or(0);
        let line_count = if on_one_line { 1 } else { below + 1 };
        functions.push(Function { name, line: index + 1, line_count });
    }
    functions
}

fn rust_function_name(line: &str) -> Option<String> {
    let mut words = line.split_whitespace();
    let mut word = words.next()?;
    while matches!(word, "pub" | "const" | "async" | "unsafe" | "extern" | "\"C\"") || word.starts_with("pub(") {
        word = words.next()?;
    }
    if word != "fn" {
        return None;
    }
    let name: String = words.next()?.chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect();
    (!name.is_empty()).then_some(name)
}

/// Functions of a Python file: one ends before the next line that is indented no deeper than its `def`.
fn python_functions(text: &str) -> Vec<Function> {
    let lines: Vec<_> = text.lines().collect();
    let mut functions = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let body = line.trim_start();
        let Some(rest) = body.strip_prefix("def ").or_else(|| body.strip_prefix("async def ")) else { continue };
        let indent = line.len() - body.len();
        let outside = |later: &&str| {
            let start = later.trim_start();
            // A signature over several lines closes in the column of its `def`.
            !start.is_empty() && later.len() - start.len() <= indent && !start.starts_with(')')
        };
        let end = lines[index + 1..].iter().position(outside).map_or(lines.len(), |below| index + 1 + below);
        let last = lines[index..end].iter().rposition(|line| !line.trim().is_empty()).unwrap_or(0);
        let name = rest.split('(').next().unwrap_or(rest).to_owned();
        functions.push(Function { name, line: index + 1, line_count: last + 1 });
    }
    functions
}
