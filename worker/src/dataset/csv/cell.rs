//! What a cell says.

/// A cell that should hold a number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Cell {
    Number(f32),
    /// There is none, in one of the ways that people and programs write it.
    Missing,
    /// Anything else, numbers that are not finite included.
    Text,
}

/// What people and programs write where there is nothing, in small letters.
const MISSING: [&str; 6] = ["na", "n/a", "nan", "null", "none", "?"];

impl Cell {
    /// Reads a cell without spaces around it.
    pub(super) fn read(cell: &str) -> Self {
        match cell.parse::<f32>() {
            Ok(number) if number.is_finite() => Self::Number(number),
            _ if cell.is_empty() || MISSING.iter().any(|word| cell.eq_ignore_ascii_case(word)) => Self::Missing,
            _ => Self::Text,
        }
    }
}

/// Whether a text is a number with a comma in the place of the point.
pub(super) fn has_decimal_comma(cell: &str) -> bool {
    cell.matches(',').count() == 1 && cell.replace(',', ".").parse::<f32>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_numbers_missing_or_texts() {
        for (cell, expected) in [
            ("1e3", Cell::Number(1000.0)),
            ("-0.5", Cell::Number(-0.5)),
            ("", Cell::Missing),
            ("NA", Cell::Missing),
            ("NaN", Cell::Missing),
            ("Null", Cell::Missing),
            ("?", Cell::Missing),
            ("inf", Cell::Text),
            ("1e39", Cell::Text),
            ("1,5", Cell::Text),
            ("Nancy", Cell::Text),
        ] {
            assert_eq!(Cell::read(cell), expected, "{cell}");
        }
        assert!(has_decimal_comma("-1,5") && !has_decimal_comma("1,000,000") && !has_decimal_comma("a,b"));
    }
}
