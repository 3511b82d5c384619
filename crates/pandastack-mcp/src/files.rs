//! Tools that read, write and list files of a sandbox.

use pandastack_client::FileBytes;
use rmcp::handler::server::wrapper::Parameters;
use rmcp::service::RequestContext;
use rmcp::{RoleServer, tool, tool_router};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Tools;
use crate::answer::{self, Answer, ToolError, sandbox_id};
use crate::limits::{ENTRIES_MAX, FILE_BYTES_MAX};

/// A file to read.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Read {
    /// Id of the sandbox.
    sandbox_id: String,
    /// Absolute path.
    path: String,
    /// Bytes to skip.
    offset: Option<u64>,
}

/// A file to write.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Write {
    /// Id of the sandbox.
    sandbox_id: String,
    /// Absolute path; its parent directories are made.
    path: String,
    /// The whole new content, as text.
    content: String,
}

/// A directory to list.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct List {
    /// Id of the sandbox.
    sandbox_id: String,
    /// Absolute path.
    path: String,
}

/// A part of a file.
#[derive(Debug, Serialize)]
struct Part {
    content: String,
    offset: u64,
    /// Where the next part begins; absent at the end of the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_offset: Option<u64>,
}

/// Reads [`FILE_BYTES_MAX`] bytes behind `offset`, and whether more follow.
async fn part_of(mut bytes: FileBytes, offset: u64) -> Result<Part, ToolError> {
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
    Ok(Part { content: String::from_utf8_lossy(&kept).into_owned(), offset, next_offset })
}

#[tool_router(router = file_tools, vis = "pub(crate)")]
impl Tools {
    /// Read a text file of a sandbox. Of a long one a part comes back, with the offset of the next.
    #[tool(name = "file_read", annotations(read_only_hint = true))]
    async fn read(&self, Parameters(args): Parameters<Read>, context: RequestContext<RoleServer>) -> Answer {
        let read = async {
            let id = sandbox_id(&args.sandbox_id)?;
            let bytes = self.client(&context)?.read_file(&id, &args.path).await?;
            part_of(bytes, args.offset.unwrap_or(0)).await
        };
        answer::of(read.await)
    }

    /// Write a text file in a sandbox, replacing what was there.
    #[tool(name = "file_write")]
    async fn write(
        &self,
        Parameters(args): Parameters<Write>,
        context: RequestContext<RoleServer>,
    ) -> Answer {
        let written = async {
            let id = sandbox_id(&args.sandbox_id)?;
            Ok(self.client(&context)?.write_file(&id, &args.path, args.content).await?)
        };
        answer::of(written.await)
    }

    /// List a directory of a sandbox.
    #[tool(name = "file_list", annotations(read_only_hint = true))]
    async fn list_directory(
        &self,
        Parameters(args): Parameters<List>,
        context: RequestContext<RoleServer>,
    ) -> Answer {
        let listed = async {
            let id = sandbox_id(&args.sandbox_id)?;
            let entries = self.client(&context)?.list_directory(&id, &args.path).await?.entries;
            let left_out = entries.len().saturating_sub(ENTRIES_MAX);
            let shown: Vec<_> = entries
                .into_iter()
                .take(ENTRIES_MAX)
                .map(|entry| serde_json::json!({ "name": entry.name, "is_dir": entry.is_dir, "size": entry.size }))
                .collect();
            Ok(serde_json::json!({ "entries": shown, "left_out": left_out }))
        };
        answer::of(listed.await)
    }
}
