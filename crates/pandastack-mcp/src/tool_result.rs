//! Results of tools: JSON text, or the error message of the server.

use pandastack_client::ClientError;
use pandastack_types::SandboxId;
use rmcp::model::{CallToolResult, ContentBlock};
use serde::Serialize;

/// The result of a tool: a value, or an error that the model can read.
pub(crate) type ToolResult = Result<CallToolResult, rmcp::ErrorData>;

/// A successful result as JSON.
pub(crate) fn json(value: &impl Serialize) -> ToolResult {
    match serde_json::to_string(value) {
        Ok(text) => Ok(CallToolResult::success(vec![ContentBlock::text(text)])),
        Err(error) => failed(&format!("cannot encode the result: {error}")),
    }
}

/// A failed call, which is not a protocol error: the model can read it and react.
pub(crate) fn failed(message: &str) -> ToolResult {
    Ok(CallToolResult::error(vec![ContentBlock::text(message)]))
}

/// Converts the outcome of API calls.
pub(crate) fn from_outcome<T: Serialize>(outcome: Result<T, ToolError>) -> ToolResult {
    match outcome {
        Ok(value) => json(&value),
        Err(ToolError(message)) => failed(&message),
    }
}

/// Error message of a tool.
pub(crate) struct ToolError(pub(crate) String);

impl From<ClientError> for ToolError {
    fn from(error: ClientError) -> Self {
        Self(error.to_string())
    }
}

/// Parses a sandbox id.
pub(crate) fn sandbox_id(text: &str) -> Result<SandboxId, ToolError> {
    text.trim().parse().map_err(|error| ToolError(format!("{error}; call sandbox_list to see all sandboxes")))
}

/// Truncates the middle of a text longer than `max` bytes: errors are usually at the start or the end.
pub(crate) fn truncate_middle(text: &str, max: usize) -> String {
    if text.len() <= max {
        return text.to_owned();
    }
    let head = &text[..text.floor_char_boundary(max / 2)];
    let tail = &text[text.ceil_char_boundary(text.len() - max / 2)..];
    let omitted = text.len() - head.len() - tail.len();
    format!("{head}\n[... {omitted} bytes omitted ...]\n{tail}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_output_is_truncated_in_the_middle() {
        assert_eq!(truncate_middle("short", 5), "short");
        let long = format!("begin{}end", "x".repeat(1000));
        let cut = truncate_middle(&long, 100);
        assert!(cut.starts_with("begin") && cut.ends_with("end"), "{cut}");
        assert!(cut.contains("[... 908 bytes omitted ...]"), "{cut}");
    }

    #[test]
    fn truncation_never_splits_characters() {
        let cut = truncate_middle(&"ü".repeat(100), 31);
        assert!(cut.starts_with("ü") && cut.ends_with("ü"), "{cut}");
    }
}
