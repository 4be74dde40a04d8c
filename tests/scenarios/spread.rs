//! Whether choices of servers are exactly those that a scheduler owes.

/// Checks that `got` goes round `period` for ever: the exact sequence of a deterministic scheduler under one client.
pub(crate) fn sequence(got: &[String], period: &[&str]) -> Result<(), String> {
    for (i, (g, p)) in got.iter().zip(period.iter().cycle()).enumerate() {
        if g != p {
            let from = i.saturating_sub(4);
            let until = (i + 5).min(got.len());
            return Err(format!("choice {i} is {g}, not {p}; choices {from}..: {:?}", &got[from..until]));
        }
    }
    Ok(())
}

/// Checks how often each server was chosen, whatever the order.
pub(crate) fn counts(got: &[String], expected: &[(&str, usize)]) -> Result<(), String> {
    let counted: Vec<(&str, usize)> =
        expected.iter().map(|(name, _)| (*name, got.iter().filter(|g| g == name).count())).collect();
    let known: usize = counted.iter().map(|(_, n)| n).sum();
    if counted != expected {
        return Err(format!("spread {counted:?}, not {expected:?}"));
    }
    if known != got.len() {
        return Err(format!("{} answers come from unknown servers", got.len() - known));
    }
    Ok(())
}

/// The order in which IPVS's `rr` visits servers that were added in the order s1, s2, s3: the newest first.
pub(crate) const RR: [&str; 3] = ["s3", "s2", "s1"];

/// What IPVS's `wrr` does with weights 4, 3, 2 for s1, s2, s3 added in this order, one period.
pub(crate) const WRR_432: [&str; 9] = ["s3", "s2", "s1", "s1", "s2", "s1", "s3", "s2", "s1"];

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        text.split_whitespace().map(String::from).collect()
    }

    #[test]
    fn a_right_sequence_passes_and_one_wrong_choice_fails() {
        assert_eq!(sequence(&names("s3 s2 s1 s3 s2"), &RR), Ok(()));
        assert!(sequence(&names("s3 s2 s1 s2 s2"), &RR).is_err());
        assert!(sequence(&names("s2 s1 s3"), &RR).is_err());
    }

    #[test]
    fn counts_must_agree_and_cover_all_answers() {
        let expected = [("s1", 2), ("s2", 1)];
        assert_eq!(counts(&names("s1 s2 s1"), &expected), Ok(()));
        assert!(counts(&names("s1 s2 s2"), &expected).is_err());
        assert!(counts(&names("s1 s2 s1 s9"), &expected).is_err());
        assert!(counts(&[], &expected).is_err());
    }
}
