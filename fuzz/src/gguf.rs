//! A model file from a stranger: the container, its metadata and tensors, then the vocabulary and the model in it.

use minfer_gguf::{Gguf, Metadata, Tensor, Value};
use minfer_tokenizer::{Kind, Tokenizer};

use super::{check_message, memory, model, tokenizer};

/// How far a file came.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// The container is well-formed.
    pub parsed: bool,
    /// There is a usable vocabulary.
    pub vocabulary: Option<Kind>,
    /// There is a model of this architecture, whose graph was planned.
    pub architecture: Option<String>,
    /// The model ran on the CPU.
    pub ran: bool,
}

/// Reads `data` as a GGUF file and does with it whatever the engine does.
pub fn run(data: &[u8]) -> Reached {
    let mut reached = Reached::default();
    // A vocabulary takes some hundred bytes a token, of which the smallest takes nine in the file. The fixed part is for
    // automata of few special tokens.
    let limit = (16 << 20) + 256 * data.len();
    let found = memory::within(limit, "reading the file", || {
        let gguf = match Gguf::parse(data) {
            Ok(gguf) => gguf,
            Err(error) => {
                check_message(error);
                return None;
            }
        };
        reached.parsed = true;
        check_metadata(gguf.metadata());
        check_tensors(&gguf, data.len());
        reached.vocabulary = check_vocabulary(gguf.metadata(), data);
        let model = model::open(&gguf)?;
        reached.architecture = Some(model.info().architecture.clone());
        Some((gguf, model))
    });
    if let Some((gguf, model)) = found {
        reached.ran = model::run(gguf, &model);
    }
    reached
}

fn check_metadata(metadata: &Metadata) {
    assert_eq!(metadata.iter().len(), metadata.len());
    for (key, value) in metadata.iter() {
        check_message(value);
        let again = metadata.get(key).expect("a key that was listed");
        assert_eq!(again.value_type(), value.value_type());
        if let Value::Array(array) = value {
            assert_eq!(array.iter().len(), array.len());
            assert!(array.iter().all(|element| element.value_type() == array.element_type()));
            assert!(array.get(array.len()).is_none());
            if let Some(strings) = array.strings() {
                assert_eq!(strings.iter_str().count(), array.len());
            }
        }
        // Typed access gives the value or says what is there instead.
        let errors = [
            metadata.require_u32(key).err(),
            metadata.require_i32(key).err(),
            metadata.require_u64(key).err(),
            metadata.require_f32(key).err(),
            metadata.require_bool(key).err(),
            metadata.require_str(key).err(),
            metadata.require_strings(key).err(),
            metadata.require_u32s(key).err(),
            metadata.require_i32s(key).err(),
            metadata.require_f32s(key).err(),
            metadata.require_bools(key).err(),
            metadata.require_per_layer::<u32>(key, 3).err(),
        ];
        assert!(errors.iter().any(Option::is_some), "{key:?} is of every type");
        errors.into_iter().flatten().for_each(check_message);
    }
}

fn check_tensors(gguf: &Gguf, file_len: usize) {
    let mut ends = Vec::new();
    for tensor in gguf.tensors() {
        let Tensor { name, ty, shape, data, .. } = tensor;
        assert_eq!(tensor.n_elements(), tensor.row_len() * tensor.n_rows());
        assert_eq!(tensor.row_bytes() as u64 * tensor.n_rows(), data.len() as u64, "{ty} {shape:?}");
        assert_eq!(tensor.share().len(), data.len());
        assert!(tensor.file_offset() + data.len() <= file_len);
        let last = tensor.row(tensor.n_rows() - 1).expect("the last row");
        assert_eq!(last.len(), tensor.row_bytes());
        assert!(tensor.row(tensor.n_rows()).is_none() && tensor.row(u64::MAX).is_none());
        assert_eq!(gguf.tensor(name).map(|t| t.file_offset()), Some(tensor.file_offset()));
        match tensor.dequantize() {
            Ok(values) => assert_eq!(values.len() as u64, tensor.n_elements()),
            Err(error) => check_message(error),
        }
        ends.push((tensor.file_offset(), tensor.file_offset() + data.len()));
    }
    ends.sort_unstable();
    assert!(ends.windows(2).all(|pair| pair[0].1 <= pair[1].0), "tensors overlap");
}

fn check_vocabulary(metadata: &Metadata, data: &[u8]) -> Option<Kind> {
    match Tokenizer::from_metadata(metadata) {
        Ok(found) => {
            found.warnings().iter().for_each(check_message);
            // Text near to what the vocabulary holds: the file itself.
            tokenizer::check(&found, &data[..data.len().min(2048)]);
            Some(found.kind())
        }
        Err(error) => {
            check_message(error);
            None
        }
    }
}
