//! Which devices are used, and what each of them gets.

use std::fmt;
use std::str::FromStr;

use minfer_graph::{Rule, Stage, Unit};
use regex::Regex;

use crate::EngineError;

/// The name of the device that is always there.
const CPU: &str = "cpu";

/// What a user asks of placement.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Placement {
    /// Devices by name, the preferred one first; empty for those that this machine has.
    pub devices: Vec<String>,
    /// How much of the model may leave the CPU; `None` leaves that to the devices.
    pub gpu_layers: Option<GpuLayers>,
    /// Where nodes go by name, the first rule that fits a node deciding. They come before `gpu_layers`.
    pub rules: Vec<PlaceRule>,
    /// What goes to one device as a whole.
    pub unit: Unit,
}

/// How much of a model devices other than the CPU may run, counted from its end: the output first, then the layers from
/// the last one on, then the embedding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuLayers {
    /// So many: 0 is nothing, 1 the output, 2 the output and the last layer.
    Count(u32),
    /// Everything.
    All,
}

impl GpuLayers {
    /// Whether a node at this stage of a model with so many layers is among them.
    fn has(self, stage: Stage, layers: u32) -> bool {
        let Self::Count(count) = self else { return true };
        let from_the_end = match stage {
            Stage::Output => 0,
            Stage::Layer(layer) => layers.saturating_sub(layer),
            Stage::Input => layers + 1,
        };
        from_the_end < count
    }
}

impl fmt::Display for GpuLayers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => write!(f, "{count}"),
            Self::All => f.write_str("all"),
        }
    }
}

impl FromStr for GpuLayers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "all" => Ok(Self::All),
            _ => text.parse().map(Self::Count).map_err(|_| "expected a whole number or all".to_owned()),
        }
    }
}

/// Nodes whose name matches a pattern go to a device: `REGEX=DEVICE`.
#[derive(Clone, Debug)]
pub struct PlaceRule {
    pattern: Regex,
    device: String,
}

impl PlaceRule {
    fn fits(&self, label: &str) -> bool {
        self.pattern.is_match(label)
    }
}

impl PartialEq for PlaceRule {
    fn eq(&self, other: &Self) -> bool {
        self.to_string() == other.to_string()
    }
}

impl fmt::Display for PlaceRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.pattern, self.device)
    }
}

impl FromStr for PlaceRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((pattern, device)) = text.rsplit_once('=').filter(|(p, d)| !p.is_empty() && !d.is_empty())
        else {
            return Err(format!("{text:?} is not of the form REGEX=DEVICE"));
        };
        // The message of a pattern that does not compile has several lines, the last of which says why.
        let pattern = Regex::new(pattern).map_err(|e| {
            let message = e.to_string();
            let why = message.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
            format!("pattern {pattern:?}: {why}")
        })?;
        Ok(Self { pattern, device: device.to_owned() })
    }
}

impl Placement {
    /// The rules for a model with so many layers, on devices with these names.
    pub(crate) fn rules(&self, names: &[String], layers: u32) -> Result<Vec<Rule<'static>>, EngineError> {
        let mut rules = Vec::new();
        for (i, rule) in self.rules.iter().enumerate() {
            let Some(target) = names.iter().position(|n| *n == rule.device) else {
                return Err(EngineError::NoDevice {
                    name: rule.device.clone(),
                    what: format!("--place {rule} needs it; in use are {}", names.join(", ")),
                });
            };
            let (rule, earlier) = (rule.clone(), self.rules[..i].to_vec());
            rules.push(Rule::new(format!("--place {rule}"), move |node, _, device| {
                let decides = rule.fits(&node.label) && !earlier.iter().any(|e| e.fits(&node.label));
                !decides || device.index() == target
            }));
        }
        if let Some(count) = self.gpu_layers {
            let is_cpu: Vec<bool> = names.iter().map(|n| n == CPU).collect();
            if count != GpuLayers::Count(0) && is_cpu.iter().all(|&cpu| cpu) {
                return Err(EngineError::NoDevice {
                    name: "gpu".to_owned(),
                    what: format!("--gpu-layers {count} needs a device besides the CPU, and there is none"),
                });
            }
            if count != GpuLayers::Count(0) && is_cpu[0] {
                return Err(EngineError::NoDevice {
                    name: CPU.to_owned(),
                    what: format!("it comes first and would take what --gpu-layers {count} is to move"),
                });
            }
            let placed = self.rules.clone();
            rules.push(Rule::new(format!("--gpu-layers {count}"), move |node, stage, device| {
                is_cpu[device.index()]
                    || count.has(stage, layers)
                    || placed.iter().any(|rule| rule.fits(&node.label))
            }));
        }
        Ok(rules)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_counted_from_the_end_with_the_output_first() {
        let has = |text: &str, stage| text.parse::<GpuLayers>().unwrap().has(stage, 24);
        for (count, output, last, first, input) in [
            ("0", false, false, false, false),
            ("1", true, false, false, false),
            ("2", true, true, false, false),
            ("24", true, true, false, false),
            ("25", true, true, true, false),
            ("26", true, true, true, true),
            ("all", true, true, true, true),
        ] {
            let stages = [Stage::Output, Stage::Layer(23), Stage::Layer(0), Stage::Input];
            assert_eq!(stages.map(|s| has(count, s)), [output, last, first, input], "{count}");
        }
        for bad in ["-1", "x", "", "1.5", "ALL"] {
            assert!(bad.parse::<GpuLayers>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_rule_says_what_is_wrong_with_it() {
        let error = |text: &str| text.parse::<PlaceRule>().unwrap_err();
        assert_eq!(error("ffn"), "\"ffn\" is not of the form REGEX=DEVICE");
        assert_eq!(error("ffn="), "\"ffn=\" is not of the form REGEX=DEVICE");
        assert_eq!(error("(a=cpu"), "pattern \"(a\": unclosed group");
        let rule: PlaceRule = "a=b=cpu".parse().unwrap();
        assert!(rule.fits("xa=by") && !rule.fits("ab"));

        let placement = Placement { rules: vec![rule], ..Placement::default() };
        let error = placement.rules(&["gpu".to_owned()], 2).unwrap_err();
        let wanted = "device cpu: --place a=b=cpu needs it; in use are gpu";
        assert_eq!(error.to_string(), wanted);
        let placement = Placement { gpu_layers: Some(GpuLayers::All), ..Placement::default() };
        let error = placement.rules(&["cpu".to_owned()], 2).unwrap_err();
        let wanted = "device gpu: --gpu-layers all needs a device besides the CPU, and there is none";
        assert_eq!(error.to_string(), wanted);
        let error = placement.rules(&["cpu".to_owned(), "gpu".to_owned()], 2).unwrap_err();
        let wanted = "device cpu: it comes first and would take what --gpu-layers all is to move";
        assert_eq!(error.to_string(), wanted);
    }
}
