//! Dates as model inputs: days, and the position in the year, the week and the day.

/// Days from 1970-01-01 to 2000-01-01, from which dates are counted.
const EPOCH: i64 = 10_957;
/// Number of model inputs of a date without a time of day; `INPUTS_WITH_TIME` is that with one.
pub(super) const INPUTS: usize = 5;
pub(super) const INPUTS_WITH_TIME: usize = 7;

/// Reads `YYYY-MM-DD`, `YYYY-MM-DD HH:MM` or `YYYY-MM-DD HH:MM:SS`, also with a `T`, fractions of seconds, and `Z` or
/// an offset such as `+02:00`. Returns days since the beginning of 2000, in UTC if an offset is given.
pub(super) fn read(cell: &str) -> Option<f64> {
    let (date, rest) = cell.split_at_checked(10)?;
    let days = read_date(date)?;
    if rest.is_empty() {
        return Some(days);
    }
    let rest = rest.strip_prefix([' ', 'T'])?;
    let (time, offset) = match rest.find(['Z', '+', '-']) {
        Some(end) => (&rest[..end], read_offset(&rest[end..])?),
        None => (rest, 0.0),
    };
    Some(days + (read_time(time)? - offset) / 86_400.0)
}

fn read_date(text: &str) -> Option<f64> {
    let mut parts = text.split('-');
    let (year, month, day) = (parts.next()?, parts.next()?, parts.next()?);
    let (year, month, day) = (number(year, 4)?, number(month, 2)?, number(day, 2)?);
    let starts = |year, month| days_from_civil(year, month, 1);
    let next = if month == 12 { (year + 1, 1) } else { (year, month + 1) };
    let length = starts(next.0, next.1) - starts(year, month);
    let fits = parts.next().is_none() && (1..=12).contains(&month) && (1..=length).contains(&day);
    fits.then(|| days_from_civil(year, month, day) as f64)
}

/// Reads a time of day as seconds since midnight.
fn read_time(text: &str) -> Option<f64> {
    let mut parts = text.split(':');
    let (hours, minutes) = (number(parts.next()?, 2)?, number(parts.next()?, 2)?);
    let seconds = match parts.next() {
        None => 0.0,
        Some(text) => {
            let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
            let fits = !fraction.is_empty() && fraction.bytes().all(|byte| byte.is_ascii_digit());
            let fraction: f64 = fits.then(|| format!("0.{fraction}").parse().ok()).flatten()?;
            number(whole, 2).filter(|&whole| whole < 60)? as f64 + fraction
        }
    };
    let fits = parts.next().is_none() && hours < 24 && minutes < 60;
    fits.then(|| (hours * 60 + minutes) as f64 * 60.0 + seconds)
}

/// Reads the offset `Z`, `+HH:MM`, `+HHMM` or `+HH` as seconds.
fn read_offset(text: &str) -> Option<f64> {
    if text == "Z" {
        return Some(0.0);
    }
    let (sign, text) = text.split_at_checked(1)?;
    let (hours, minutes) = text.split_at_checked(2)?;
    let minutes = minutes.strip_prefix(':').unwrap_or(minutes);
    let minutes = if minutes.is_empty() { 0 } else { number(minutes, 2)? };
    let seconds = ((number(hours, 2)? * 60 + minutes) * 60) as f64;
    Some(if sign == "-" { -seconds } else { seconds })
}

/// Reads a number of exactly this many digits.
fn number(text: &str, digits: usize) -> Option<i64> {
    let fits = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit());
    fits.then(|| text.parse().ok()).flatten()
}

/// Returns days since the beginning of 2000 in the Gregorian calendar; years are counted from March here.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468 - EPOCH
}

/// Returns the position of a day in its year, from 0 to 1.
fn year_phase(days: f64) -> f64 {
    // A model file may name any number of days as the replacement for missing dates.
    let days = days.clamp(-1e6, 1e7);
    // The mean length of a year leads to the year or one of its neighbours.
    let mut year = 2000 + (days / 365.2425).floor() as i64;
    let start = |year| days_from_civil(year, 1, 1) as f64;
    while start(year) > days {
        year -= 1;
    }
    while start(year + 1) <= days {
        year += 1;
    }
    (days - start(year)) / (start(year + 1) - start(year))
}

/// Returns a smooth wave from -1 to 1 with a period of 1, for a position that repeats, such as that of a day in the
/// week. It is a sine to within 0.06, made of parabolas, so that all machines compute the same bits.
fn wave(phase: f64) -> f32 {
    let x = 2.0 * (phase - phase.floor()) - 1.0;
    (-4.0 * x * (1.0 - x.abs())) as f32
}

/// Appends the inputs of a date: the days, and two waves each for its position in the year, in the week and, if `time`
/// is set, in the day.
pub(super) fn expand(days: f32, time: bool, inputs: &mut Vec<f32>) {
    let wide = f64::from(days);
    inputs.push(days);
    let phases = [year_phase(wide), wide / 7.0, wide];
    for phase in &phases[..if time { 3 } else { 2 }] {
        inputs.extend([wave(*phase), wave(phase + 0.25)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iso_dates_are_days_since_2000() {
        for (text, days) in [
            ("2000-01-01", 0.0),
            ("1999-12-31", -1.0),
            ("1970-01-01", -10_957.0),
            ("2024-02-29", 8825.0),
            ("2024-03-01", 8826.0),
            ("2000-01-01 12:00", 0.5),
            ("2000-01-01T06:00:00", 0.25),
            ("2000-01-01T06:00:00.000Z", 0.25),
            ("2000-01-01T06:00+02:00", 4.0 / 24.0),
            ("2000-01-01 06:00:00-0600", 0.5),
        ] {
            assert_eq!(read(text), Some(days), "{text}");
        }
        for text in [
            "",
            "2000",
            "2023-02-29",
            "2000-13-01",
            "2000-00-10",
            "2000-1-1",
            "01-01-2000",
            "2000-01-01x",
            "2000-01-01 24:00",
            "2000-01-01 12",
            "2000-01-01 12:60",
            "2000-01-01 12:00:60",
            "2000-01-01T",
            "2000-01-01 12:00+2",
            "äöüäöüä",
            "2000-01-01 12:00:00.",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn days_lie_in_years_weeks_and_days() {
        let of = |text: &str| {
            let mut inputs = Vec::new();
            expand(read(text).unwrap() as f32, true, &mut inputs);
            inputs
        };
        // New Year of a common year and of a leap year are at the same position; a week later the position in the week
        // is the same.
        assert_eq!(of("2021-01-01")[1..3], of("2024-01-01")[1..3]);
        assert_eq!(of("2021-01-01")[1..3], [0.0, 1.0]);
        let apart = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-4);
        assert!(apart(&of("2021-01-01")[3..5], &of("2021-01-08")[3..5]));
        assert!(!apart(&of("2021-01-01")[3..5], &of("2021-01-04")[3..5]));
        assert!(apart(&of("2021-01-01 18:00")[5..], &of("2022-05-03 18:00")[5..]));
        assert_eq!(of("2021-01-01").len(), INPUTS_WITH_TIME);
        for day in 0..1000 {
            assert!((0.0..1.0).contains(&year_phase(f64::from(day) * 37.25 - 10_000.0)));
        }
        assert!((0.0..1.0).contains(&year_phase(f64::from(f32::MAX))));
        // A wave is nearly a sine.
        for phase in [0.0, 0.1, 0.25, 0.4, 0.77] {
            assert!((f64::from(wave(phase)) - (std::f64::consts::TAU * phase).sin()).abs() < 0.06);
        }
    }
}
