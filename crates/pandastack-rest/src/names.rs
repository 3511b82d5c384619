//! Names and beginnings of ids in paths and bodies, instead of ids.

use std::sync::Arc;

use async_trait::async_trait;
use axum::extract::FromRequestParts;
use http::request::Parts;
use pandastack_types::{Error, ID_CHARS, Result, WorkspaceId};

use crate::{ApiError, ApiResult, Caller, InPath};

/// Resolves a text to an id. Authentication adds it to the request's extensions.
#[async_trait]
pub trait FindNamed: Send + Sync {
    /// The id of the resource with this id or name, else of the only one whose id begins with the
    /// text; `what` is [`InPath::WHAT`]. Refuses an ambiguous prefix.
    async fn find(&self, workspace: &WorkspaceId, what: &'static str, text: &str) -> Result<Option<String>>;
}

/// The type in request extensions.
pub type Names = Arc<dyn FindNamed>;

/// Resolves a path segment to an id. Text as long as an id is parsed without a lookup. Text that
/// matches no resource is 404.
pub async fn named<T: InPath>(parts: &Parts, text: &str) -> Result<T> {
    Lookup::of(parts).id(text).await
}

/// Looks up names in the caller's workspace, for ids in bodies.
#[derive(Clone)]
pub struct Lookup {
    by: Option<(WorkspaceId, Names)>,
}

impl Lookup {
    fn of(parts: &Parts) -> Self {
        let (caller, names) = (parts.extensions.get::<Caller>(), parts.extensions.get::<Names>());
        Self { by: caller.map(|caller| caller.workspace.clone()).zip(names.cloned()) }
    }

    /// Like [`named`].
    pub async fn id<T: InPath>(&self, text: &str) -> Result<T> {
        let unknown = || Error::not_found(T::WHAT, text);
        let (true, Some((workspace, names))) = (T::NAMED && text.len() != ID_CHARS, &self.by) else {
            return text.parse().map_err(|_| unknown());
        };
        match names.find(workspace, T::WHAT, text).await? {
            Some(id) => id.parse().map_err(|_| unknown()),
            None => Err(unknown()),
        }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Lookup {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> ApiResult<Self> {
        Ok(Self::of(parts))
    }
}
