//! Commands to run in a sandbox: their words and their exit codes.

/// Converts a command line for the API: one word is run by the shell, several are a program and its
/// arguments.
pub fn command_line(words: Vec<String>) -> (Option<String>, Option<Vec<String>>) {
    if words.len() == 1 { (words.into_iter().next(), None) } else { (None, Some(words)) }
}

/// Converts a guest's exit code to one that a process can return.
pub fn to_exit_code(code: i32) -> u8 {
    u8::try_from(code).unwrap_or(255)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_argument_is_run_by_the_shell() {
        assert_eq!(command_line(vec!["echo a | wc".into()]), (Some("echo a | wc".into()), None));
        assert_eq!(
            command_line(vec!["ls".into(), "-l".into()]),
            (None, Some(vec!["ls".into(), "-l".into()]))
        );
    }

    #[test]
    fn out_of_range_exit_codes_become_255() {
        assert_eq!(to_exit_code(0), 0);
        assert_eq!(to_exit_code(137), 137);
        assert_eq!(to_exit_code(256), 255);
        assert_eq!(to_exit_code(-1), 255);
    }
}
