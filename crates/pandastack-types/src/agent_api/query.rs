//! Query parameters of the endpoints. This is the one place where they are encoded and decoded.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::BadParameter;

/// Encodes a query; empty if it has no parameters.
pub(super) fn encode_query(query: &impl Serialize) -> String {
    // Structs of text, numbers and flags always encode. A slash needs no escape, and paths are
    // easier to read without.
    serde_urlencoded::to_string(query).unwrap_or_default().replace("%2F", "/")
}

/// Reads the query of a request. Parameters that an endpoint does not know are ignored.
pub fn parse_query<Q: DeserializeOwned>(query: &str) -> Result<Q, BadParameter> {
    let pairs = serde_urlencoded::Deserializer::new(form_urlencoded::parse(query.as_bytes()));
    serde_path_to_error::deserialize(pairs)
        .map_err(|error| BadParameter(format!("invalid query parameter: {error}")))
}

/// A flag that clients write as 1 or 0, or as true or false. Absent and empty are false.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Flag(pub bool);

impl Flag {
    fn is_off(&self) -> bool {
        !self.0
    }
}

impl Serialize for Flag {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(if self.0 { "1" } else { "0" })
    }
}

impl<'de> Deserialize<'de> for Flag {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match String::deserialize(deserializer)?.as_str() {
            "" | "0" | "false" => Ok(Flag(false)),
            "1" | "true" => Ok(Flag(true)),
            _ => Err(serde::de::Error::custom("must be 1 or 0, or true or false")),
        }
    }
}

/// Encoding of process output in events and messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputEncoding {
    /// As text, with replacement characters for bytes that are not UTF-8.
    #[default]
    Text,
    /// As base64.
    Base64,
}

/// No parameters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NoQuery {}

macro_rules! queries {
    ($($(#[$doc:meta])* $name:ident { $($fields:tt)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
            pub struct $name { $($fields)* }
        )*
    };
}

queries! {
    /// Query of [`ReadBuild`](super::endpoints::ReadBuild).
    BuildQuery {
        /// Lines of its log that the caller has. An agent may hold its response until there are more.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub seen_lines: Option<usize>,
        /// Longest time in seconds that an agent may hold its response.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub wait_seconds: Option<u64>,
    }

    /// Query of [`Exec`](super::endpoints::Exec).
    ExecQuery {
        /// Names the process, so that control can end it.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub tag: Option<String>,
        /// Keep at most so many bytes of each stream, those at the end.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub last_bytes: Option<usize>,
    }

    /// Query of [`ExecStream`](super::endpoints::ExecStream).
    ExecStreamQuery {
        /// Encoding of the output.
        #[serde(default, skip_serializing_if = "is_default")]
        pub encoding: OutputEncoding,
        /// Names the process, so that a caller who left before it heard of the process can end it.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub tag: Option<String>,
    }

    /// Query of [`CommandSocket`](super::endpoints::CommandSocket).
    StreamQuery {
        /// Encoding of the output.
        #[serde(default, skip_serializing_if = "is_default")]
        pub encoding: OutputEncoding,
    }

    /// Query of [`StartProcess`](super::endpoints::StartProcess).
    StartProcessQuery {
        /// Respond with the process's events.
        #[serde(default, skip_serializing_if = "Flag::is_off")]
        pub follow: Flag,
        /// Encoding of output in events.
        #[serde(default, skip_serializing_if = "is_default")]
        pub encoding: OutputEncoding,
    }

    /// Query of [`WaitProcess`](super::endpoints::WaitProcess).
    WaitProcessQuery {
        /// Seconds to wait for the process to end.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub timeout_seconds: Option<u64>,
    }

    /// Query of [`ProcessOutput`](super::endpoints::ProcessOutput). The position that the client
    /// saw last ([`LAST_EVENT_ID_HEADER`](super::LAST_EVENT_ID_HEADER)) has precedence over the
    /// offsets.
    OutputQuery {
        /// First byte of standard output.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub stdout_offset: Option<u64>,
        /// First byte of standard error.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub stderr_offset: Option<u64>,
        /// Encoding of the output.
        #[serde(default, skip_serializing_if = "is_default")]
        pub encoding: OutputEncoding,
    }

    /// Query of [`WriteStdin`](super::endpoints::WriteStdin).
    StdinQuery {
        /// Offset of these bytes in standard input; bytes that were already written are skipped.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub offset: Option<u64>,
        /// Close standard input after them.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        pub close: bool,
    }

    /// Query of [`TerminalSocket`](super::endpoints::TerminalSocket).
    TerminalQuery {
        /// Rows of a new terminal.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub rows: Option<u16>,
        /// Columns of a new terminal.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub cols: Option<u16>,
        /// User of a new terminal's shell.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub user: Option<String>,
        /// Process of an existing terminal.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub process: Option<u64>,
        /// First byte of an existing terminal's output.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub offset: Option<u64>,
    }

    /// A path in the sandbox.
    PathQuery {
        /// An absolute path.
        pub path: String,
    }

    /// Query of [`WriteFile`](super::endpoints::WriteFile).
    WriteFileQuery {
        /// An absolute path.
        pub path: String,
        /// `atomic` (the default), `in_place` or `append`.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub write: Option<String>,
        /// Permissions in octal.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub mode: Option<String>,
        /// Owner of a new file and its new parents.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub user: Option<String>,
    }

    /// Query of [`RemoveFile`](super::endpoints::RemoveFile).
    RemoveFileQuery {
        /// An absolute path.
        pub path: String,
        /// Whether a directory is removed with its contents; true if absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub recursive: Option<bool>,
    }

    /// Query of [`MakeDirectory`](super::endpoints::MakeDirectory).
    MakeDirectoryQuery {
        /// An absolute path.
        pub path: String,
        /// Owner of the new directories.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub user: Option<String>,
    }

    /// Query of [`ListDirectory`](super::endpoints::ListDirectory).
    ListDirectoryQuery {
        /// An absolute path; `/` if absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub path: Option<String>,
        /// Include the contents of directories below it.
        #[serde(default, skip_serializing_if = "Flag::is_off")]
        pub recursive: Flag,
        /// Number of levels to descend.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub depth: Option<u32>,
        /// Most entries.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub limit: Option<u32>,
    }

    /// Query of [`FindFiles`](super::endpoints::FindFiles).
    FindFilesQuery {
        /// An absolute path; `/` if absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub path: Option<String>,
        /// Pattern of names.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub glob: Option<String>,
        /// Number of levels to descend.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub depth: Option<u32>,
        /// Most entries.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub limit: Option<u32>,
    }

    /// Query of [`GrepFiles`](super::endpoints::GrepFiles).
    GrepFilesQuery {
        /// Text to search for: a regular expression, or a literal if `fixed`.
        pub pattern: String,
        /// An absolute path; `/` if absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub path: Option<String>,
        /// Pattern of names.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub glob: Option<String>,
        /// Upper and lower case are the same.
        #[serde(default, skip_serializing_if = "Flag::is_off")]
        pub ignore_case: Flag,
        /// The pattern is plain text.
        #[serde(default, skip_serializing_if = "Flag::is_off")]
        pub fixed: Flag,
        /// Most matches.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub limit: Option<u32>,
    }

    /// Query of [`UnpackArchive`](super::endpoints::UnpackArchive).
    UnpackQuery {
        /// An absolute path of a directory.
        pub path: String,
        /// Owner of new files.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub user: Option<String>,
    }

    /// Query of [`WatchFiles`](super::endpoints::WatchFiles).
    WatchFilesQuery {
        /// An absolute path.
        pub path: String,
        /// Include directories below it.
        #[serde(default, skip_serializing_if = "Flag::is_off")]
        pub recursive: Flag,
    }

    /// Query of [`ReadLogs`](super::endpoints::ReadLogs).
    LogQuery {
        /// `stdout`, `stderr` or `both`, which mean the same: a console is one stream.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub stream: Option<String>,
        /// Respond with events.
        #[serde(default, skip_serializing_if = "Flag::is_off")]
        pub follow: Flag,
    }

    /// Query of [`OpenGrant`](super::endpoints::OpenGrant).
    GrantQuery {
        /// Whether a sleeping sandbox is woken; true if absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub wake: Option<bool>,
    }

    /// Query of [`OpenTunnel`](super::endpoints::OpenTunnel).
    TunnelQuery {
        /// TCP port of the guest.
        pub port: u16,
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_path_round_trips_through_a_query() {
        for path in ["/srv/a.txt", "/a b&c=d", "/ü%2F#?+;", "/\n\"'"] {
            let query = WriteFileQuery { path: path.to_owned(), ..WriteFileQuery::default() };
            let encoded = encode_query(&query);
            assert!(encoded.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#'), "{encoded}");
            assert_eq!(parse_query(&encoded), Ok(query));
        }
        assert_eq!(encode_query(&PathQuery { path: "/srv/a.txt".to_owned() }), "path=/srv/a.txt");
    }

    #[test]
    fn flags_parse_leniently_and_absent_parameters_are_omitted() {
        assert_eq!(encode_query(&NoQuery {}), "");
        assert_eq!(encode_query(&StartProcessQuery::default()), "");
        let follow = StartProcessQuery { follow: Flag(true), ..StartProcessQuery::default() };
        assert_eq!(encode_query(&follow), "follow=1");
        for (text, expect) in [("1", true), ("true", true), ("0", false), ("false", false), ("", false)] {
            let query: StartProcessQuery = parse_query(&format!("follow={text}&unknown=1")).unwrap();
            assert_eq!(query.follow, Flag(expect), "{text}");
        }
        let refused = parse_query::<StartProcessQuery>("follow=maybe").unwrap_err();
        let expect = "invalid query parameter: follow: must be 1 or 0, or true or false";
        assert_eq!(refused.to_string(), expect);
    }
}
