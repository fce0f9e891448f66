//! Charts as SVG: lines with points over a numeric axis, and horizontal bars with names. Colours come from the style
//! sheet of the page. Pure.

use std::fmt::Write as _;

use crate::output::text_layout::cut;

/// Width of a chart in SVG units, about the pixels of a phone; `HEIGHT` likewise.
const WIDTH: f64 = 420.0;
const HEIGHT: f64 = 260.0;
/// Left edge of the plot area inside the chart, in SVG units; the other edges follow.
const LEFT: f64 = 52.0;
const RIGHT: f64 = 400.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 222.0;
/// Number of line colours for charts in the page's style sheet.
pub(crate) const COLOURS: usize = 12;
/// Height of a bar in a chart with the space below it, in SVG units.
const BAR: f64 = 26.0;

/// Longest name of a bar in a chart, in characters; longer names are cut.
const NAME_MAX: usize = 60;

/// Style of a line in a chart, which tells means, single runs and references apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// Style of a line in a chart for a mean over several runs.
    Thick,
    /// Style of a line in a chart for a single run.
    Thin,
    /// Style of a line in a chart for published results of other authors, and for an ideal.
    Dashed,
}

/// A line of a chart with its points.
#[derive(Clone, Debug)]
pub(crate) struct ChartLine {
    /// Index of the line's colour; `None` for the colour of the text.
    pub(crate) colour: Option<usize>,
    pub(crate) style: Style,
    pub(crate) points: Vec<(f64, f64)>,
    /// Text that is shown when the pointer is on the chart's line.
    pub(crate) title: String,
    /// Standard deviation at each point of the chart's line, where it is known.
    pub(crate) deviations: Vec<Option<f64>>,
}

/// Axis of a chart: its name and the format of its numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Axis {
    pub(crate) name: &'static str,
    pub(crate) number: fn(f64) -> String,
    /// True if the chart's axis begins at zero.
    pub(crate) from_zero: bool,
    /// True if the chart's axis has ticks at whole numbers only.
    pub(crate) whole: bool,
}

/// One bar of a chart: its name, its mean, and the single values behind the mean.
#[derive(Clone, Debug)]
pub(crate) struct Bar {
    pub(crate) label: String,
    pub(crate) colour: Option<usize>,
    pub(crate) mean: f64,
    pub(crate) deviation: Option<f64>,
    pub(crate) singles: Vec<f64>,
    pub(crate) text: String,
}

/// Escapes text for HTML and SVG.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' => out.push(' '),
            // Other control characters are not allowed in a page and are replaced.
            control if control.is_control() => out.push('\u{fffd}'),
            letter => out.push(letter),
        }
    }
    out
}

/// Returns the first tick of a chart's axis, the step between two ticks, and their number: about five ticks at round
/// values that cover a range.
fn ticks(low: f64, high: f64) -> (f64, f64, usize) {
    const WANTED: f64 = 5.0;
    let span = (high - low).max(high.abs() * 1e-6).max(1e-9);
    let rough = span / WANTED;
    let power = 10f64.powf(rough.log10().floor());
    let steps = [1.0, 2.0, 2.5, 5.0, 10.0];
    let step = power
        * steps
            .into_iter()
            .find(|step| step * power >= rough * 0.999)
            .unwrap_or(10.0);
    let first = (low / step + 1e-9).floor() * step;
    let count = ((high - first) / step - 1e-9).ceil() as usize + 1;
    (first, step, count)
}

/// Linear map from a range of values to coordinates of a chart.
struct Scale {
    first: f64,
    last: f64,
    from: f64,
    to: f64,
    step: f64,
    count: usize,
}

impl Scale {
    fn new(figures: impl Iterator<Item = f64>, axis: Axis, from: f64, to: f64) -> Self {
        let (low, high) = figures
            .filter(|figure| figure.is_finite())
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), figure| {
                (low.min(figure), high.max(figure))
            });
        let (low, high) = if low <= high { (low, high) } else { (0.0, 1.0) };
        let low = if axis.from_zero { low.min(0.0) } else { low };
        let (first, step, count) = match ticks(low, high) {
            (_, step, _) if axis.whole && step < 1.0 => (low.floor(), 1.0, (high.ceil() - low.floor()) as usize + 1),
            some => some,
        };
        // A range of a single value gets a second tick, so that the map is defined.
        let count = count.max(2);
        let last = first + step * (count - 1) as f64;
        Self {
            first,
            last,
            from,
            to,
            step,
            count,
        }
    }

    fn place(&self, figure: f64) -> f64 {
        let share = (figure - self.first) / (self.last - self.first);
        self.from + share.clamp(0.0, 1.0) * (self.to - self.from)
    }

    fn ticks(&self) -> impl Iterator<Item = f64> {
        (0..self.count).map(|at| self.first + self.step * at as f64)
    }
}

fn colour(index: Option<usize>) -> String {
    index.map_or_else(|| "var(--text)".into(), |index| format!("var(--c{})", index % COLOURS))
}

/// Draws a chart of lines over a numeric axis.
pub(crate) fn lines(title: &str, x: Axis, y: Axis, lines: &[ChartLine]) -> String {
    let points = || lines.iter().flat_map(|line| &line.points);
    let across = Scale::new(points().map(|point| point.0), x, LEFT, RIGHT);
    let up = Scale::new(points().map(|point| point.1), y, BOTTOM, TOP);
    let mut out = open(title, HEIGHT);
    for tick in up.ticks() {
        let at = up.place(tick);
        let _ = write!(
            out,
            r#"<line class="grid" x1="{LEFT}" x2="{RIGHT}" y1="{at:.1}" y2="{at:.1}"/><text class="tick" x="{:.1}" y="{:.1}" text-anchor="end">{}</text>"#,
            LEFT - 6.0,
            at + 4.0,
            escape(&(y.number)(tick))
        );
    }
    for tick in across.ticks() {
        let at = across.place(tick);
        let _ = write!(
            out,
            r#"<line class="grid" x1="{at:.1}" x2="{at:.1}" y1="{TOP}" y2="{BOTTOM}"/><text class="tick" x="{at:.1}" y="{:.1}" text-anchor="middle">{}</text>"#,
            BOTTOM + 15.0,
            escape(&(x.number)(tick))
        );
    }
    let _ = write!(
        out,
        r#"<text class="axis" x="{:.1}" y="{:.1}" text-anchor="middle">{}</text>"#,
        f64::midpoint(LEFT, RIGHT),
        HEIGHT - 6.0,
        escape(x.name)
    );
    for line in lines {
        draw(&mut out, line, &across, &up);
    }
    out.push_str("</svg>");
    out
}

fn draw(out: &mut String, line: &ChartLine, across: &Scale, up: &Scale) {
    let colour = colour(line.colour);
    let class = match line.style {
        Style::Thick => "thick",
        Style::Thin => "thin",
        Style::Dashed => "dashed",
    };
    let places: Vec<(f64, f64)> = line
        .points
        .iter()
        .filter(|(x, y)| x.is_finite() && y.is_finite())
        .map(|&(x, y)| (across.place(x), up.place(y)))
        .collect();
    let path: Vec<String> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let title = escape(&line.title);
    let _ = write!(
        out,
        r#"<g class="{class}" style="--c:{colour}"><title>{title}</title><polyline points="{}"/>"#,
        path.join(" ")
    );
    for (&(x, y), deviation) in line.points.iter().zip(&line.deviations) {
        if let Some(deviation) = deviation
            && x.is_finite()
            && y.is_finite()
        {
            let (x, low, high) = (across.place(x), up.place(y - deviation), up.place(y + deviation));
            let _ = write!(out, r#"<line x1="{x:.1}" x2="{x:.1}" y1="{low:.1}" y2="{high:.1}"/>"#);
        }
    }
    if line.style == Style::Dashed
        && let Some((x, y)) = places.last()
    {
        let _ = write!(
            out,
            r#"<text class="tick" x="{:.1}" y="{:.1}" text-anchor="end">{title}</text>"#,
            x - 6.0,
            (y - 5.0).max(TOP + 9.0)
        );
    }
    for (x, y) in places {
        let radius = if line.style == Style::Thin { 1.6 } else { 3.0 };
        let _ = write!(out, r#"<circle cx="{x:.1}" cy="{y:.1}" r="{radius}"/>"#);
    }
    out.push_str("</g>");
}

/// Draws a chart of horizontal bars with their names above them, because names of strategies are long.
pub(crate) fn bars(title: &str, bars: &[Bar]) -> String {
    let zero = Axis {
        name: "",
        number: |_| String::new(),
        from_zero: true,
        whole: false,
    };
    let figures = bars.iter().flat_map(|bar| {
        bar.singles
            .iter()
            .copied()
            .chain([bar.mean, bar.mean + bar.deviation.unwrap_or(0.0)])
    });
    let across = Scale::new(figures, zero, 0.0, 300.0);
    let height = 10.0 + BAR * 1.35 * bars.len() as f64;
    let mut out = open(title, height);
    for (number, bar) in bars.iter().enumerate() {
        let top = 4.0 + BAR * 1.35 * number as f64;
        let (length, middle) = (across.place(bar.mean), top + BAR);
        let class = if bar.colour.is_some() { "bar" } else { "bar reference" };
        let _ = write!(
            out,
            r#"<g class="{class}" style="--c:{}"><text class="name" x="0" y="{:.1}">{}</text><rect x="0" y="{:.1}" width="{length:.1}" height="9" rx="2"/>"#,
            colour(bar.colour),
            top + 12.0,
            escape(&cut(&bar.label, NAME_MAX)),
            middle - 8.0,
        );
        if let Some(deviation) = bar.deviation {
            let (low, high) = (across.place(bar.mean - deviation), across.place(bar.mean + deviation));
            let _ = write!(
                out,
                r#"<line x1="{low:.1}" x2="{high:.1}" y1="{:.1}" y2="{:.1}"/>"#,
                middle - 3.5,
                middle - 3.5
            );
        }
        for single in &bar.singles {
            let _ = write!(
                out,
                r#"<circle cx="{:.1}" cy="{:.1}" r="2"/>"#,
                across.place(*single),
                middle - 3.5
            );
        }
        let _ = write!(
            out,
            r#"<text class="figure" x="{WIDTH}" y="{:.1}" text-anchor="end">{}</text></g>"#,
            middle,
            escape(&bar.text)
        );
    }
    out.push_str("</svg>");
    out
}

fn open(title: &str, height: f64) -> String {
    format!(
        r#"<svg viewBox="0 0 {WIDTH} {height:.0}" role="img" aria-label="{}">"#,
        escape(title)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Axis = Axis {
        name: "x",
        number: |number| format!("{number}"),
        from_zero: false,
        whole: false,
    };

    fn line(points: &[(f64, f64)]) -> ChartLine {
        ChartLine {
            colour: Some(1),
            style: Style::Thick,
            points: points.to_vec(),
            title: "a < b".into(),
            deviations: vec![Some(0.5), None],
        }
    }

    #[test]
    fn ticks_are_round_and_span_what_is_drawn() {
        assert_eq!(ticks(0.0, 10.0), (0.0, 2.0, 6));
        let (first, step, count) = ticks(0.912, 0.987);
        assert!(first <= 0.912 && first + step * (count - 1) as f64 >= 0.987);
        assert!((3..=7).contains(&count), "{count}");
        for (low, high) in [(5.0, 5.0), (0.0, 0.0), (-3.0, 1e9), (1e-9, 2e-9)] {
            let (first, step, count) = ticks(low, high);
            assert!(step > 0.0 && count < 20, "{low} {high}: {first} {step} {count}");
        }
    }

    #[test]
    fn points_stand_where_their_figures_are() {
        let drawn = lines("t", PLAIN, PLAIN, &[line(&[(0.0, 0.0), (10.0, 10.0)])]);
        assert!(
            drawn.contains(&format!("points=\"{LEFT:.1},{BOTTOM:.1} {RIGHT:.1},{TOP:.1}\"")),
            "{drawn}"
        );
        assert!(drawn.contains("a &lt; b"));
        assert_eq!(drawn.matches("<svg").count(), drawn.matches("</svg>").count());
    }

    #[test]
    fn there_is_no_place_between_whole_numbers() {
        let whole = Axis { whole: true, ..PLAIN };
        let scale = Scale::new([1.0, 3.0].into_iter(), whole, 0.0, 1.0);
        assert_eq!(scale.ticks().collect::<Vec<_>>(), [1.0, 2.0, 3.0]);
        let one = Scale::new([4.0].into_iter(), whole, 0.0, 1.0);
        assert_eq!(one.ticks().collect::<Vec<_>>(), [4.0, 5.0]);
    }

    #[test]
    fn what_is_no_number_is_not_drawn_and_nothing_is_no_fault() {
        let drawn = lines("t", PLAIN, PLAIN, &[line(&[(f64::NAN, 0.0), (1.0, f64::INFINITY)])]);
        assert!(!drawn.contains("NaN") && !drawn.contains("inf"), "{drawn}");
        lines("t", PLAIN, PLAIN, &[]);
        assert!(bars("t", &[]).ends_with("</svg>"));
    }

    #[test]
    fn bars_are_as_long_as_their_means() {
        let bar = |mean| Bar {
            label: "<b>".into(),
            colour: None,
            mean,
            deviation: None,
            singles: vec![mean],
            text: format!("{mean}"),
        };
        let drawn = bars("t", &[bar(10.0), bar(5.0)]);
        assert!(
            drawn.contains(r#"width="300.0""#) && drawn.contains(r#"width="150.0""#),
            "{drawn}"
        );
        assert!(drawn.contains("&lt;b&gt;") && !drawn.contains("<b>"));
    }
}
