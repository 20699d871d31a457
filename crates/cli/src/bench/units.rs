//! Sizes, rates and times as people write them.

use std::time::Duration;

/// Bytes from "4096", "4KiB", "64MiB", "1GiB" or the decimal "1kB", "1MB".
///
/// # Errors
/// What was expected, in words.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let (number, unit) = split_number(text)?;
    let factor: u64 = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kib" | "k" => 1 << 10,
        "mib" | "m" => 1 << 20,
        "gib" | "g" => 1 << 30,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        _ => return Err(format!("{text:?}: unknown unit {unit:?}; write for example 4KiB, 64MiB or 1GiB")),
    };
    let bytes = number * factor as f64;
    if bytes < 1.0 || bytes > (64u64 << 30) as f64 {
        return Err(format!("{text:?}: use 1 byte to 64 GiB"));
    }
    Ok(bytes as u64)
}

/// Bits per second from "500mbit", "1gbit", "100kbit" or plain bits.
///
/// # Errors
/// What was expected, in words.
pub fn parse_rate(text: &str) -> Result<u64, String> {
    let (number, unit) = split_number(text)?;
    let factor = match unit.to_ascii_lowercase().as_str() {
        "" | "bit" => 1.0,
        "kbit" => 1e3,
        "mbit" => 1e6,
        "gbit" => 1e9,
        _ => return Err(format!("{text:?}: unknown unit {unit:?}; write for example 500mbit or 1gbit")),
    };
    let bits = number * factor;
    // Below this a window of packets takes minutes; above, tc has no such rate.
    if !(1e6..=1e12).contains(&bits) {
        return Err(format!("{text:?}: use 1mbit to 1000gbit"));
    }
    Ok(bits as u64)
}

/// A probability, 0 up to but not including 1.
///
/// # Errors
/// What was expected, in words.
pub fn parse_loss(text: &str) -> Result<f64, String> {
    match text.trim().parse::<f64>() {
        Ok(loss) if (0.0..1.0).contains(&loss) => Ok(loss),
        _ => Err(format!("{text:?}: use a share of datagrams from 0 to below 1, for example 0.01")),
    }
}

fn split_number(text: &str) -> Result<(f64, &str), String> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number = text[..end].parse::<f64>().map_err(|_| {
        format!("{text:?} does not start with a number; write for example 64MiB, or 500mbit for a rate")
    })?;
    Ok((number, text[end..].trim()))
}

/// "64 MiB".
pub fn show_bytes(bytes: u64) -> String {
    for (unit, name) in [(1u64 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")] {
        if bytes >= unit {
            let value = bytes as f64 / unit as f64;
            return if bytes.is_multiple_of(unit) { format!("{value} {name}") } else { format!("{value:.1} {name}") };
        }
    }
    format!("{bytes} B")
}

/// "1.23 ms", with three significant digits.
pub fn show_time(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    let (value, unit) = if seconds >= 1.0 {
        (seconds, "s")
    } else if seconds >= 1e-3 {
        (seconds * 1e3, "ms")
    } else {
        (seconds * 1e6, "us")
    };
    let digits = if value >= 100.0 {
        0
    } else if value >= 10.0 {
        1
    } else {
        2
    };
    format!("{value:.digits$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_rates_are_read_as_people_write_them() {
        assert_eq!(parse_bytes("4KiB"), Ok(4096));
        assert_eq!(parse_bytes("64 MiB"), Ok(64 << 20));
        assert_eq!(parse_bytes("1kB"), Ok(1000));
        assert_eq!(parse_rate("500mbit"), Ok(500_000_000));
        assert_eq!(parse_rate("1.5gbit"), Ok(1_500_000_000));
        assert_eq!(parse_loss("0.01"), Ok(0.01));
    }

    #[test]
    fn nonsense_is_refused_with_an_example() {
        assert!(parse_bytes("64 apples").is_err_and(|why| why.contains("64MiB")));
        assert!(parse_bytes("0").is_err());
        assert!(parse_rate("fast").is_err());
        assert!(parse_rate("10").is_err_and(|why| why.contains("1mbit")));
        assert!(parse_loss("1").is_err());
        assert!(parse_loss("-0.1").is_err());
        assert!(parse_loss("NaN").is_err());
    }

    #[test]
    fn times_and_sizes_are_shown_in_their_natural_unit() {
        assert_eq!(show_bytes(64 << 20), "64 MiB");
        assert_eq!(show_bytes(1536), "1.5 KiB");
        assert_eq!(show_time(Duration::from_micros(1234)), "1.23 ms");
        assert_eq!(show_time(Duration::from_millis(1087)), "1.09 s");
    }
}
