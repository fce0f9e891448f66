//! Reads a table's cells.

/// Contents of a cell that should hold a number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Cell {
    Number(f32),
    /// The cell has no value, in one of the notations that people and programs use.
    Missing,
    /// The cell holds anything else than a number, or a number that is not finite.
    Text,
}

/// Notations for a missing value in a table, in lower case.
const MISSING: [&str; 6] = ["na", "n/a", "nan", "null", "none", "?"];

impl Cell {
    /// Tells if a cell holds a number, no value or a text. The cell must have no spaces around it.
    pub(super) fn read(cell: &str) -> Self {
        match cell.parse::<f32>() {
            Ok(number) if number.is_finite() => Self::Number(number),
            _ if cell.is_empty() || MISSING.iter().any(|word| cell.eq_ignore_ascii_case(word)) => Self::Missing,
            _ => Self::Text,
        }
    }
}

/// True if a text is a number with a decimal comma.
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
