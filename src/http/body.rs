//! The body of an answer behind a layer: [`Body`].

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use http_body::{Frame, SizeHint};
use pin_project_lite::pin_project;

use super::gate::Account;

pin_project! {
    /// The body of an answer: that of the service, or that of a refusal.
    #[derive(Debug)]
    pub struct Body<B> {
        #[pin]
        inner: Option<B>,
        refusal: Option<Bytes>,
        meter: Meter,
    }
}

impl<B> Body<B> {
    pub(super) fn inner(body: B, meter: Meter) -> Self {
        Self { inner: Some(body), refusal: None, meter }
    }

    pub(super) fn refusal(text: Bytes) -> Self {
        Self { inner: None, refusal: Some(text).filter(|text| !text.is_empty()), meter: Meter::default() }
    }
}

impl<B: http_body::Body<Data = Bytes>> http_body::Body for Body<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.project();
        let Some(inner) = this.inner.as_pin_mut() else {
            return Poll::Ready(this.refusal.take().map(|text| Ok(Frame::data(text))));
        };
        let frame = std::task::ready!(inner.poll_frame(context));
        match &frame {
            Some(Ok(frame)) => this.meter.sent += frame.data_ref().map_or(0, |data| data.remaining() as u64),
            _ => this.meter.settle(),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.as_ref().map_or(self.refusal.is_none(), http_body::Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let refusal = || SizeHint::with_exact(self.refusal.as_ref().map_or(0, |text| text.len() as u64));
        self.inner.as_ref().map_or_else(refusal, http_body::Body::size_hint)
    }
}

/// Charges what has been sent once it is done, or dropped.
#[derive(Default)]
pub(super) struct Meter {
    sent: u64,
    /// Who is charged, and how many bytes are a unit.
    charged: Vec<(Box<dyn Account>, u64)>,
}

impl Meter {
    pub(super) fn new(charged: Vec<(Box<dyn Account>, u64)>) -> Self {
        Self { sent: 0, charged }
    }

    fn settle(&mut self) {
        for (account, bytes_per_unit) in self.charged.drain(..) {
            account.charge(self.sent.div_ceil(bytes_per_unit));
        }
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.settle();
    }
}

impl std::fmt::Debug for Meter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Meter").field("sent", &self.sent).finish_non_exhaustive()
    }
}
