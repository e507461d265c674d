//! The model file as the graph's source of weights.

use std::ops::Range;

use minfer_gguf::Gguf;
use minfer_graph::WeightSource;

/// Hands out the mapped bytes of a model file's tensors.
#[derive(Debug)]
pub struct GgufWeights(pub Gguf);

impl WeightSource for GgufWeights {
    fn bytes(&self, name: &str) -> Option<&[u8]> {
        self.0.tensor(name).map(|t| t.data)
    }

    fn release(&self, name: &str, bytes: Range<usize>) {
        if let Some(tensor) = self.0.tensor(name)
            && bytes.end <= tensor.data.len()
        {
            // Only a hint: where the system refuses it, the pages stay until memory runs short.
            let _ = tensor.share().slice(bytes.start, bytes.len()).advise_dont_need();
        }
    }
}
