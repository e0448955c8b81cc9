//! What the targets begin with: things that stand elsewhere in the repository and are not kept here a second time.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The targets.
pub const TARGETS: [&str; 4] = ["review", "answer", "config", "expression"];

/// Reviews that an API server sent.
const REVIEWS: &str = "tests/fixtures/admission-reviews";
/// What the chart makes of its default values; a configuration among it.
const CHART: &str = "tests/chart/golden/default.yaml";
/// Lists of busy rules.
const PRESETS: &str = "charts/belay/files/presets";

/// The seeds of a target, each with a name, from the repository at this path. Empty for a target that there is not.
///
/// # Errors
/// When what they are made of cannot be read.
pub fn seeds(repository: &Path, target: &str) -> io::Result<Vec<(String, Vec<u8>)>> {
    match target {
        "review" | "answer" => reviews(repository),
        "config" => configurations(repository),
        "expression" => expressions(repository),
        _ => Ok(Vec::new()),
    }
}

/// The recorded reviews; that of an eviction for other pods of the cache, too, and as a bind.
fn reviews(repository: &Path) -> io::Result<Vec<(String, Vec<u8>)>> {
    let mut all = read_all(&repository.join(REVIEWS))?;
    let recorded = all.iter().find(|(name, _)| name == "pod-eviction-by-kubectl-drain.json");
    let eviction = recorded.map(|(_, text)| String::from_utf8_lossy(text).into_owned()).unwrap_or_default();
    for pod in ["busy-1", "idle-1", "bare-1"] {
        all.push((pod.to_owned(), eviction.replace("web-d7f965486-ppzlz", pod).into_bytes()));
    }
    let bind = r#""target": {"kind": "Node", "name": "node-2"}, "deleteOptions""#;
    let bind = eviction.replace("web-d7f965486-ppzlz", "many-1").replace(r#""deleteOptions""#, bind);
    all.push(("bind".to_owned(), bind.into_bytes()));
    Ok(all)
}

/// The files of a folder, in the order of their names.
fn read_all(folder: &Path) -> io::Result<Vec<(String, Vec<u8>)>> {
    let mut paths: Vec<PathBuf> = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
    paths.sort();
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    paths.iter().map(|path| Ok((name(path), fs::read(path)?))).collect()
}

/// The default configuration, and it with each preset.
fn configurations(repository: &Path) -> io::Result<Vec<(String, Vec<u8>)>> {
    let chart = fs::read_to_string(repository.join(CHART))?;
    let lines = chart.lines().skip_while(|line| *line != "  config.yaml: |").skip(1);
    // A literal block ends where a line is indented less.
    let lines = lines.map_while(|line| if line.is_empty() { Some("") } else { line.strip_prefix("    ") });
    let plain: Vec<&str> = lines.collect();
    let plain = plain.join("\n") + "\n";
    let mut all = vec![("default.yaml".to_owned(), plain.clone().into_bytes())];
    // The chart keeps the section away while it is off.
    let plain: Vec<&str> = plain.split_inclusive('\n').collect();
    let others = sections(&plain).into_iter().filter(|section| !section.starts_with("busyHints:")).collect::<String>();
    for (name, rules) in read_all(&repository.join(PRESETS))? {
        let rules = String::from_utf8_lossy(&rules).replace('\n', "\n    ");
        all.push((name, format!("{others}busyHints:\n  enabled: true\n  rules:\n    {rules}\n").into_bytes()));
    }
    Ok(all)
}

/// The parts of a YAML map that each begin with a key of its own.
fn sections(lines: &[&str]) -> Vec<String> {
    let mut sections: Vec<String> = Vec::new();
    for line in lines {
        match sections.last_mut() {
            Some(section) if line.starts_with([' ', '\n', '#']) => section.push_str(line),
            _ => sections.push((*line).to_owned()),
        }
    }
    sections
}

/// Every `when` of the presets, as it is written on its line or on those below it.
fn expressions(repository: &Path) -> io::Result<Vec<(String, Vec<u8>)>> {
    let mut all = Vec::new();
    for (name, preset) in read_all(&repository.join(PRESETS))? {
        let preset = String::from_utf8_lossy(&preset).into_owned();
        let mut lines = preset.lines().peekable();
        while let Some(line) = lines.next() {
            let Some((before, written)) = line.split_once("when: ") else { continue };
            let quote = |text: &&str| text.len() > 1 && text.starts_with(['\'', '"']);
            let mut text = match Some(written.trim()).filter(quote) {
                Some(quoted) => quoted[1..quoted.len() - 1].to_owned(),
                None => written.trim_start_matches(['>', '|', '-']).trim().to_owned(),
            };
            let is_more = |line: &&str| line.len() - line.trim_start().len() > before.len();
            while let Some(more) = lines.next_if(is_more) {
                text = format!("{text} {}", more.trim());
            }
            all.push((format!("{name}-{}", all.len()), text.trim().as_bytes().to_vec()));
        }
    }
    Ok(all)
}
