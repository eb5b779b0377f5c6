//! Estimates tokens, bytes and price of a run on an endpoint without calling it.

use super::args::EstimateArgs;
use super::sample::{answers, at_least_plain, count_of_cases, each_sampled};
use crate::progress::grouped;
use crate::runs::condition::Condition;
use crate::runs::setup::{OpenedData, RunSpec, WrongUsage};
use palimpsest_core::engine::memory_plan::gigabytes;
use palimpsest_core::text::{ChatTemplate, CountTokens};
use palimpsest_data::prompt::BytePairEncoding;

pub(super) fn text(args: &EstimateArgs, job: &RunSpec) -> anyhow::Result<String> {
    let encoding =
        BytePairEncoding::named(&args.estimate_tokenizer).map_err(|e| WrongUsage(e.to_string()))?;
    let OpenedData { dataset, all, limits: asked, .. } = &job.open()?;
    let plan = job.plan(dataset, all.clone())?;
    let layout = (job.templates(dataset.benchmark())?, ChatTemplate::plain(None)?);
    let shown = job.endpoint_prompts(layout, job.counter()?, *asked);
    let (mut tokens, mut bytes, mut prompts) = (0, 0, 0);
    let conditions = at_least_plain(job.endpoint_conditions(dataset, &shown)?);
    let read = (&conditions[..], |condition: &&Condition| condition.repetition == 0);
    let cases = each_sampled(job, dataset, &plan, read, |case, asked| {
        // Histories are truncated as in the run; all counts use one encoding.
        let parts = shown.parts(case)?;
        for probe in case.probes.iter().filter(|probe| asked.contains(&&*probe.id)) {
            for message in shown.prompt(&parts, case, probe)?.messages {
                tokens += encoding.count(&message.content)?;
                bytes += message.content.len();
            }
            prompts += 1;
        }
        Ok(())
    })?;
    let n = answers(&conditions, &plan);
    let whole = |sum: usize| sum as f64 / prompts.max(1) as f64 * n as f64;
    let most_new = job.generated_by_endpoint(*asked);
    let (tokens_in, tokens_out) = (whole(tokens), (n * most_new) as f64);
    let mut text = format!(
        "{n} answers on {} by {}: an estimate, nothing was sent\n\
         tokens in   {} of {} (the endpoint's own tokenizer may differ), from {prompts} prompts of {cases} cases\n\
         tokens out  {} at most ({} an answer)\n\
         bytes       {} sent",
        count_of_cases(&plan),
        job.model,
        grouped(tokens_in.round() as u64),
        encoding.name(),
        grouped(tokens_out as u64),
        most_new,
        gigabytes(whole(bytes) as u64),
    );
    if let (Some(input), Some(output)) = (args.price_in, args.price_out) {
        let (input, output) = (tokens_in / 1e6 * input, tokens_out / 1e6 * output);
        text += &format!(
            "\nprice       {:.2} at most ({input:.2} in, {output:.2} out), without the endpoint's caching",
            input + output
        );
    }
    Ok(text)
}
