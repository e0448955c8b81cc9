//! Text for people: headings, lines and tables, as wide as the terminal, in colour where there may be.
//!
//! On a terminal, what does not fit is wrapped, and the last column of a table, where the long reasons stand, moves to
//! lines of its own. Anywhere else each row is one line, for grep. Widths are counted in characters, which for names of
//! Kubernetes are the columns.

use clap::builder::styling::{AnsiColor, Style};

/// Something that is told to people.
pub(super) trait ForPeople {
    /// Writes it.
    fn write(&self, page: &mut Page);
}

/// What a text is about, by which it has its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tone {
    /// What begins a part.
    Head,
    /// It may go.
    Good,
    /// It waits.
    Waiting,
    /// Something is wrong.
    Bad,
}

impl Tone {
    fn style(self) -> Style {
        match self {
            Self::Head => Style::new().bold(),
            Self::Good => AnsiColor::Green.on_default(),
            Self::Waiting => AnsiColor::Yellow.on_default(),
            Self::Bad => AnsiColor::Red.on_default(),
        }
    }
}

/// A row of a table.
#[derive(Debug, Default)]
pub(super) struct Row {
    cells: Vec<String>,
    tone: Option<(usize, Tone)>,
    note: String,
}

impl Row {
    /// With these in its columns.
    pub(super) fn of(cells: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { cells: cells.into_iter().map(|cell| plain(&cell.into())).collect(), ..Self::default() }
    }

    /// With this in the last column, which may be long.
    pub(super) fn note(self, note: impl Into<String>) -> Self {
        Self { note: plain(&note.into()), ..self }
    }

    /// With the column of this number in a tone.
    pub(super) fn toned(self, column: usize, tone: Tone) -> Self {
        Self { tone: Some((column, tone)), ..self }
    }
}

/// What is written so far.
#[derive(Debug)]
pub(super) struct Page {
    /// Of the terminal; absent where there is none.
    width: Option<usize>,
    is_coloured: bool,
    text: String,
}

impl Page {
    pub(super) fn new(width: Option<usize>, is_coloured: bool) -> Self {
        Self { width, is_coloured, text: String::new() }
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// An empty line, before another part.
    pub(super) fn gap(&mut self) {
        self.text.push('\n');
    }

    /// A title, and what stands behind it.
    pub(super) fn heading(&mut self, title: &str, rest: &str) {
        let title = self.painted(&plain(title), Some(Tone::Head));
        self.push(&format!("{title}{}", plain(rest)));
    }

    /// A title, and what stands behind it in a tone.
    pub(super) fn verdict(&mut self, title: &str, verdict: &str, tone: Tone, rest: &str) {
        let title = self.painted(&plain(title), Some(Tone::Head));
        let verdict = self.painted(&plain(verdict), Some(tone));
        self.push(&format!("{title} {verdict}{}", plain(rest)));
    }

    /// A line, this far from the left.
    pub(super) fn line(&mut self, indent: usize, text: &str) {
        self.wrapped(indent, text, None);
    }

    /// A line about what is wrong.
    pub(super) fn problem(&mut self, text: &str) {
        self.wrapped(0, text, Some(Tone::Bad));
    }

    /// A table, two columns from the left. `note` is the head of the last column.
    pub(super) fn table(&mut self, head: &[&str], note: &str, rows: &[Row]) {
        const INDENT: usize = 2;
        if rows.is_empty() {
            return;
        }
        let head = Row::of(head.iter().copied()).note(note);
        let all = || std::iter::once(&head).chain(rows);
        let widths: Vec<usize> = (0..head.cells.len())
            .map(|column| all().map(|row| row.cells.get(column).map_or(0, |cell| columns(cell))).max().unwrap_or(0))
            .collect();
        let of_cells = INDENT + widths.iter().sum::<usize>() + 2 * widths.len().saturating_sub(1);
        let of_notes = all().map(|row| columns(&row.note)).max().unwrap_or(0);
        let fits = |width: usize| self.width.is_none_or(|terminal| width <= terminal);
        let (cells_fit, all_fits) = (fits(of_cells), fits(of_cells + 2 + of_notes));
        for row in all().skip(usize::from(!cells_fit)) {
            if cells_fit {
                let cells = self.cells(row, &widths);
                let note = if all_fits { format!("  {}", row.note) } else { String::new() };
                self.push(&format!("{:INDENT$}{cells}{note}", ""));
            } else {
                self.stacked(INDENT, row);
            }
            if !(all_fits || row.note.is_empty() || std::ptr::eq(row, &raw const head)) {
                self.line(2 * INDENT, &row.note);
            }
        }
    }

    /// The first cell on a line, and the others below.
    fn stacked(&mut self, indent: usize, row: &Row) {
        let Some((first, rest)) = row.cells.split_first() else { return };
        self.line(indent, first);
        let tone = row.tone.map(|(_, tone)| tone);
        self.wrapped(2 * indent, &rest.join("  "), tone);
    }

    fn cells(&self, row: &Row, widths: &[usize]) -> String {
        let cells = row.cells.iter().zip(widths).enumerate().map(|(number, (cell, width))| {
            let tone = row.tone.and_then(|(column, tone)| (column == number).then_some(tone));
            let filler = " ".repeat(width.saturating_sub(columns(cell)));
            self.painted(cell, tone) + &filler
        });
        cells.collect::<Vec<_>>().join("  ")
    }

    fn wrapped(&mut self, indent: usize, text: &str, tone: Option<Tone>) {
        let room = self.width.map(|width| width.saturating_sub(indent));
        for line in wrap(&plain(text), room) {
            let line = self.painted(&line, tone);
            self.push(&format!("{:indent$}{line}", ""));
        }
    }

    fn painted(&self, text: &str, tone: Option<Tone>) -> String {
        match tone.filter(|_| self.is_coloured && !text.is_empty()) {
            Some(tone) => format!("{style}{text}{style:#}", style = tone.style()),
            None => text.to_owned(),
        }
    }

    fn push(&mut self, line: &str) {
        self.text.push_str(line.trim_end());
        self.text.push('\n');
    }
}

/// A text whose control characters are shown instead of obeyed: values of annotations and the like are their owners',
/// and the terminal is an administrator's (kubectl had CVE-2021-25743 for it).
fn plain(text: &str) -> String {
    let shown = |letter: char| match letter {
        _ if letter.is_control() => letter.escape_default().collect(),
        _ => String::from(letter),
    };
    text.chars().map(shown).collect()
}

/// How many columns a text takes.
fn columns(text: &str) -> usize {
    text.chars().count()
}

/// Lines of at most so many columns, broken between words; a word that is longer has a line of its own.
fn wrap(text: &str, room: Option<usize>) -> Vec<String> {
    let Some(room) = room.filter(|room| columns(text) > *room) else { return vec![text.to_owned()] };
    let mut lines = Vec::new();
    let mut line = String::new();
    for word in text.split(' ') {
        if !line.is_empty() && columns(&line) + 1 + columns(word) > room {
            lines.push(std::mem::take(&mut line));
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines.push(line);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: &str = "a reason that takes more room than there is in a terminal of sixty columns";

    fn rows() -> Vec<Row> {
        vec![
            Row::of(["Karpenter", "Stays"]).note(LONG),
            Row::of(["kubectl drain", "Waits"]).note("short").toned(1, Tone::Waiting),
            Row::of(["deletion", "Goes"]),
        ]
    }

    fn table(width: Option<usize>, is_coloured: bool, rows: &[Row]) -> String {
        let mut page = Page::new(width, is_coloured);
        page.table(&["WHO", "POD"], "BECAUSE", rows);
        page.text().to_owned()
    }

    #[test]
    fn without_a_terminal_each_row_is_one_line() {
        let expected = format!(
            "  WHO            POD    BECAUSE\n  Karpenter      Stays  {LONG}\n  kubectl drain  Waits  short\n  deletion       Goes\n"
        );
        assert_eq!(table(None, false, &rows()), expected);
        assert_eq!(table(Some(200), false, &rows()), expected, "as on a terminal that is wide enough");
    }

    #[test]
    fn on_a_narrower_terminal_long_reasons_have_lines_of_their_own() {
        let expected = "  WHO            POD
  Karpenter      Stays
    a reason that takes more room than there is in a
    terminal of sixty columns
  kubectl drain  Waits
    short
  deletion       Goes
";
        assert_eq!(table(Some(60), false, &rows()), expected);
    }

    #[test]
    fn cells_that_do_not_fit_are_stacked() {
        let key = "annotation cluster-autoscaler.kubernetes.io/safe-to-evict";
        let found = table(Some(60), false, &[Row::of([key, "false", "Belay"]).note("about to be true")]);
        assert_eq!(found, format!("  {key}\n    false  Belay\n    about to be true\n"));
    }

    #[test]
    fn colour_moves_no_column_and_is_nowhere_unless_asked_for() {
        let plain = table(None, false, &rows());
        assert!(!plain.contains('\u{1b}'), "{plain:?}");
        let coloured = table(None, true, &rows());
        assert!(coloured.contains("\u{1b}[33mWaits\u{1b}[0m  short"), "{coloured:?}");
        assert_eq!(coloured.replace("\u{1b}[33m", "").replace("\u{1b}[0m", ""), plain);
    }

    #[test]
    fn control_characters_are_shown_and_not_obeyed() {
        let evil = "\u{1b}]0;title\u{7}\u{9b}31m\r\nWebhook: reached";
        let mut page = Page::new(Some(60), true);
        page.heading("Pod", evil);
        page.verdict("Evictions:", evil, Tone::Good, evil);
        page.line(2, evil);
        page.problem(evil);
        page.table(&["KEY"], "NOTE", &[Row::of([evil]).note(evil)]);
        let allowed = ["\u{1b}[1m", "\u{1b}[31m", "\u{1b}[32m", "\u{1b}[0m"];
        let rest = allowed.iter().fold(page.text().to_owned(), |text, code| text.replace(code, ""));
        assert!(rest.chars().all(|letter| letter == '\n' || !letter.is_control()), "{rest:?}");
        assert!(rest.lines().all(|line| !line.starts_with("Webhook")), "{rest}");
        assert!(rest.contains(r"\u{1b}]0;title\u{7}"), "{rest}");
    }

    #[test]
    fn nothing_is_written_of_a_table_without_rows() {
        assert_eq!(table(None, true, &[]), "");
    }

    #[test]
    fn a_word_that_is_longer_than_the_line_stays_whole() {
        assert_eq!(wrap("a bb cccccc d", Some(4)), ["a bb", "cccccc", "d"]);
        assert_eq!(wrap("a bb", None), ["a bb"]);
        assert_eq!(wrap("", Some(4)), [""]);
    }
}
