//! Reading rotary position embedding from hyper-parameters.

use minfer_graph::{Rope, RopePairs, Yarn};

use crate::ModelError;
use crate::hyper::{Dims, Hyper};

/// The base of files that state none.
pub(crate) const DEFAULT_BASE: f32 = 10_000.0;

/// The model's rotary embedding with the scaling that its file asks for.
pub(crate) fn read(hyper: &Hyper<'_>, dims: &Dims, pairs: RopePairs) -> Result<Rope, ModelError> {
    let rotary_dim = hyper.size("rope.dimension_count")?.unwrap_or(dims.head_dim);
    if !rotary_dim.is_multiple_of(2) || rotary_dim > dims.head_dim {
        let expected = format!("an even number up to the head size, {}", dims.head_dim);
        return Err(hyper.reject("rope.dimension_count", rotary_dim, expected));
    }
    let base = hyper.positive("rope.freq_base")?.unwrap_or(DEFAULT_BASE);
    let plain = Rope { rotary_dim, pairs, base, scale: 1.0, yarn: None };
    let magnitude = hyper.positive("rope.scaling.attn_factor")?.unwrap_or(1.0);

    let rope = match hyper.text("rope.scaling.type")? {
        Some("none") => plain,
        // A factor without a type means linear; `rope.scale_linear` is its older name.
        Some("linear") | None => {
            let factor = match hyper.positive("rope.scaling.factor")? {
                Some(factor) => factor,
                None => hyper.positive("rope.scale_linear")?.unwrap_or(1.0),
            };
            Rope { scale: 1.0 / factor, ..plain }
        }
        Some("yarn") => return yarn(hyper, dims, plain, magnitude),
        Some(other) => {
            let expected = "\"none\", \"linear\" or \"yarn\"";
            return Err(hyper.reject("rope.scaling.type", format!("{other:?}"), expected));
        }
    };
    if magnitude != 1.0 {
        let expected = "1 unless rope.scaling.type is \"yarn\"";
        return Err(hyper.reject("rope.scaling.attn_factor", magnitude, expected));
    }
    Ok(rope)
}

fn yarn(hyper: &Hyper<'_>, dims: &Dims, plain: Rope, magnitude: f32) -> Result<Rope, ModelError> {
    let factor = hyper.positive("rope.scaling.factor")?.unwrap_or(1.0);
    if let Some(mix) = hyper.positive("rope.scaling.yarn_ext_factor")?
        && mix != 1.0
    {
        return Err(hyper.reject("rope.scaling.yarn_ext_factor", mix, "1"));
    }
    let beta_fast = hyper.positive("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0);
    let beta_slow = hyper.positive("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0);
    if beta_slow >= beta_fast {
        let expected = format!("less than yarn_beta_fast, {beta_fast}");
        return Err(hyper.reject("rope.scaling.yarn_beta_slow", beta_slow, expected));
    }
    // The correction of YaRN divides by the logarithm of the base.
    if plain.base <= 1.0 {
        return Err(hyper.reject("rope.freq_base", plain.base, "above 1 for rope.scaling.type \"yarn\""));
    }
    let temperature = if factor > 1.0 { 1.0 + 0.1 * factor.ln() } else { 1.0 };
    let yarn = Yarn {
        original_context: hyper.size("rope.scaling.original_context_length")?.unwrap_or(dims.context_length),
        beta_fast,
        beta_slow,
        magnitude: temperature * magnitude,
    };
    Ok(Rope { scale: 1.0 / factor, yarn: Some(yarn), ..plain })
}
