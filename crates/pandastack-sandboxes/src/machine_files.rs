//! Files of a machine.

use std::time::Duration;

use axum::body::Body;
use pandastack_agent_client::{AgentError, CallOptions, StreamOptions};
use pandastack_types::agent_api::{
    MakeDirectoryQuery, PathQuery, RemoveFileQuery, UnpackQuery, WriteFileQuery, endpoints,
};
use pandastack_types::api::{FileEntry, RenameFile, SetAttributes};
use pandastack_types::{Error, ErrorCode, Result};

use crate::machine::Machine;
use crate::ops::options_for;

/// Longest time to look up a file.
const READ_WAIT: Duration = Duration::from_secs(60);

/// Longest time to move a file or directory, which are copied if they are to be on another file system.
const RENAME_WAIT: Duration = Duration::from_secs(600);

impl Machine {
    /// Writes a file; the content streams.
    pub async fn write(&self, file: &str, content: Body) -> Result<()> {
        let query = WriteFileQuery { path: file.to_owned(), ..WriteFileQuery::default() };
        let call = endpoints::WriteFile::new(self.id().clone(), query);
        let options = CallOptions::upload(self.record.incarnation);
        Ok(self.client().call(call, options, content).await.map(drop)?)
    }

    /// Unpacks a tar archive into a directory; the content streams.
    pub async fn unpack(&self, directory: &str, archive: Body, wait: Duration) -> Result<()> {
        match self.unpack_with(directory, None, archive, wait).await {
            Err(AgentError::Timeout { .. }) => {
                Err(Error::new(ErrorCode::GuestUnavailable, "copying the archive timed out; try again"))
            }
            unpacked => Ok(unpacked?),
        }
    }

    /// The same; new files belong to `user`.
    pub async fn unpack_of(&self, directory: &str, user: &str, archive: Body, wait: Duration) -> Result<()> {
        Ok(self.unpack_with(directory, Some(user), archive, wait).await?)
    }

    async fn unpack_with(
        &self,
        directory: &str,
        user: Option<&str>,
        archive: Body,
        wait: Duration,
    ) -> Result<(), AgentError> {
        let query = UnpackQuery { path: directory.to_owned(), user: user.map(str::to_owned) };
        let call = endpoints::UnpackArchive::new(self.id().clone(), query);
        self.client().call(call, options_for(&self.record, wait), archive).await.map(drop)
    }

    /// A directory or file as an archive that is made while it is read.
    pub async fn pack(&self, path: &str) -> Result<Body> {
        let call = endpoints::PackArchive::new(self.id().clone(), PathQuery { path: path.to_owned() });
        let options = StreamOptions::on_sandbox(self.record.incarnation);
        Ok(Body::new(self.client().stream(call, options, ()).await?.into_body()))
    }

    /// Streams a file.
    pub async fn read(&self, path: &str) -> Result<Body> {
        let call = endpoints::ReadFile::new(self.id().clone(), PathQuery { path: path.to_owned() });
        let options = StreamOptions::on_sandbox(self.record.incarnation);
        Ok(Body::new(self.client().stream(call, options, ()).await?.into_body()))
    }

    /// Metadata of a path; `None` if it does not exist.
    pub async fn stat(&self, path: &str) -> Result<Option<FileEntry>> {
        let call = endpoints::StatFile::new(self.id().clone(), PathQuery { path: path.to_owned() });
        match self.client().call(call, options_for(&self.record, READ_WAIT), ()).await.map_err(Error::from) {
            Ok(entry) => Ok(Some(entry)),
            Err(error) if matches!(error.code, ErrorCode::NotFound | ErrorCode::FileNotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Moves a file or directory.
    pub async fn rename(&self, from: &str, to: &str) -> Result<()> {
        let call = endpoints::RenameFile::new(self.id().clone());
        let request = RenameFile { from: from.to_owned(), to: to.to_owned(), make_parents: false };
        Ok(self.client().call(call, options_for(&self.record, RENAME_WAIT), &request).await?)
    }

    /// Sets the mode of a file or directory.
    pub async fn set_mode(&self, path: &str, mode: u32) -> Result<()> {
        let wanted = SetAttributes { mode: Some(format!("{mode:04o}")), ..SetAttributes::default() };
        self.set_attributes(path, &wanted).await
    }

    /// Sets mode and owner of a file or directory.
    pub async fn set_attributes(&self, path: &str, wanted: &SetAttributes) -> Result<()> {
        let call = endpoints::SetAttributes::new(self.id().clone(), PathQuery { path: path.to_owned() });
        self.client().call(call, options_for(&self.record, READ_WAIT), wanted).await.map(drop)?;
        Ok(())
    }

    /// Creates a directory and those above it.
    pub async fn make_dir(&self, directory: &str, wait: Duration) -> Result<()> {
        self.make_dir_of(directory, None, wait).await
    }

    /// The same; new directories belong to `user`.
    pub async fn make_dir_of(&self, directory: &str, user: Option<&str>, wait: Duration) -> Result<()> {
        let query = MakeDirectoryQuery { path: directory.to_owned(), user: user.map(str::to_owned) };
        let call = endpoints::MakeDirectory::new(self.id().clone(), query);
        Ok(self.client().call(call, options_for(&self.record, wait), ()).await?)
    }

    /// Deletes a file, or a directory with everything in it.
    pub async fn remove(&self, file: &str, wait: Duration) -> Result<()> {
        let query = RemoveFileQuery { path: file.to_owned(), ..RemoveFileQuery::default() };
        let call = endpoints::RemoveFile::new(self.id().clone(), query);
        Ok(self.client().call(call, options_for(&self.record, wait), ()).await?)
    }

    /// Deletes a directory, if it is there and empty.
    pub async fn remove_empty(&self, directory: &str, wait: Duration) -> Result<()> {
        let query = RemoveFileQuery { path: directory.to_owned(), recursive: Some(false) };
        let call = endpoints::RemoveFile::new(self.id().clone(), query);
        let removed = self.client().call(call, options_for(&self.record, wait), ()).await;
        match removed.map_err(Error::from) {
            // `Conflict` is the answer for a directory with something in it.
            Err(error) if error.code == ErrorCode::Conflict => Ok(()),
            Err(error) if matches!(error.code, ErrorCode::NotFound | ErrorCode::FileNotFound) => Ok(()),
            removed => removed,
        }
    }
}
