//! `/v1`: what chat backends call, signed.

mod bash;
mod files;
mod jobs;
mod lease;
mod outputs;
mod tools;
mod uploads;

use std::sync::Arc;

use utoipa_axum::{router::OpenApiRouter, routes};

use super::App;

/// The routes with their documentation.
pub(super) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(bash::run_bash))
        .routes(routes!(bash::read_bash_call))
        .routes(routes!(files::present_files))
        .routes(routes!(uploads::list_uploads))
        .routes(routes!(
            uploads::put_upload,
            uploads::get_upload,
            uploads::delete_upload
        ))
        .routes(routes!(outputs::list_outputs))
        .routes(routes!(outputs::get_output_content))
        .routes(routes!(lease::get_lease, lease::end_lease))
        .routes(routes!(jobs::list_jobs, jobs::start_job))
        .routes(routes!(jobs::get_job, jobs::stop_job))
        .routes(routes!(jobs::read_job_output))
        .routes(routes!(tools::list_tools))
}
