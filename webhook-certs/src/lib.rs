//! Certificates for admission webhooks.
