//! Formats numbers with their units for people.

/// Formats a fraction as a percentage with two decimals.
pub(crate) fn accuracy(figure: f64) -> String {
    format!("{:.2} %", 100.0 * figure)
}

/// Formats a fraction as a whole percentage.
pub(crate) fn share(figure: f64) -> String {
    format!("{:.0} %", 100.0 * figure)
}

/// Formats a duration in seconds, with fewer decimals the longer it is.
pub(crate) fn seconds(figure: f64) -> String {
    match figure {
        long if long >= 100.0 => format!("{long:.0} s"),
        short if short < 1.0 => format!("{short:.2} s"),
        middle => format!("{middle:.1} s"),
    }
}

/// Formats a duration in seconds as a clock does: `m:ss`, `h:mm:ss`, or days and hours from 100 hours on.
pub(crate) fn clock(seconds: f64) -> String {
    if !(0.0..1e9).contains(&seconds) {
        return "–".into();
    }
    let whole = seconds.floor() as u64;
    let (hours, minutes, seconds) = (whole / 3600, whole / 60 % 60, whole % 60);
    match hours {
        0 => format!("{minutes}:{seconds:02}"),
        1..100 => format!("{hours}:{minutes:02}:{seconds:02}"),
        _ => format!("{} d {} h", hours / 24, hours % 24),
    }
}

/// Formats a whole number with a narrow no-break space between thousands.
pub(crate) fn count(figure: f64) -> String {
    let digits = format!("{:.0}", figure.abs());
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push('\u{202f}');
        }
        out.push(digit);
    }
    if figure < 0.0 { format!("-{out}") } else { out }
}

/// Formats a number of bytes in B, kB, MB or GB.
pub(crate) fn bytes(figure: f64) -> String {
    match figure {
        giga if giga >= 1e9 => format!("{:.2} GB", giga / 1e9),
        mega if mega >= 1e6 => format!("{:.1} MB", mega / 1e6),
        kilo if kilo >= 1e3 => format!("{:.1} kB", kilo / 1e3),
        few => format!("{few:.0} B"),
    }
}

/// Formats a number of unknown size and unit with four decimals or, if it is closer to 0 than 0.01, in scientific
/// notation.
pub(crate) fn number(figure: f64) -> String {
    if figure != 0.0 && figure.abs() < 0.01 {
        format!("{figure:.1e}")
    } else {
        format!("{figure:.4}")
    }
}

/// Formats a number with its noun, in the plural unless the number is one.
pub(crate) fn of(number: usize, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {what}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_written_as_people_read_them() {
        assert_eq!(accuracy(0.98_65), "98.65 %");
        assert_eq!(count(1_234_567.0), "1\u{202f}234\u{202f}567");
        assert_eq!(count(12.0), "12");
        assert_eq!(bytes(1_350_000.0), "1.4 MB");
        assert_eq!(bytes(12.0), "12 B");
        assert_eq!(
            [7.25, 0.0, -0.0013, f64::NAN].map(number),
            ["7.2500", "0.0000", "-1.3e-3", "NaN"]
        );
        assert_eq!(
            [0.9, 72.0, 3_723.0, 400_000.0, f64::NAN, -1.0, f64::INFINITY].map(clock),
            ["0:00", "1:12", "1:02:03", "4 d 15 h", "–", "–", "–"]
        );
        assert_eq!((of(1, "node"), of(3, "node")), ("1 node".into(), "3 nodes".into()));
        assert_eq!(
            (seconds(0.5), seconds(5.25), seconds(321.0)),
            ("0.50 s".into(), "5.2 s".into(), "321 s".into())
        );
    }
}
