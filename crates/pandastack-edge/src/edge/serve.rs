//! The path of one request to a sandbox: find, check, hold, send, log.

use std::sync::Arc;

use http::request::Parts;
use http::{HeaderMap, Method, Request, Response, header};

use super::Edge;
use super::logged_request::LoggedRequest;
use crate::access::{self, Verdict};
use crate::body::{GuestBody, RequestBody, ResponseBody};
use crate::cookies;
use crate::destination::Target;
use crate::error::EdgeError;
use crate::exchange::{Exchange, ExchangeError, FailedExchange, Resend, stopped};
use crate::headers::{Client, is_ambiguous, replace_host, to_guest, upgrade_of};
use crate::limits::BODY_BYTES_MAX;
use crate::route::Route;
use crate::site::Site;

impl Edge {
    /// Serves one request to a sandbox.
    pub(crate) async fn serve(
        &self,
        target: &Target,
        parts: &mut Parts,
        body: RequestBody,
        client: &Client,
    ) -> Response<ResponseBody> {
        let request = LoggedRequest::of(parts, client);
        let (mut site, mut outcome) = self.attempt(target, parts, body, client).await;
        if let Err(FailedExchange { error: ExchangeError::Cut, rest: Resend::Repeatable }) = outcome
            && !self.stop.is_cancelled()
        {
            // Boxed: rare, and large compared with a usual request's future.
            (site, outcome) = Box::pin(self.attempt_again(target, parts, client)).await;
        }
        match outcome {
            Ok(response) => self.conclude(request, target, site, response),
            Err(setback) => self.refuse(request, &parts.headers, target, site, setback).await,
        }
    }

    /// Sends a request to one sandbox. Returns which one it was, if it is known.
    pub(super) async fn attempt(
        &self,
        target: &Target,
        parts: &mut Parts,
        body: RequestBody,
        client: &Client,
    ) -> (Option<Arc<Site>>, Result<Response<ResponseBody>, FailedExchange>) {
        match self.sites.find(&target.sandbox, self.source.as_ref()).await {
            Ok((site, route)) => {
                let outcome = self.pass(&site, &route, target, parts, body, client).await;
                (Some(site), outcome)
            }
            Err(error) => (None, Err(FailedExchange::unsent(error, body))),
        }
    }

    /// The answer to a request that got none.
    pub(super) async fn refuse(
        &self,
        request: LoggedRequest,
        headers: &HeaderMap,
        target: &Target,
        site: Option<Arc<Site>>,
        setback: FailedExchange,
    ) -> Response<ResponseBody> {
        let error = match setback.error {
            ExchangeError::Other(error) => error,
            ExchangeError::Cut => stopped(),
            // Boxed: rare, and large compared with a usual request's future.
            ExchangeError::Dial(error) => Box::pin(self.explain(error, site.as_deref(), target)).await,
        };
        let response = error.answer(Some(target), headers);
        self.conclude(request, target, site, response)
    }

    /// The answer to a request, with its line in the log.
    pub(super) fn conclude(
        &self,
        request: LoggedRequest,
        target: &Target,
        site: Option<Arc<Site>>,
        mut response: Response<ResponseBody>,
    ) -> Response<ResponseBody> {
        let Some(site) = site else { return response };
        let sandbox = Arc::clone(&site.id);
        let entry = request.entry(Arc::clone(&self.log), sandbox, target.port, response.status().as_u16());
        if let ResponseBody::Guest(body) = response.body_mut() {
            body.log_at_end(entry);
        }
        response
    }

    async fn pass(
        &self,
        site: &Site,
        route: &Route,
        target: &Target,
        parts: &mut Parts,
        body: RequestBody,
        client: &Client,
    ) -> Result<Response<ResponseBody>, FailedExchange> {
        check_head(parts)?;
        let now = || jiff::Timestamp::now().as_second();
        match access::check(parts, route, target.port, client.secure, now)? {
            Verdict::Pass => {}
            Verdict::Redirect(response) => return Ok(*response),
        }
        let upgrade = upgrade_of(parts);
        to_guest(parts);
        if let Some(host) = &route.host_header {
            replace_host(parts, &host.for_port(target.port));
        }
        let permit = match site.enter(route, &self.tasks, &self.stop).await {
            Ok(permit) => permit,
            Err(error) => return Err(FailedExchange::unsent(error, body)),
        };
        let exchange = Exchange { permit, port: target.port, client };
        let answer = match upgrade {
            Some(protocol) => {
                let on_upgrade = hyper::upgrade::on(Request::from_parts(parts.clone(), ()));
                // Boxed: rare, and large compared with a usual request's future.
                Box::pin(exchange.upgrade(parts, protocol, on_upgrade, &self.tasks)).await
            }
            None => exchange.send(parts, body).await,
        };
        answer.map(|answer| of_guest(answer, target))
    }

    /// Repeats a request that a stop of its sandbox cut off, once the sandbox is awake: no
    /// transition by the platform fails a repeatable request. Its head is ready for the guest, and
    /// its client is authorized.
    pub(super) async fn attempt_again(
        &self,
        target: &Target,
        parts: &mut Parts,
        client: &Client,
    ) -> (Option<Arc<Site>>, Result<Response<ResponseBody>, FailedExchange>) {
        let (site, route) = match self.sites.find(&target.sandbox, self.source.as_ref()).await {
            Ok(found) => found,
            Err(error) => return (None, Err(error.into())),
        };
        let answer = match site.enter(&route, &self.tasks, &self.stop).await {
            Ok(permit) => {
                Exchange { permit, port: target.port, client }.send(parts, RequestBody::Empty).await
            }
            Err(error) => Err(error.into()),
        };
        (Some(site), answer.map(|answer| of_guest(answer, target)))
    }
}

fn of_guest(mut response: Response<GuestBody>, target: &Target) -> Response<ResponseBody> {
    cookies::confine(response.headers_mut(), target.own_domain);
    response.map(|body| ResponseBody::Guest(Box::new(body)))
}

fn check_head(parts: &Parts) -> Result<(), EdgeError> {
    if parts.method == Method::CONNECT {
        return Err(EdgeError::Malformed("previews do not support CONNECT".to_owned()));
    }
    if is_ambiguous(&parts.headers) {
        return Err(EdgeError::Malformed(
            "the request has more than one Content-Length or Host header; send each once".to_owned(),
        ));
    }
    let length = parts.headers.get(header::CONTENT_LENGTH);
    let length = length.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|length| length > BODY_BYTES_MAX) {
        return Err(EdgeError::TooLarge);
    }
    Ok(())
}
