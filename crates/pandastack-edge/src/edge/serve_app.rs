//! The path of one request to an app: which machine gets it, and which one on failure.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use http::Response;
use http::request::Parts;

use super::Edge;
use super::logged_request::LoggedRequest;
use crate::app_route::Instances;
use crate::body::{RequestBody, ResponseBody};
use crate::destination::Target;
use crate::error::EdgeError;
use crate::exchange::{ExchangeError, FailedExchange, Resend};
use crate::headers::Client;
use crate::limits::HELD_WAIT;
use crate::site::Site;
use crate::spread::choose;

impl Edge {
    /// Serves one request to an app: by one of its machines, or by another if it did not reach that one.
    pub(crate) async fn serve_app(
        &self,
        app: &Instances,
        parts: &mut Parts,
        mut body: RequestBody,
        client: &Client,
    ) -> Response<ResponseBody> {
        let target = |at: usize| Target {
            sandbox: app.sandboxes[at].clone(),
            port: app.port,
            by_header: false,
            own_domain: app.own_domain,
        };
        if app.sandboxes.len() == 1 {
            return self.serve(&target(0), parts, body, client).await;
        }
        let request = LoggedRequest::of(parts, client);
        let mut since = request.began;
        let Some(mut at) = self.choose(app, &[]) else {
            let error = EdgeError::NotServing("the app has no running instance; deploy it again".to_owned());
            return error.answer(None, &parts.headers);
        };
        let (mut tried, mut is_repeated, mut cut_off) = (Vec::new(), false, None);
        loop {
            let (target, mut head) = (target(at), parts.clone());
            let (site, outcome) = self.attempt(&target, &mut head, body, client).await;
            let (error, rest) = match outcome {
                Err(FailedExchange { error, rest }) => (error, rest),
                Ok(response) => return self.conclude(request, &target, site, response),
            };
            if let (Some(site), Resend::Unsent(_) | Resend::Repeatable) = (&site, &rest) {
                site.note_missed();
            }
            tried.push(at);
            if let (ExchangeError::Cut, Resend::Repeatable) = (&error, &rest) {
                // Up to here the request waited for a response, not for a machine.
                since = Instant::now();
                cut_off.get_or_insert((at, head));
            }
            // Each is waited for while it wakes: together no longer than one may be.
            let next = self.choose(app, &tried).filter(|_| since.elapsed() < HELD_WAIT);
            (at, body) = match (next, rest) {
                (Some(next), Resend::Unsent(body)) => (next, body),
                // Once: what breaks one machine could break the others, too.
                (Some(next), Resend::Repeatable) if !is_repeated => {
                    is_repeated = true;
                    (next, RequestBody::Empty)
                }
                (_, rest) => {
                    let failed = (target, site, FailedExchange { error, rest });
                    return self.settle(request, app, parts, client, failed, cut_off).await;
                }
            };
        }
    }

    /// The final response to a request after all of an app's machines were tried: retries the
    /// machine that a stop cut off, if any, else reports the failure.
    async fn settle(
        &self,
        request: LoggedRequest,
        app: &Instances,
        parts: &Parts,
        client: &Client,
        failed: (Target, Option<Arc<Site>>, FailedExchange),
        cut_off: Option<(usize, Parts)>,
    ) -> Response<ResponseBody> {
        let (target, site, setback) = failed;
        if let Some((at, mut head)) = cut_off
            && !self.stop.is_cancelled()
        {
            let again = Target { sandbox: app.sandboxes[at].clone(), ..target.clone() };
            // Boxed: rare, and large compared with a usual request's future.
            if let (site, Ok(response)) = Box::pin(self.attempt_again(&again, &mut head, client)).await {
                return self.conclude(request, &again, site, response);
            }
        }
        self.refuse(request, &parts.headers, &target, site, setback).await
    }

    /// The place of the machine that gets a request next; `None` if all were tried.
    fn choose(&self, app: &Instances, tried: &[usize]) -> Option<usize> {
        let loads: Vec<_> = app.sandboxes.iter().map(|id| self.sites.load(id)).collect();
        choose(&loads, app.always, self.turn.fetch_add(1, Ordering::Relaxed), tried)
    }
}
