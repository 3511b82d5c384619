//! The tool that runs code in an interpreter of a sandbox.

use pandastack_types::Language;
use pandastack_types::api::RunCode;
use rmcp::handler::server::wrapper::Parameters;
use rmcp::service::RequestContext;
use rmcp::{RoleServer, tool, tool_router};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Tools;
use crate::limits::{CODE_TIMEOUT_SECONDS_DEFAULT, OUTPUT_BYTES_MAX};
use crate::tool_result::{self, ToolError, ToolResult, sandbox_id, truncate_middle};

/// Arguments of `run_code`.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct CodeArgs {
    /// Sandbox ID.
    sandbox_id: String,
    /// Code to run. The value of its last expression is a result.
    code: String,
    /// Language of the code: `python`, `javascript`, `typescript`, `bash`, `r` or `java`. Default: `python`.
    language: Option<String>,
    /// Interrupt the code after this many seconds; variables are kept. Default: 60.
    timeout_seconds: Option<u64>,
}

/// What code printed and displayed.
#[derive(Debug, Serialize)]
struct CodeResult {
    stdout: String,
    stderr: String,
    /// Displayed values as text.
    results: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

#[tool_router(router = code_tools, vis = "pub(crate)")]
impl Tools {
    /// Run code in an interpreter in a sandbox, as in a notebook: variables, functions and imports are kept
    /// for later calls. Each language has its own interpreter.
    #[tool(name = "run_code")]
    async fn run_code(
        &self,
        Parameters(args): Parameters<CodeArgs>,
        context: RequestContext<RoleServer>,
    ) -> ToolResult {
        let outcome = async {
            let id = sandbox_id(&args.sandbox_id)?;
            let language = Language::find(args.language.as_deref());
            let language = language.map_err(|error| ToolError(error.message))?;
            let seconds = args.timeout_seconds.unwrap_or(CODE_TIMEOUT_SECONDS_DEFAULT);
            let run = RunCode { code: args.code, timeout_ms: Some(seconds.saturating_mul(1000)), env: None };
            let ran = self.client(&context)?.run_code(&id, &language.default_context(), &run).await?;
            let cut = |text: &str| truncate_middle(text, OUTPUT_BYTES_MAX);
            let texts = ran.results.iter().filter_map(|result| result.get("text/plain"));
            Ok(CodeResult {
                stdout: cut(&ran.stdout),
                stderr: cut(&ran.stderr),
                results: texts.map(|text| cut(text)).collect(),
                error: ran.error.as_deref().map(cut),
            })
        };
        tool_result::from_outcome(outcome.await)
    }
}
