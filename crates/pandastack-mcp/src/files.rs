//! Tools for files in a sandbox.

use pandastack_client::FileBytes;
use rmcp::handler::server::wrapper::Parameters;
use rmcp::service::RequestContext;
use rmcp::{RoleServer, tool, tool_router};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Tools;
use crate::limits::{ENTRIES_MAX, FILE_BYTES_MAX};
use crate::tool_result::{self, ToolError, ToolResult, sandbox_id};

/// Arguments of `file_read`.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct ReadArgs {
    /// Sandbox ID.
    sandbox_id: String,
    /// Absolute path in the sandbox.
    path: String,
    /// Number of bytes to skip. Default: 0.
    offset: Option<u64>,
}

/// Arguments of `file_write`.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct WriteArgs {
    /// Sandbox ID.
    sandbox_id: String,
    /// Absolute path in the sandbox. Parent directories are created.
    path: String,
    /// Complete new content of the file, as text.
    content: String,
}

/// Arguments of `file_list`.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct ListArgs {
    /// Sandbox ID.
    sandbox_id: String,
    /// Absolute path in the sandbox.
    path: String,
}

/// A part of a file.
#[derive(Debug, Serialize)]
struct FilePart {
    content: String,
    offset: u64,
    /// Offset of the next part; absent at the end of the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_offset: Option<u64>,
}

/// Reads up to [`FILE_BYTES_MAX`] bytes at `offset`.
async fn read_part(mut bytes: FileBytes, offset: u64) -> Result<FilePart, ToolError> {
    let (mut position, mut kept) = (0_u64, Vec::new());
    while kept.len() <= FILE_BYTES_MAX
        && let Some(chunk) = bytes.next().await?
    {
        let skipped = usize::try_from(offset.saturating_sub(position)).unwrap_or(usize::MAX);
        position += chunk.len() as u64;
        kept.extend_from_slice(chunk.get(skipped..).unwrap_or_default());
    }
    let more = kept.len() > FILE_BYTES_MAX;
    kept.truncate(FILE_BYTES_MAX);
    let next_offset = more.then(|| offset + kept.len() as u64);
    Ok(FilePart { content: String::from_utf8_lossy(&kept).into_owned(), offset, next_offset })
}

#[tool_router(router = file_tools, vis = "pub(crate)")]
impl Tools {
    /// Read a text file in a sandbox. A long file is returned in parts; pass next_offset as offset
    /// to read the next one.
    #[tool(name = "file_read", annotations(read_only_hint = true))]
    async fn read(
        &self,
        Parameters(args): Parameters<ReadArgs>,
        context: RequestContext<RoleServer>,
    ) -> ToolResult {
        let outcome = async {
            let id = sandbox_id(&args.sandbox_id)?;
            let bytes = self.client(&context)?.read_file(&id, &args.path).await?;
            read_part(bytes, args.offset.unwrap_or(0)).await
        };
        tool_result::from_outcome(outcome.await)
    }

    /// Write a text file in a sandbox, replacing any existing file.
    #[tool(name = "file_write")]
    async fn write(
        &self,
        Parameters(args): Parameters<WriteArgs>,
        context: RequestContext<RoleServer>,
    ) -> ToolResult {
        let outcome = async {
            let id = sandbox_id(&args.sandbox_id)?;
            Ok(self.client(&context)?.write_file(&id, &args.path, args.content).await?)
        };
        tool_result::from_outcome(outcome.await)
    }

    /// List a directory in a sandbox.
    #[tool(name = "file_list", annotations(read_only_hint = true))]
    async fn list_directory(
        &self,
        Parameters(args): Parameters<ListArgs>,
        context: RequestContext<RoleServer>,
    ) -> ToolResult {
        let outcome = async {
            let id = sandbox_id(&args.sandbox_id)?;
            let entries = self.client(&context)?.list_directory(&id, &args.path).await?.entries;
            let omitted = entries.len().saturating_sub(ENTRIES_MAX);
            let shown: Vec<_> = entries
                .into_iter()
                .take(ENTRIES_MAX)
                .map(|entry| serde_json::json!({ "name": entry.name, "is_dir": entry.is_dir, "size": entry.size }))
                .collect();
            Ok(serde_json::json!({ "entries": shown, "left_out": omitted }))
        };
        tool_result::from_outcome(outcome.await)
    }
}
