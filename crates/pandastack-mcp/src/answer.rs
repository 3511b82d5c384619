//! What tools answer: JSON in the text, and failures as the server put them.

use pandastack_client::ClientError;
use pandastack_types::SandboxId;
use rmcp::model::{CallToolResult, ContentBlock};
use serde::Serialize;

/// What every tool gives back: its result, or a failure that the model may read.
pub(crate) type Answer = Result<CallToolResult, rmcp::ErrorData>;

/// A result as JSON.
pub(crate) fn json(value: &impl Serialize) -> Answer {
    match serde_json::to_string(value) {
        Ok(text) => Ok(CallToolResult::success(vec![ContentBlock::text(text)])),
        Err(error) => failed(&format!("the answer cannot be written down: {error}")),
    }
}

/// A failure of the call, not of the protocol: the model reads it and can do better.
pub(crate) fn failed(sentence: &str) -> Answer {
    Ok(CallToolResult::error(vec![ContentBlock::text(sentence)]))
}

/// The outcome of calls to the server.
pub(crate) fn of<T: Serialize>(outcome: Result<T, ToolError>) -> Answer {
    match outcome {
        Ok(value) => json(&value),
        Err(ToolError(sentence)) => failed(&sentence),
    }
}

/// Why a tool did not do it, as a sentence.
pub(crate) struct ToolError(pub(crate) String);

impl From<ClientError> for ToolError {
    fn from(error: ClientError) -> Self {
        Self(error.to_string())
    }
}

/// An id as a model writes it.
pub(crate) fn sandbox_id(text: &str) -> Result<SandboxId, ToolError> {
    text.trim().parse().map_err(|error| ToolError(format!("{error}; sandbox_list shows those there are")))
}

/// `text` with its middle left out where it is longer than `max` bytes: what went wrong is said first or last.
pub(crate) fn shortened(text: &str, max: usize) -> String {
    if text.len() <= max {
        return text.to_owned();
    }
    let head = &text[..text.floor_char_boundary(max / 2)];
    let tail = &text[text.ceil_char_boundary(text.len() - max / 2)..];
    let left_out = text.len() - head.len() - tail.len();
    format!("{head}\n[... {left_out} bytes left out ...]\n{tail}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_output_loses_its_middle_and_says_so() {
        assert_eq!(shortened("short", 5), "short");
        let long = format!("begin{}end", "x".repeat(1000));
        let cut = shortened(&long, 100);
        assert!(cut.starts_with("begin") && cut.ends_with("end"), "{cut}");
        assert!(cut.contains("[... 908 bytes left out ...]"), "{cut}");
    }

    #[test]
    fn characters_are_never_cut() {
        let cut = shortened(&"ü".repeat(100), 31);
        assert!(cut.starts_with("ü") && cut.ends_with("ü"), "{cut}");
    }
}
