//! Words of the command line to options, by popt's rules.
//!
//! clap cannot read this grammar faithfully: letters cluster with their values (`-At=10.0.0.1:80`, `-srr`, `-p300`),
//! `-p` takes the next word unless it begins with `-`, the command must be the first option, and long names must not
//! be abbreviated. So this walk over the tables of [`crate::grammar`] does it; lvsctl's own subcommands are clap's.

use crate::grammar::{self, Arg, Row};

/// An option as it stood on the command line.
#[derive(Clone, Debug)]
pub struct Word {
    /// Its row.
    pub row: Row,
    /// Its value.
    pub value: Option<String>,
    /// How it was spelled (`-t`, `--tcp-service`), for messages.
    pub spelled: String,
}

/// Why a word could not be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SyntaxError {
    /// The word, or the part of it that is wrong.
    pub word: String,
    /// What is wrong with it.
    pub reason: &'static str,
}

/// Walks over the words.
#[derive(Debug)]
pub struct Walker<'a> {
    args: &'a [String],
    next: usize,
    /// What is left of a cluster of letters, and the word it stands in.
    cluster: Option<(&'a str, &'a str)>,
    rest: bool,
    positional: Vec<&'a str>,
}

impl<'a> Walker<'a> {
    /// A walk over the words after the program's name.
    pub fn new(args: &'a [String]) -> Walker<'a> {
        Walker { args, next: 0, cluster: None, rest: false, positional: Vec::new() }
    }

    /// The next option; words that are none are put aside.
    ///
    /// # Errors
    /// An unknown option, a missing or an unwanted value.
    pub fn next_option(&mut self) -> Result<Option<Word>, SyntaxError> {
        loop {
            if let Some((letters, word)) = self.cluster.take() {
                return self.letter(letters, word).map(Some);
            }
            let Some(word) = self.args.get(self.next).map(String::as_str) else { return Ok(None) };
            self.next += 1;
            if self.rest || !word.starts_with('-') || word == "-" {
                self.positional.push(word);
            } else if word == "--" {
                self.rest = true;
            } else if let Some(long) = word.strip_prefix("--") {
                return self.long(long, word).map(Some);
            } else {
                self.cluster = Some((&word[1..], word));
            }
        }
    }

    /// The words that were no options, once [`Walker::next_option`] has given `None`.
    pub fn positional(self) -> Vec<&'a str> {
        self.positional
    }

    fn long(&mut self, text: &'a str, word: &'a str) -> Result<Word, SyntaxError> {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (text, None),
        };
        let row = grammar::by_long(name).ok_or_else(|| error(word, "unknown option"))?;
        if row.arg() == Arg::None && value.is_some() {
            return Err(error(word, "option does not take an argument"));
        }
        self.finish(row, value, format!("--{name}"))
    }

    fn letter(&mut self, letters: &'a str, word: &'a str) -> Result<Word, SyntaxError> {
        let mut chars = letters.chars();
        let row = chars.next().and_then(grammar::by_short).ok_or_else(|| error(word, "unknown option"))?;
        let left = chars.as_str();
        let spelled = format!("-{}", &letters[..letters.len() - left.len()]);
        if left.is_empty() {
            return self.finish(row, None, spelled);
        }
        if row.arg() == Arg::None {
            if left.starts_with('=') {
                return Err(error(word, "option does not take an argument"));
            }
            self.cluster = Some((left, word));
            return self.finish(row, None, spelled);
        }
        self.finish(row, Some(left.strip_prefix('=').unwrap_or(left)), spelled)
    }

    fn finish(&mut self, row: Row, value: Option<&'a str>, spelled: String) -> Result<Word, SyntaxError> {
        let following = self.args.get(self.next).map(String::as_str);
        let value = match (row.arg(), value) {
            (Arg::None, _) => None,
            (_, Some(value)) => Some(value),
            (Arg::Required(_), None) => {
                self.next += 1;
                Some(following.ok_or_else(|| error(&spelled, "missing argument"))?)
            }
            (Arg::Optional(_), None) => {
                following.filter(|next| !next.starts_with('-')).inspect(|_| self.next += 1)
            }
        };
        Ok(Word { row, value: value.map(str::to_owned), spelled })
    }
}

fn error(word: &str, reason: &'static str) -> SyntaxError {
    SyntaxError { word: word.to_owned(), reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walk(line: &[&str]) -> Result<(Vec<String>, Vec<String>), SyntaxError> {
        let args: Vec<String> = line.iter().map(|s| s.to_string()).collect();
        let mut walker = Walker::new(&args);
        let mut seen = Vec::new();
        while let Some(word) = walker.next_option()? {
            seen.push(match word.value {
                Some(value) => format!("{} {value}", word.spelled),
                None => word.spelled,
            });
        }
        Ok((seen, walker.positional().into_iter().map(str::to_owned).collect()))
    }

    #[test]
    fn clusters_values_and_leftovers() {
        for (line, options, positional) in [
            (&["-Ln"][..], &["-L", "-n"][..], &[][..]),
            (&["-At", "1.1.1.1:80"], &["-A", "-t 1.1.1.1:80"], &[]),
            (&["-At=1.1.1.1:80", "-srr"], &["-A", "-t 1.1.1.1:80", "-s rr"], &[]),
            (&["-A", "-p300", "-n"], &["-A", "-p 300", "-n"], &[]),
            (&["-A", "-p=300"], &["-A", "-p 300"], &[]),
            (&["-A", "-p", "300"], &["-A", "-p 300"], &[]),
            (&["-A", "-p", "-s", "rr"], &["-A", "-p", "-s rr"], &[]),
            (&["-A", "-p"], &["-A", "-p"], &[]),
            (&["-A", "--persistent=300"], &["-A", "--persistent 300"], &[]),
            (&["-A", "--persistent", "300"], &["-A", "--persistent 300"], &[]),
            (&["-A", "-f", "-1"], &["-A", "-f -1"], &[]),
            (&["x", "-L", "y", "--", "-n"], &["-L"], &["x", "y", "-n"]),
            (&["-L", "-"], &["-L"], &["-"]),
            (&["-A", "--tcp-service=[2001:db8::1]:80"], &["-A", "--tcp-service [2001:db8::1]:80"], &[]),
        ] {
            let (seen, rest) = walk(line).unwrap_or_else(|e| panic!("{line:?}: {e:?}"));
            assert_eq!((&seen[..], &rest[..]), (&own(options)[..], &own(positional)[..]), "{line:?}");
        }
    }

    fn own(words: &[&str]) -> Vec<String> {
        words.iter().map(|s| s.to_string()).collect()
    }

    #[test]
    fn errors_name_the_word() {
        for (line, word, reason) in [
            (&["-LcN"][..], "-LcN", "unknown option"),
            (&["--add"], "--add", "unknown option"),
            (&["-L", "--num"], "--num", "unknown option"),
            (&["--set", "-1"], "-1", "unknown option"),
            (&["-A", "-p", "-5"], "-5", "unknown option"),
            (&["-A", "-t"], "-t", "missing argument"),
            (&["-At"], "-t", "missing argument"),
            (&["-L", "--numeric=5"], "--numeric=5", "option does not take an argument"),
            (&["-Ln=5"], "-Ln=5", "option does not take an argument"),
            (&["-L", "-né"], "-né", "unknown option"),
        ] {
            assert_eq!(walk(line), Err(error(word, reason)), "{line:?}");
        }
    }
}
